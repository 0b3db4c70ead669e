import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs the main classes of Kafka's tools in one JVM. Each line of the standard input is a JSON object with tool, arguments and
 * input. Each line of the standard output is one with the exit code and the outputs of the tool.
 */
public class Tools {
    /** Thrown in place of the end of the process. */
    private static final class Ended extends Error {
        private Ended() {
            super("ended", null, false, false);
        }
    }

    private static final ObjectMapper JSON = new ObjectMapper();
    private static final ByteArrayOutputStream OUTPUT = new ByteArrayOutputStream();
    private static final ByteArrayOutputStream ERRORS = new ByteArrayOutputStream();
    /** The result at the first exit. A tool that catches the error prints more, and calls exit again. */
    private static ObjectNode answer;

    private static void end(int status, String message) {
        if (answer == null) {
            answer = JSON.createObjectNode();
            answer.put("code", status);
            answer.put("output", OUTPUT.toString(StandardCharsets.UTF_8));
            answer.put("errors", ERRORS.toString(StandardCharsets.UTF_8));
        }
        throw new Ended();
    }

    public static void main(String[] ignored) throws Exception {
        PrintStream answers = System.out;
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        // Some classes keep the first streams that they see, so all tools share these two.
        System.setOut(new PrintStream(OUTPUT, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(ERRORS, true, StandardCharsets.UTF_8));
        Exit.setExitProcedure(Tools::end);
        Exit.setHaltProcedure(Tools::end);
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JsonNode request = JSON.readTree(line);
            List<String> arguments = new ArrayList<>();
            request.get("arguments").forEach(argument -> arguments.add(argument.asText()));
            System.setIn(new ByteArrayInputStream(request.get("input").asText().getBytes(StandardCharsets.UTF_8)));
            OUTPUT.reset();
            ERRORS.reset();
            answer = null;
            run(request.get("tool").asText(), arguments.toArray(new String[0]));
            answers.println(JSON.writeValueAsString(answer));
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static void run(String tool, String[] arguments) throws Exception {
        int code = 0;
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) arguments);
        } catch (InvocationTargetException failure) {
            if (!(failure.getCause() instanceof Ended)) {
                failure.getCause().printStackTrace();
                code = 1;
            }
        }
        try {
            end(code, null);
        } catch (Ended expected) {
            // The answer is complete.
        }
    }
}
