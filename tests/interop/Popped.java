import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Arguments: name servers, topic, group, how many to wait for, true for orderly. A push consumer in POP mode, as the
 * broker assigns it. The first delivery of a body that ends in "fails" fails. Prints each body with its deliveries.
 */
public class Popped {
    private static final Map<String, String> SEEN = new ConcurrentHashMap<>();

    public static void main(String[] arguments) throws Exception {
        // A client's threads would keep the process alive behind a main that failed.
        Thread.currentThread().setUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        });
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments[2]);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setMqClientApiTimeout(20000);
        consumer.setClientRebalance(false);
        consumer.setPopInvisibleTime(20000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(arguments[1], "*");
        if (Boolean.parseBoolean(arguments[4])) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                boolean good = true;
                for (MessageExt one : messages) {
                    good &= take(one);
                }
                context.setSuspendCurrentQueueTimeMillis(1000);
                return good ? ConsumeOrderlyStatus.SUCCESS : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                boolean good = true;
                for (MessageExt one : messages) {
                    good &= take(one);
                }
                return good ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
        }
        consumer.start();
        int wanted = Integer.parseInt(arguments[3]), quiet = 0;
        for (int i = 0; i < 600 && quiet < 20; i++) {
            Thread.sleep(100);
            quiet = SEEN.values().stream().filter(one -> !one.endsWith("f")).count() >= wanted ? quiet + 1 : 0;
        }
        consumer.shutdown();
        new TreeMap<>(SEEN).forEach((body, deliveries) -> System.out.println("got " + body + " " + deliveries));
        System.out.println("done");
        System.exit(0);
    }

    /** "f" for each failed delivery, then the count that the message has. */
    static boolean take(MessageExt message) {
        String body = new String(message.getBody(), StandardCharsets.UTF_8);
        boolean fails = body.endsWith("fails") && !SEEN.containsKey(body);
        SEEN.merge(body, fails ? "f" : String.valueOf(message.getReconsumeTimes()), String::concat);
        return !fails;
    }
}
