import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * Arguments: name servers, topic. Sends messages for several times, calls two of them back, and receives the others; prints how
 * many came, which ones came before their time, and what was refused.
 */
public class Timed {
    private static final int COUNT = 20;

    public static void main(String[] arguments) throws Exception {
        // A client's threads would keep the process alive behind a main that failed.
        Thread.currentThread().setUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        });
        String namesrv = arguments[0], topic = arguments[1];
        Map<String, Long> seen = new ConcurrentHashMap<>();
        DefaultMQProducer producer = new DefaultMQProducer(topic + "-producer");
        producer.setNamesrvAddr(namesrv);
        producer.setMqClientApiTimeout(20000);
        producer.setSendMsgTimeout(20000);
        producer.start();
        Map<String, Long> due = new ConcurrentHashMap<>();
        for (int i = 0; i < COUNT; i++) {
            send(producer, topic, "m" + i, i % 3, 2000 + 150 * i, due);
        }
        SendResult first = send(producer, topic, "gone0", 0, 7000, due);
        SendResult second = send(producer, topic, "gone1", 2, 8000, due);
        for (SendResult one : new SendResult[] {first, second}) {
            String id = producer.recallMessage(topic, one.getRecallHandle());
            if (!one.getMsgId().equals(id)) {
                throw new IllegalStateException(id + " is not " + one.getMsgId());
            }
        }
        try {
            Message far = new Message(topic, "far".getBytes(StandardCharsets.UTF_8));
            far.setDelayTimeSec(4 * 86400);
            producer.send(far);
            throw new IllegalStateException("four days were taken");
        } catch (MQBrokerException error) {
            System.out.println("refused " + error.getResponseCode());
        }
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(topic + "-group");
        consumer.setNamesrvAddr(namesrv);
        consumer.setMqClientApiTimeout(20000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(one -> seen.put(new String(one.getBody(), StandardCharsets.UTF_8), one.getStoreTimestamp()));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        long last = due.values().stream().mapToLong(Long::longValue).max().getAsLong() + 3000;
        while (System.currentTimeMillis() < last || seen.size() < COUNT) {
            Thread.sleep(100);
            if (System.currentTimeMillis() > last + 60000) {
                break;
            }
        }
        System.out.println("received " + seen.size() + " of them called back " + (seen.keySet().stream().filter(
            one -> one.startsWith("gone")).count()));
        seen.forEach((body, stored) -> {
            if (stored < due.get(body)) {
                System.out.println("early " + body);
            }
        });
        consumer.shutdown();
        producer.shutdown();
        System.out.println("done");
        System.exit(0);
    }

    static SendResult send(DefaultMQProducer producer, String topic, String body, int how, long delay, Map<String, Long> due)
            throws Exception {
        Message message = new Message(topic, body.getBytes(StandardCharsets.UTF_8));
        due.put(body, System.currentTimeMillis() + (how == 1 ? delay / 1000 * 1000 : delay));
        if (how == 0) {
            message.setDelayTimeMs(delay);
        } else if (how == 1) {
            message.setDelayTimeSec(delay / 1000);
        } else {
            message.setDeliverTimeMs(due.get(body));
        }
        SendResult result = producer.send(message);
        if (result.getSendStatus() != SendStatus.SEND_OK || result.getRecallHandle() == null) {
            throw new IllegalStateException(result.toString());
        }
        return result;
    }
}
