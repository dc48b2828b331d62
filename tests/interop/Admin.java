import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Command lines of mqadmin, separated by "--", one after the other in one JVM; each one's output ends with a line "==". */
public class Admin {
    public static void main(String[] arguments) throws Exception {
        PrintStream out = System.out;
        List<String> line = new ArrayList<>();
        for (String word : arguments) {
            if (!word.equals("--")) {
                line.add(word);
                continue;
            }
            ByteArrayOutputStream said = new ByteArrayOutputStream();
            System.setOut(new PrintStream(said, true, "UTF-8"));
            MQAdminStartup.main0(line.toArray(new String[0]), null);
            System.setOut(out);
            out.println(said.toString("UTF-8"));
            out.println("==");
            line.clear();
        }
        System.exit(0);
    }
}
