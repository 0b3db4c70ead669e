// Command franz tests a broker with franz-go. It is one program, because tests start it once. It produces, reads with a group, commits,
// continues at the committed offsets, and sends the requests of an admin client. At the first difference from Kafka, it prints the name of
// the failed check and exits.
//
//	franz BOOTSTRAP TOPIC
//	franz BOOTSTRAP TOPIC digest
//
// The second form reads a topic, and prints a digest of its records.
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
	if len(os.Args) > 3 {
		if err := digest(ctx, os.Args[1], os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if err := prove(ctx, os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("proven")
}

func prove(ctx context.Context, bootstrap, topic string) error {
	client, err := connected(bootstrap)
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
	// Two members, one after the other: the second continues at the offsets that the first committed.
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
	if err := share(ctx, bootstrap, topic); err != nil {
		return fmt.Errorf("share: %w", err)
	}
	if err := administer(ctx, admin, topic); err != nil {
		return fmt.Errorf("administer: %w", err)
	}
	if err := large(ctx, bootstrap, admin, topic+"-large"); err != nil {
		return fmt.Errorf("large records: %w", err)
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

// produce sends records with keys, headers and null values, and returns their number.
func produce(ctx context.Context, bootstrap, topic, name string, codec kgo.CompressionCodec) (int, error) {
	client, err := connected(bootstrap, kgo.DefaultProduceTopic(topic), kgo.ProducerBatchCompression(codec),
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

// value returns the value of the record with that key. The first record has a null value.
func value(name string, number int) []byte {
	if number == 0 {
		return nil
	}
	return bytes.Repeat([]byte(name), number)
}

// consume reads the given number of records as the only member of a group with the topic's name, and commits exactly these records.
func consume(ctx context.Context, bootstrap, topic string, count int) error {
	client, err := connected(bootstrap, kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
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

// share checks that two static members divide the partitions, and that a restarted member gets its partitions again.
func share(ctx context.Context, bootstrap, topic string) error {
	group := topic + "-shared"
	member := func(instance string) (*kgo.Client, chan int, error) {
		owned := make(chan int, 100)
		total := 0
		changed := func(by int) func(context.Context, *kgo.Client, map[string][]int32) {
			return func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
				total += by * len(partitions[topic])
				owned <- total
			}
		}
		client, err := connected(bootstrap, kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.InstanceID(instance),
			kgo.HeartbeatInterval(200*time.Millisecond), kgo.OnPartitionsAssigned(changed(1)),
			kgo.OnPartitionsRevoked(changed(-1)), kgo.OnPartitionsLost(changed(-1)),
		)
		return client, owned, err
	}
	await := func(owned chan int, least, most int) error {
		for {
			select {
			case count := <-owned:
				if least <= count && count <= most {
					return nil
				}
			case <-ctx.Done():
				return fmt.Errorf("no member with %d to %d partitions", least, most)
			}
		}
	}
	first, ofFirst, err := member("first")
	if err != nil {
		return err
	}
	defer first.Close()
	go first.PollFetches(ctx)
	if err := await(ofFirst, partitions, partitions); err != nil {
		return fmt.Errorf("one has all: %w", err)
	}
	second, ofSecond, err := member("second")
	if err != nil {
		return err
	}
	go second.PollFetches(ctx)
	if err := errors.Join(await(ofFirst, 1, partitions-1), await(ofSecond, 1, partitions-1)); err != nil {
		second.Close()
		return fmt.Errorf("two share: %w", err)
	}
	// A static member leaves without a request, and the group keeps its assignment.
	second.Close()
	again, ofAgain, err := member("second")
	if err != nil {
		return err
	}
	defer again.Close()
	go again.PollFetches(ctx)
	return await(ofAgain, 1, partitions-1)
}

// keeps waits until the topic has this retention. A broker of Apache Kafka answers from metadata that follows the controller.
func keeps(ctx context.Context, admin *kadm.Client, topic, retention string) error {
	for {
		configs, err := admin.DescribeTopicConfigs(ctx, topic)
		if err != nil {
			return err
		}
		of, err := configs.On(topic, nil)
		if err != nil {
			return err
		}
		for _, one := range of.Configs {
			if one.Key == "retention.ms" && one.MaybeValue() == retention {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return errors.New("the change is not there")
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// administer adds partitions, changes the topic's configs, searches offsets by time and deletes records.
func administer(ctx context.Context, admin *kadm.Client, topic string) error {
	if grown, err := admin.CreatePartitions(ctx, 1, topic); err != nil || grown.Error() != nil {
		return fmt.Errorf("grow: %w", errors.Join(err, grown.Error()))
	}
	retention := "7200000"
	changed, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &retention}}, topic)
	if err != nil || changed[0].Err != nil {
		return fmt.Errorf("alter configs: %w", errors.Join(err, changed[0].Err))
	}
	if err := keeps(ctx, admin, topic, retention); err != nil {
		return fmt.Errorf("describe configs: %w", err)
	}
	described, err := admin.DescribeGroups(ctx, topic)
	if err != nil || described[topic].State != "Empty" {
		return fmt.Errorf("describe group: %q: %w", described[topic].State, err)
	}
	after, err := admin.ListOffsetsAfterMilli(ctx, 0, topic)
	if err != nil || after.Error() != nil {
		return fmt.Errorf("offsets by time: %w", errors.Join(err, after.Error()))
	}
	offsets := kadm.Offsets{}
	offsets.AddOffset(topic, 0, 1, -1)
	deleted, err := admin.DeleteRecords(ctx, offsets)
	if err != nil || deleted.Error() != nil {
		return fmt.Errorf("delete records: %w", errors.Join(err, deleted.Error()))
	}
	starts, err := admin.ListStartOffsets(ctx, topic)
	if err != nil {
		return fmt.Errorf("list offsets: %w", err)
	}
	if start, _ := starts.Lookup(topic, 0); start.Offset != 1 {
		return fmt.Errorf("delete records: the partition begins at %d", start.Offset)
	}
	return nil
}

// large checks records of 1 MiB.
func large(ctx context.Context, bootstrap string, admin *kadm.Client, topic string) error {
	size := "2097152"
	if _, err := admin.CreateTopic(ctx, 1, -1, map[string]*string{"max.message.bytes": &size}, topic); err != nil {
		return err
	}
	client, err := connected(bootstrap, kgo.ConsumeTopics(topic), kgo.DefaultProduceTopic(topic),
		kgo.ProducerBatchMaxBytes(2<<20), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	value := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	if err := client.ProduceSync(ctx, &kgo.Record{Value: value}).FirstErr(); err != nil {
		return err
	}
	fetches := client.PollRecords(ctx, 1)
	if err := fetches.Err(); err != nil {
		return err
	}
	if records := fetches.Records(); len(records) != 1 || !bytes.Equal(records[0].Value, value) {
		return errors.New("another value came back")
	}
	return nil
}

// transact checks that the broker rejects a transactional producer, and that the producer does not retry until its timeout.
func transact(ctx context.Context, bootstrap string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	client, err := connected(bootstrap, kgo.TransactionalID("t"))
	if err != nil {
		return err
	}
	defer client.Close()
	if _, _, err := client.ProducerID(ctx); !errors.Is(err, kerr.TransactionalIDAuthorizationFailed) {
		return fmt.Errorf("not refused with a final error, but: %w", err)
	}
	return nil
}
