import java.io.File;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** Arguments: name servers, topic, group, file. A producer and a consumer that stay until the file is there; "ready" is
 * printed once the consumer has its first message; it commits its offsets every second. */
public class Stay {
    public static void main(String[] arguments) throws Exception {
        // A client's threads would keep the process alive behind a main that failed.
        Thread.currentThread().setUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        });
        String namesrv = arguments[0], topic = arguments[1], group = arguments[2];
        DefaultMQProducer producer = new DefaultMQProducer(group + "-producer");
        producer.setNamesrvAddr(namesrv);
        producer.setMqClientApiTimeout(20000);
        producer.setInstanceName("stay");
        producer.start();
        for (int queue = 0; queue < 2; queue++) {
            Message message = new Message(topic, "tag", "key", "body".getBytes(StandardCharsets.UTF_8));
            producer.send(message, (queues, one, at) -> queues.get((Integer) at), queue, 20000);
        }
        CountDownLatch received = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setMqClientApiTimeout(20000);
        consumer.setInstanceName("stay");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPersistConsumerOffsetInterval(1000);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            received.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        received.await();
        System.out.println("ready " + consumer.buildMQClientId());
        while (!new File(arguments[3]).exists()) {
            Thread.sleep(100);
        }
        consumer.shutdown();
        producer.shutdown();
        System.exit(0);
    }
}
