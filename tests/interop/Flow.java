import java.nio.charset.StandardCharsets;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** Arguments: name servers, topic, group, count. Sends count messages and receives each of them; the topic is made at need. */
public class Flow {
    public static void main(String[] arguments) throws Exception {
        // A client's threads would keep the process alive behind a main that failed.
        Thread.currentThread().setUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        });
        String namesrv = arguments[0], topic = arguments[1], group = arguments[2];
        int count = Integer.parseInt(arguments[3]);
        DefaultMQProducer producer = new DefaultMQProducer(group + "-producer");
        producer.setNamesrvAddr(namesrv);
        producer.setMqClientApiTimeout(20000);
        producer.setVipChannelEnabled(false);
        producer.start();
        for (int i = 0; i < count; i++) {
            Message message = new Message(topic, "tag", "key" + i, ("body " + i).getBytes(StandardCharsets.UTF_8));
            if (producer.send(message, 20000).getSendStatus() != SendStatus.SEND_OK) {
                throw new IllegalStateException("message " + i + " was not stored");
            }
        }
        System.out.println("sent");
        Set<String> seen = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setMqClientApiTimeout(20000);
        consumer.setVipChannelEnabled(false);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "tag");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(one -> seen.add(new String(one.getBody(), StandardCharsets.UTF_8)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        for (int i = 0; i < 600 && seen.size() < count; i++) {
            Thread.sleep(100);
        }
        consumer.shutdown();
        producer.shutdown();
        if (seen.size() != count) {
            throw new IllegalStateException("received " + seen.size() + " of " + count);
        }
        System.out.println("done");
        System.exit(0);
    }
}
