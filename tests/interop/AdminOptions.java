import java.lang.reflect.Field;
import java.util.List;
import org.apache.commons.cli.Option;
import org.apache.commons.cli.Options;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/** Every command of mqadmin, and a line for each of its options: command, short name, long name, value, required. */
public class AdminOptions {
    @SuppressWarnings("unchecked")
    public static void main(String[] arguments) throws Exception {
        MQAdminStartup.initCommand();
        Field field = MQAdminStartup.class.getDeclaredField("SUB_COMMANDS");
        field.setAccessible(true);
        for (SubCommand command : (List<SubCommand>) field.get(null)) {
            String name = command.commandName();
            System.out.println(name + "\t\t\t\t");
            for (Option option : command.buildCommandlineOptions(new Options()).getOptions()) {
                System.out.println(name + "\t" + option.getOpt() + "\t" + option.getLongOpt() + "\t" + option.hasArg() + "\t" + option.isRequired());
            }
        }
    }
}
