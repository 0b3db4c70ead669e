package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// digest reads a topic from its beginning, and prints the digest of each partition's records as tests/log_records.py defines it.
func digest(ctx context.Context, bootstrap, topic string) error {
	client, err := connected(bootstrap, kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxWait(500*time.Millisecond),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	ends, err := kadm.NewClient(client).ListEndOffsets(ctx, topic)
	if err != nil {
		return fmt.Errorf("list offsets: %w", err)
	}
	digests := make([]hash.Hash, len(ends[topic]))
	left := 0
	for number := range digests {
		digests[number] = sha256.New()
		if ends[topic][int32(number)].Offset > 0 {
			left++
		}
	}
	for left > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		fetches.EachRecord(func(record *kgo.Record) {
			add(digests[record.Partition], record)
			if record.Offset+1 == ends[topic][record.Partition].Offset {
				left--
			}
		})
	}
	for number, each := range digests {
		fmt.Printf("%d %x\n", number, each.Sum(nil))
	}
	return nil
}

func add(digest hash.Hash, record *kgo.Record) {
	place := binary.BigEndian.AppendUint64(nil, uint64(record.Offset))
	place = binary.BigEndian.AppendUint32(place, uint32(record.Attrs.TimestampType()))
	place = binary.BigEndian.AppendUint64(place, uint64(record.Timestamp.UnixMilli()))
	digest.Write(place)
	addField(digest, record.Key)
	addField(digest, record.Value)
	digest.Write(binary.BigEndian.AppendUint32(nil, uint32(len(record.Headers))))
	for _, header := range record.Headers {
		addField(digest, []byte(header.Key))
		addField(digest, header.Value)
	}
}

func addField(digest hash.Hash, field []byte) {
	length := int32(len(field))
	if field == nil {
		length = -1
	}
	digest.Write(binary.BigEndian.AppendUint32(nil, uint32(length)))
	digest.Write(field)
}
