import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** Arguments: name servers, topic, port. A producer and a consumer with their own settings but for a time-out of 2 s; each
 * line from the port is a body to send, answered by "STATUS milliseconds" or "Exception code milliseconds"; each message
 * that comes is told as "got body". The end of the input ends it. */
public class Meets {
    public static void main(String[] arguments) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("meets-producer");
        producer.setNamesrvAddr(arguments[0]);
        producer.setSendMsgTimeout(2000);
        producer.start();
        try (Socket socket = new Socket("127.0.0.1", Integer.parseInt(arguments[2]))) {
            BufferedReader in = new BufferedReader(new InputStreamReader(socket.getInputStream(), StandardCharsets.UTF_8));
            PrintStream out = new PrintStream(socket.getOutputStream(), true, "UTF-8");
            DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("meets-consumer");
            consumer.setNamesrvAddr(arguments[0]);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.subscribe(arguments[1], "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(one -> out.println("got " + new String(one.getBody(), StandardCharsets.UTF_8)));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            out.println("started");
            for (String line = in.readLine(); line != null; line = in.readLine()) {
                long begin = System.nanoTime();
                String outcome;
                try {
                    SendResult result = producer.send(new Message(arguments[1], line.getBytes(StandardCharsets.UTF_8)));
                    outcome = result.getSendStatus().name();
                } catch (MQBrokerException error) {
                    outcome = "MQBrokerException " + error.getResponseCode();
                } catch (MQClientException error) {
                    outcome = "MQClientException " + error.getResponseCode();
                } catch (Exception error) {
                    outcome = error.getClass().getSimpleName() + " -1";
                }
                out.println(outcome + " " + (System.nanoTime() - begin) / 1_000_000);
            }
        }
        System.exit(0);
    }
}
