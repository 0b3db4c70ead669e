// Command policycni is the CNI plugin that asks the policy agent to filter a new pod's connections before its containers start.
//
// It is the last plugin of its chain, and does not change the result of the others. Source: the CNI specification 0.4.0.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"time"
)

const patience = 20 * time.Second

// configuration is the document that the container runtime writes to the plugin's input.
type configuration struct {
	CNIVersion string          `json:"cniVersion"`
	Socket     string          `json:"socket"`
	Previous   json.RawMessage `json:"prevResult"`
}

func main() {
	if err := run(os.Getenv("CNI_COMMAND")); err != nil {
		json.NewEncoder(os.Stdout).Encode(map[string]any{"cniVersion": "0.4.0", "code": 999, "msg": err.Error()})
		os.Exit(1)
	}
}

func run(command string) error {
	if command == "VERSION" {
		_, err := fmt.Println(`{"cniVersion": "0.4.0", "supportedVersions": ["0.4.0"]}`)
		return err
	}
	if command != "ADD" {
		return nil
	}
	input, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	var network configuration
	if err := json.Unmarshal(input, &network); err != nil {
		return fmt.Errorf("configuration of the plugin: %w", err)
	}
	address, err := podAddress(network.Previous)
	if err != nil {
		return err
	}
	if err := announce(network.Socket, uid(os.Getenv("CNI_ARGS")), address); err != nil {
		return fmt.Errorf("policy agent: %w", err)
	}
	_, err = os.Stdout.Write(network.Previous)
	return err
}

func podAddress(previous json.RawMessage) (string, error) {
	var result struct {
		IPs []struct {
			Address string `json:"address"`
		} `json:"ips"`
	}
	if err := json.Unmarshal(previous, &result); err != nil {
		return "", fmt.Errorf("result of the previous plugin: %w", err)
	}
	if len(result.IPs) != 1 {
		return "", fmt.Errorf("the previous plugin gave the pod %d addresses, not one", len(result.IPs))
	}
	address, _, _ := strings.Cut(result.IPs[0].Address, "/")
	return address, nil
}

// uid returns the pod's uid from the arguments of the runtime, `KEY=VALUE;KEY=VALUE`.
func uid(arguments string) string {
	for _, pair := range strings.Split(arguments, ";") {
		if value, found := strings.CutPrefix(pair, "K8S_POD_UID="); found {
			return value
		}
	}
	return ""
}

// announce tells the agent the address of a pod, and returns after the agent has applied the rules of this pod.
func announce(socket, uid, address string) error {
	connection, err := net.DialTimeout("unix", socket, patience)
	if err != nil {
		return err
	}
	defer connection.Close()
	if err := connection.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(connection, "%s %s\n", uid, address); err != nil {
		return err
	}
	answer, err := io.ReadAll(connection)
	if err != nil {
		return err
	}
	if string(answer) != "ok" {
		return fmt.Errorf("pod %s at %s: %q", uid, address, answer)
	}
	return nil
}
