// The official Java SDK (rocketmq-client-java 5.x) against a broker: every kind of message and of consumer.
// Arguments: endpoints, then the access key and the secret where there are any, then "tls", which 5.0.0 always wants.
// Prints a line for each proof, then "done". What 5.0.0 does not have is called by reflection.

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import org.apache.rocketmq.client.apis.*;
import org.apache.rocketmq.client.apis.consumer.*;
import org.apache.rocketmq.client.apis.message.*;
import org.apache.rocketmq.client.apis.producer.*;

public class GrpcSdk {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    static final boolean CAN_RECALL = Arrays.stream(Producer.class.getMethods()).anyMatch(method -> method.getName().equals("recallMessage"));
    static ClientConfiguration configuration;

    static String text(MessageView view) {
        return StandardCharsets.UTF_8.decode(view.getBody().duplicate()).toString();
    }

    static MessageBuilder message(String topic, String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setKeys("key-" + body).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    static void expect(Object wanted, Object found, String what) {
        if (!wanted.equals(found)) throw new AssertionError(what + ": expected " + wanted + ", found " + found);
        System.out.println(what + ": " + found);
    }

    static PushConsumer push(String group, String topic, FilterExpression filter, MessageListener listener) throws Exception {
        return PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
            .setSubscriptionExpressions(Map.of(topic, filter)).setMessageListener(listener).build();
    }

    static SimpleConsumer simple(String group, String topic) throws Exception {
        return PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
            .setAwaitDuration(Duration.ofSeconds(5)).setSubscriptionExpressions(Map.of(topic, FilterExpression.SUB_ALL)).build();
    }

    static void await(String what, Callable<Boolean> condition) throws Exception {
        long until = System.nanoTime() + 60_000_000_000L;
        while (!condition.call()) {
            if (System.nanoTime() > until) throw new AssertionError(what + ": not within a minute");
            Thread.sleep(20);
        }
    }

    public static void main(String[] args) throws Exception {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder().setEndpoints(args[0]);
        if (args.length < 4) ClientConfigurationBuilder.class.getMethod("enableSsl", boolean.class).invoke(builder, false);
        if (args.length > 2 && !args[1].isEmpty()) builder.setCredentialProvider(new StaticSessionCredentialsProvider(args[1], args[2]));
        configuration = builder.build();
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace(System.out);
            System.exit(1);
        });
        normal();
        filters();
        fifo();
        delay();
        transactions();
        retries();
        simpleConsumer();
        System.out.println("done");
        System.exit(0);
    }

    static void normal() throws Exception {
        Set<String> bodies = ConcurrentHashMap.newKeySet();
        PushConsumer consumer = push("push-normal", "normal", FilterExpression.SUB_ALL, view -> {
            bodies.add(text(view) + view.getProperties().get("colour"));
            return ConsumeResult.SUCCESS;
        });
        Thread.sleep(3000);
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics("normal").build();
        for (int i = 0; i < 50; i++) producer.send(message("normal", "n" + i).setTag("t").addProperty("colour", "red").build());
        List<CompletableFuture<SendReceipt>> sent = new ArrayList<>();
        for (int i = 50; i < 100; i++) sent.add(producer.sendAsync(message("normal", "n" + i).addProperty("colour", "red").build()));
        for (CompletableFuture<SendReceipt> receipt : sent) receipt.get();
        await("normal", () -> bodies.size() == 100);
        expect(100, bodies.size(), "normal messages by a push consumer");
        expect(true, bodies.contains("n99red"), "with properties");
        producer.close();
    }

    static void filters() throws Exception {
        Set<String> tagged = ConcurrentHashMap.newKeySet(), big = ConcurrentHashMap.newKeySet();
        PushConsumer byTag = push("push-tag", "filtered", new FilterExpression("a || b", FilterExpressionType.TAG), view -> {
            tagged.add(text(view));
            return ConsumeResult.SUCCESS;
        });
        PushConsumer bySql = push("push-sql", "filtered", new FilterExpression("size > 5", FilterExpressionType.SQL92), view -> {
            big.add(text(view));
            return ConsumeResult.SUCCESS;
        });
        Thread.sleep(3000);
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics("filtered").build();
        for (int i = 0; i < 10; i++) {
            producer.send(message("filtered", "f" + i).setTag(i % 2 == 0 ? "a" : "c").addProperty("size", "" + i).build());
        }
        await("filters", () -> tagged.size() == 5 && big.size() == 4);
        expect(new TreeSet<>(Set.of("f0", "f2", "f4", "f6", "f8")), new TreeSet<>(tagged), "by tag");
        expect(new TreeSet<>(Set.of("f6", "f7", "f8", "f9")), new TreeSet<>(big), "by SQL92");
        producer.close();
    }

    static void fifo() throws Exception {
        Map<String, List<String>> order = new ConcurrentHashMap<>();
        PushConsumer consumer = push("push-fifo", "fifo", FilterExpression.SUB_ALL, view -> {
            order.computeIfAbsent(view.getMessageGroup().orElse(""), key -> Collections.synchronizedList(new ArrayList<>())).add(text(view));
            return ConsumeResult.SUCCESS;
        });
        Thread.sleep(3000);
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics("fifo").build();
        for (int i = 0; i < 20; i++) for (String group : List.of("g1", "g2")) {
            producer.send(message("fifo", group + "-" + i).setMessageGroup(group).build());
        }
        await("fifo", () -> order.values().stream().mapToInt(List::size).sum() >= 40);
        for (String group : List.of("g1", "g2")) {
            List<String> wanted = new ArrayList<>();
            for (int i = 0; i < 20; i++) wanted.add(group + "-" + i);
            expect(wanted, order.get(group), "order of " + group);
        }
        producer.close();
    }

    static void delay() throws Exception {
        Map<String, Long> times = new ConcurrentHashMap<>();
        PushConsumer consumer = push("push-delay", "delay", FilterExpression.SUB_ALL, view -> {
            times.put(text(view), System.currentTimeMillis());
            return ConsumeResult.SUCCESS;
        });
        Thread.sleep(3000);
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics("delay").build();
        long due = System.currentTimeMillis() + 3000;
        producer.send(message("delay", "due").setDeliveryTimestamp(due).build());
        if (CAN_RECALL) {
            SendReceipt recalled = producer.send(message("delay", "recalled").setDeliveryTimestamp(due + 2000).build());
            Object handle = SendReceipt.class.getMethod("getRecallHandle").invoke(recalled);
            Producer.class.getMethod("recallMessage", String.class, String.class).invoke(producer, "delay", handle);
        }
        await("delay", () -> times.containsKey("due"));
        expect(true, times.get("due") >= due - 1000, "a delayed message is not early");
        if (CAN_RECALL) Thread.sleep(4000);
        expect(false, times.containsKey("recalled"), "a recalled message comes");
        producer.close();
    }

    static void transactions() throws Exception {
        Set<String> bodies = ConcurrentHashMap.newKeySet();
        PushConsumer consumer = push("push-transaction", "transaction", FilterExpression.SUB_ALL, view -> {
            bodies.add(text(view));
            return ConsumeResult.SUCCESS;
        });
        Thread.sleep(3000);
        Set<String> asked = ConcurrentHashMap.newKeySet();
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics("transaction")
            .setTransactionChecker(view -> {
                asked.add(text(view));
                return text(view).equals("orphan") ? TransactionResolution.COMMIT : TransactionResolution.ROLLBACK;
            }).build();
        for (String body : List.of("committed", "rolled back", "orphan", "orphan rolled back")) {
            Transaction transaction = producer.beginTransaction();
            producer.send(message("transaction", body).build(), transaction);
            if (body.equals("committed")) transaction.commit();
            if (body.equals("rolled back")) transaction.rollback();
        }
        await("transactions", () -> bodies.size() == 2 && asked.size() == 2);
        expect(new TreeSet<>(Set.of("committed", "orphan")), new TreeSet<>(bodies), "committed transactions");
        producer.close();
    }

    static void retries() throws Exception {
        Map<String, Integer> attempts = new ConcurrentHashMap<>();
        PushConsumer consumer = push("push-retry", "retried", FilterExpression.SUB_ALL, view -> {
            attempts.merge(text(view), 1, Integer::sum);
            return view.getDeliveryAttempt() < 2 ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        });
        Thread.sleep(3000);
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics("retried").build();
        producer.send(message("retried", "twice").build());
        await("retries", () -> attempts.getOrDefault("twice", 0) >= 2);
        expect(2, attempts.get("twice"), "deliveries of a message that failed once");
        producer.close();
    }

    static void simpleConsumer() throws Exception {
        SimpleConsumer consumer = simple("simple", "simple");
        consumer.receive(1, Duration.ofSeconds(10));
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics("simple").build();
        for (int i = 0; i < 10; i++) producer.send(message("simple", "s" + i).build());
        Set<String> bodies = new TreeSet<>();
        boolean changed = false;
        long until = System.nanoTime() + 60_000_000_000L;
        while (bodies.size() < 10 && System.nanoTime() < until) {
            for (MessageView view : consumer.receive(32, Duration.ofSeconds(10))) {
                if (text(view).equals("s5") && !changed) {
                    changed = true;
                    consumer.changeInvisibleDuration(view, Duration.ofSeconds(1));
                    continue;
                }
                bodies.add(text(view));
                consumer.ack(view);
            }
        }
        expect(10, bodies.size(), "messages by a simple consumer");
        expect(0, consumer.receive(32, Duration.ofSeconds(10)).size(), "messages after all acks");
        producer.close();
        consumer.close();
    }
}
