// Command franz proves a broker to franz-go: one program, since tests start it once. It produces, reads with a group, commits, comes back
// where it was, and asks what an admin asks; the first thing that is not as Kafka does it ends the program with its name.
//
//	franz BOOTSTRAP TOPIC
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	partitions = 3
	perCodec   = 100
)

var codecs = []struct {
	name  string
	codec kgo.CompressionCodec
}{
	{"none", kgo.NoCompression()},
	{"gzip", kgo.GzipCompression()},
	{"snappy", kgo.SnappyCompression()},
	{"lz4", kgo.Lz4Compression()},
	{"zstd", kgo.ZstdCompression()},
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := prove(ctx, os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("proven")
}

func prove(ctx context.Context, bootstrap, topic string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap))
	if err != nil {
		return err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	if _, err := admin.CreateTopic(ctx, partitions, -1, nil, topic); err != nil {
		return fmt.Errorf("create: %w", err)
	}
	total := 0
	for _, codec := range codecs {
		sent, err := produce(ctx, bootstrap, topic, codec.name, codec.codec)
		if err != nil {
			return fmt.Errorf("produce with %s: %w", codec.name, err)
		}
		total += sent
	}
	ends, err := admin.ListEndOffsets(ctx, topic)
	if err != nil {
		return fmt.Errorf("list offsets: %w", err)
	}
	var end int64
	ends.Each(func(it kadm.ListedOffset) { end += it.Offset })
	if end != int64(total) {
		return fmt.Errorf("list offsets: %d records, %d were produced", end, total)
	}
	// Two members, one after the other: the second goes on where the first committed.
	for _, count := range []int{total / 2, total - total/2} {
		if err := consume(ctx, bootstrap, topic, count); err != nil {
			return fmt.Errorf("consume: %w", err)
		}
	}
	lags, err := admin.Lag(ctx, topic)
	if err != nil || lags.Error() != nil {
		return fmt.Errorf("lag: %w", errors.Join(err, lags.Error()))
	}
	if lag := lags[topic].Lag.Total(); lag != 0 {
		return fmt.Errorf("lag: %d after all was committed", lag)
	}
	if err := transact(ctx, bootstrap); err != nil {
		return fmt.Errorf("transaction: %w", err)
	}
	if deleted, err := admin.DeleteGroups(ctx, topic); err != nil || deleted.Error() != nil {
		return fmt.Errorf("delete group: %w", errors.Join(err, deleted.Error()))
	}
	if deleted, err := admin.DeleteTopics(ctx, topic); err != nil || deleted.Error() != nil {
		return fmt.Errorf("delete topic: %w", errors.Join(err, deleted.Error()))
	}
	return nil
}

// produce sends records with keys, headers and null values; their number.
func produce(ctx context.Context, bootstrap, topic, name string, codec kgo.CompressionCodec) (int, error) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap), kgo.DefaultProduceTopic(topic), kgo.ProducerBatchCompression(codec),
		kgo.ProducerLinger(5*time.Millisecond),
	)
	if err != nil {
		return 0, err
	}
	defer client.Close()
	records := make([]*kgo.Record, perCodec)
	for number := range records {
		records[number] = &kgo.Record{
			Key:     []byte(fmt.Sprint(number)),
			Value:   value(name, number),
			Headers: []kgo.RecordHeader{{Key: "codec", Value: []byte(name)}},
		}
	}
	return len(records), client.ProduceSync(ctx, records...).FirstErr()
}

// value is what a record of that key has; null for the first.
func value(name string, number int) []byte {
	if number == 0 {
		return nil
	}
	return bytes.Repeat([]byte(name), number)
}

// consume reads so many records as the only member of the group named as the topic, and commits exactly them.
func consume(ctx context.Context, bootstrap, topic string, count int) error {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(bootstrap), kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(500*time.Millisecond),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	for count > 0 {
		fetches := client.PollRecords(ctx, count)
		if err := fetches.Err(); err != nil {
			return err
		}
		records := fetches.Records()
		for _, record := range records {
			var number int
			if _, err := fmt.Sscan(string(record.Key), &number); err != nil || len(record.Headers) != 1 {
				return fmt.Errorf("a record with key %q and headers %v", record.Key, record.Headers)
			}
			expected := value(string(record.Headers[0].Value), number)
			if !bytes.Equal(record.Value, expected) || (record.Value == nil) != (expected == nil) {
				return fmt.Errorf("a record with key %s has the value %q", record.Key, record.Value)
			}
		}
		count -= len(records)
		if err := client.CommitRecords(ctx, records...); err != nil {
			return fmt.Errorf("commit: %w", err)
		}
	}
	return nil
}

// transact proves that a transactional producer is refused, and does not try again until its time is up.
func transact(ctx context.Context, bootstrap string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.TransactionalID("t"))
	if err != nil {
		return err
	}
	defer client.Close()
	if _, _, err := client.ProducerID(ctx); !errors.Is(err, kerr.TransactionalIDAuthorizationFailed) {
		return fmt.Errorf("not refused for good, but: %w", err)
	}
	return nil
}
