import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;

/** A lite pull consumer that prints the ids of its queues whenever they change, until its input ends. Arguments: name servers, topic, group, strategy. */
public class Share {
    static AllocateMessageQueueStrategy strategy(String name) {
        switch (name) {
            case "AVG_BY_CIRCLE":
                return new AllocateMessageQueueAveragelyByCircle();
            case "CONSISTENT_HASH":
                return new AllocateMessageQueueConsistentHash();
            default:
                return new AllocateMessageQueueAveragely();
        }
    }

    public static void main(String[] arguments) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(arguments[2]);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setVipChannelEnabled(false);
        consumer.setAllocateMessageQueueStrategy(strategy(arguments[3]));
        consumer.subscribe(arguments[1], "*");
        consumer.start();
        String before = "";
        while (System.in.available() == 0) {
            TreeSet<Integer> ids = new TreeSet<>();
            consumer.assignment().forEach(queue -> ids.add(queue.getQueueId()));
            String now = ids.toString();
            if (!now.equals(before)) {
                System.out.println("queues " + now);
                before = now;
            }
            Thread.sleep(50);
        }
        consumer.shutdown();
        System.out.println("done");
        System.exit(0);
    }
}
