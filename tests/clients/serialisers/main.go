// Reads records as JSON, one on each line, and writes each as encoding/json writes it.
package main

import (
	"bufio"
	"encoding/json"
	"os"
)

type place struct {
	City string `json:"city"`
	Zip  int32  `json:"zip"`
}

type order struct {
	ID     int64             `json:"id"`
	Name   string            `json:"name"`
	Price  float64           `json:"price"`
	Ratio  float32           `json:"ratio"`
	OK     bool              `json:"ok"`
	At     string            `json:"at"`
	Day    string            `json:"day"`
	Tags   []string          `json:"tags"`
	Place  place             `json:"place"`
	Note   *string           `json:"note,omitempty"`
	Labels map[string]string `json:"labels"`
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	out := bufio.NewWriter(os.Stdout)
	for lines.Scan() {
		var read order
		if err := json.Unmarshal(lines.Bytes(), &read); err != nil {
			panic(err)
		}
		written, err := json.Marshal(read)
		if err != nil {
			panic(err)
		}
		out.Write(written)
		out.WriteByte('\n')
	}
	if err := lines.Err(); err != nil {
		panic(err)
	}
	out.Flush()
}
