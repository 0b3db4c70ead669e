import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Sends one batch of values and prints the result of each record. Arguments: bootstrap server, topic, values in hex. */
public class Send {
    public static void main(String[] arguments) throws Exception {
        Properties config = new Properties();
        config.put("bootstrap.servers", arguments[0]);
        config.put("linger.ms", 500);
        config.put("compression.type", "lz4");
        ByteArraySerializer bytes = new ByteArraySerializer();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(config, bytes, bytes)) {
            producer.partitionsFor(arguments[1]);
            List<Future<RecordMetadata>> results = new ArrayList<>();
            for (int place = 2; place < arguments.length; place++) {
                byte[] value = HexFormat.of().parseHex(arguments[place]);
                results.add(producer.send(new ProducerRecord<>(arguments[1], value)));
            }
            for (Future<RecordMetadata> result : results) {
                try {
                    System.out.println("offset " + result.get().offset());
                } catch (ExecutionException failure) {
                    Throwable cause = failure.getCause();
                    System.out.println(cause.getClass().getSimpleName() + " " + cause.getMessage());
                }
            }
        }
    }
}
