// The official Java SDK through kills of the broker: sends and consumes until told to stop.
// Arguments: endpoints. Standard output: "sent BODY" for each send that was answered. At the line "stop" of standard
// input the program sends no more, and waits for every message that was sent: "done COUNT", or "lost BODIES".
// Each fifth message fails at the first delivery.

import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.apis.*;
import org.apache.rocketmq.client.apis.consumer.*;
import org.apache.rocketmq.client.apis.producer.*;

public class GrpcKills {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static final String TOPIC = "kills";

    static boolean send(Producer producer, String body) throws InterruptedException {
        try {
            producer.send(PROVIDER.newMessageBuilder().setTopic(TOPIC).setBody(body.getBytes(StandardCharsets.UTF_8)).build());
            return true;
        } catch (Throwable error) {
            Thread.sleep(100);
            return false;
        }
    }

    public static void main(String[] args) throws Exception {
        ClientConfiguration configuration = ClientConfiguration.newBuilder().setEndpoints(args[0]).enableSsl(false).build();
        Set<String> consumed = ConcurrentHashMap.newKeySet(), failed = ConcurrentHashMap.newKeySet();
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(TOPIC).build();
        send(producer, "first");
        PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup("killed")
            .setSubscriptionExpressions(Map.of(TOPIC, FilterExpression.SUB_ALL)).setMessageListener(view -> {
                String body = StandardCharsets.UTF_8.decode(view.getBody().duplicate()).toString();
                if (body.endsWith("5") && failed.add(body)) return ConsumeResult.FAILURE;
                consumed.add(body);
                return ConsumeResult.SUCCESS;
            }).build();
        while (consumed.isEmpty()) { // a new group begins at the end of the topic
            send(producer, "first");
            Thread.sleep(100);
        }
        Thread reader = new Thread(() -> new Scanner(System.in).nextLine());
        reader.setDaemon(true);
        reader.start();
        Set<String> sent = new TreeSet<>();
        for (int number = 1; reader.isAlive(); number++) {
            if (send(producer, "java-" + number)) {
                sent.add("java-" + number);
                System.out.println("sent java-" + number);
            }
        }
        long until = System.nanoTime() + 120_000_000_000L;
        while (!consumed.containsAll(sent) && System.nanoTime() < until) Thread.sleep(50);
        int count = sent.size();
        sent.removeAll(consumed);
        System.out.println(sent.isEmpty() ? "done " + count : "lost " + sent);
        System.exit(0);
    }
}
