import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.flink.configuration.GlobalConfiguration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;

/** Runs the SQL statements of a file in this process, with the configuration in a directory. */
public final class FlinkSql {
    private FlinkSql() {}

    public static void main(String[] arguments) throws Exception {
        var configuration = GlobalConfiguration.loadConfiguration(arguments[0]);
        var settings = EnvironmentSettings.newInstance().inStreamingMode().withConfiguration(configuration).build();
        var tables = TableEnvironment.create(settings);
        for (var statement : Files.readString(Path.of(arguments[1])).split(";\n")) {
            tables.executeSql(statement).await();
        }
    }
}
