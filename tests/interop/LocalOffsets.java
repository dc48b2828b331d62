import java.util.HashSet;
import java.util.Set;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.store.LocalFileOffsetStore;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.common.message.MessageQueue;

/** The offset file of a broadcasting consumer, by Java's class. Arguments: client id, group, then topic broker queue offset; offset "?" reads. All queues named are persisted. */
public class LocalOffsets {
    public static void main(String[] arguments) throws Exception {
        MQClientInstance client = new MQClientInstance(new ClientConfig(), 0, arguments[0]);
        LocalFileOffsetStore store = new LocalFileOffsetStore(client, arguments[1]);
        store.load();
        Set<MessageQueue> named = new HashSet<>();
        for (int i = 2; i < arguments.length; i += 4) {
            MessageQueue queue = new MessageQueue(arguments[i], arguments[i + 1], Integer.parseInt(arguments[i + 2]));
            if (arguments[i + 3].equals("?")) {
                System.out.println(store.readOffset(queue, ReadOffsetType.READ_FROM_MEMORY));
            } else {
                store.updateOffset(queue, Long.parseLong(arguments[i + 3]), false);
            }
            named.add(queue);
        }
        store.persistAll(named);
        System.out.println("done");
        System.exit(0);
    }
}
