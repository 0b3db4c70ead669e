import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Duration;
import java.time.Instant;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.function.Function;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Reads a topic from its beginning, and prints the digest of each partition's records as tests/log_records.py defines it. */
public class Digest {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("auto.offset.reset", "none");
        ByteArrayDeserializer bytes = new ByteArrayDeserializer();
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings, bytes, bytes)) {
            List<TopicPartition> partitions = consumer.partitionsFor(arguments[1]).stream()
                .map(info -> new TopicPartition(info.topic(), info.partition())).toList();
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Map<TopicPartition, Long> ends = consumer.endOffsets(partitions);
            Map<Integer, MessageDigest> digests = new TreeMap<>(
                partitions.stream().collect(Collectors.toMap(TopicPartition::partition, sha256())));
            Instant deadline = Instant.now().plusSeconds(60);
            while (partitions.stream().anyMatch(each -> consumer.position(each) < ends.get(each))) {
                if (Instant.now().isAfter(deadline)) {
                    throw new IllegalStateException("not all records came within 60 s");
                }
                consumer.poll(Duration.ofMillis(500)).forEach(record -> add(digests.get(record.partition()), record));
            }
            digests.forEach((partition, digest) ->
                System.out.println(partition + " " + HexFormat.of().formatHex(digest.digest())));
        }
    }

    private static Function<TopicPartition, MessageDigest> sha256() {
        return ignored -> {
            try {
                return MessageDigest.getInstance("SHA-256");
            } catch (java.security.NoSuchAlgorithmException error) {
                throw new IllegalStateException(error);
            }
        };
    }

    private static void add(MessageDigest digest, ConsumerRecord<byte[], byte[]> record) {
        digest.update(ByteBuffer.allocate(20).putLong(record.offset()).putInt(record.timestampType().id)
            .putLong(record.timestamp()).flip());
        add(digest, record.key());
        add(digest, record.value());
        Header[] headers = record.headers().toArray();
        digest.update(ByteBuffer.allocate(4).putInt(headers.length).flip());
        for (Header header : headers) {
            add(digest, header.key().getBytes(StandardCharsets.UTF_8));
            add(digest, header.value());
        }
    }

    private static void add(MessageDigest digest, byte[] field) {
        digest.update(ByteBuffer.allocate(4).putInt(field == null ? -1 : field.length).flip());
        if (field != null) {
            digest.update(field);
        }
    }
}
