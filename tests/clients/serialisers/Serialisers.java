import com.fasterxml.jackson.databind.ObjectMapper;
import com.google.gson.Gson;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;

/** Reads records as JSON, one on each line, and writes each as the library that the argument names writes it. */
public class Serialisers {
    public static class Place {
        public String city;
        public int zip;
    }

    public static class Order {
        public long id;
        public String name;
        public double price;
        public float ratio;
        public boolean ok;
        public String at;
        public String day;
        public List<String> tags;
        public Place place;
        public String note;
        public Map<String, String> labels;
    }

    public static void main(String[] arguments) throws Exception {
        ObjectMapper jackson = new ObjectMapper();
        Gson gson = new Gson();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Order order = jackson.readValue(line, Order.class);
            out.print(arguments[0].equals("gson") ? gson.toJson(order) : jackson.writeValueAsString(order));
            out.print('\n');
        }
        out.flush();
    }
}
