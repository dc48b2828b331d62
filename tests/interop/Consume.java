import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.BooleanSupplier;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Arguments: name servers, a prefix of topics and groups, and the ways to consume (default: all); each prints its name. */
public class Consume {
    private static String namesrv, prefix;
    private static DefaultMQProducer producer;

    public static void main(String[] arguments) throws Exception {
        namesrv = arguments[0];
        prefix = arguments[1];
        producer = new DefaultMQProducer(prefix + "-producer");
        producer.setNamesrvAddr(namesrv);
        producer.setMqClientApiTimeout(20000);
        producer.setSendMsgTimeout(20000);
        producer.start();
        try {
            run("concurrently", arguments, Consume::concurrently);
            run("orderly", arguments, Consume::orderly);
            run("broadcasting", arguments, Consume::broadcasting);
            run("sql", arguments, Consume::bySql);
            run("pulls", arguments, Consume::pulls);
            run("lite pulls", arguments, Consume::litePulls);
            run("pushed", arguments, Consume::pushed);
        } catch (Throwable failure) {
            failure.printStackTrace();
            System.exit(1);
        }
        producer.shutdown();
        System.out.println("done");
        System.exit(0);
    }

    private interface Way {
        void go() throws Exception;
    }

    private static void run(String name, String[] arguments, Way way) throws Exception {
        if (arguments.length < 3 || Arrays.asList(arguments).indexOf(name) >= 2) {
            way.go();
            System.out.println(name);
        }
    }

    private static void check(boolean right, Object found) {
        if (!right) {
            throw new IllegalStateException("found " + found);
        }
    }

    private static void await(BooleanSupplier done, java.util.function.Supplier<Object> found) throws Exception {
        for (int i = 0; i < 1200 && !done.getAsBoolean(); i++) {
            Thread.sleep(50);
        }
        check(done.getAsBoolean(), found.get());
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private static void send(String topic, int count) throws Exception {
        for (int i = 0; i < count; i++) {
            Message message = new Message(topic, i % 3 == 0 ? "A" : i % 3 == 1 ? "B" : "C", "key" + i, bytes("body " + i));
            message.putUserProperty("number", String.valueOf(i));
            check(producer.send(message).getSendStatus() == SendStatus.SEND_OK, i);
        }
    }

    private static DefaultMQPushConsumer push(String group, String instance) {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setMqClientApiTimeout(20000);
        consumer.setInstanceName(instance);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        return consumer;
    }

    private static void onEach(DefaultMQPushConsumer consumer, java.util.function.Consumer<MessageExt> what) {
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(what);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
    }

    /** Tags; a consumer of the same group goes on where the first one ended. */
    private static void concurrently() throws Exception {
        String topic = prefix + "-tags", group = prefix + "-concurrent";
        send(topic, 90);
        Map<String, Integer> seen = new ConcurrentHashMap<>();
        for (int round = 1; round <= 2; round++) {
            DefaultMQPushConsumer consumer = push(group, "concurrent" + round);
            consumer.subscribe(topic, "A || B");
            onEach(consumer, message -> seen.merge(text(message) + message.getTags(), 1, Integer::sum));
            consumer.start();
            int expected = 60 * round;
            await(() -> seen.values().stream().mapToInt(Integer::intValue).sum() >= expected, seen::size);
            consumer.shutdown();
            if (round == 1) {
                for (int i = 90; i < 180; i++) {
                    producer.send(new Message(topic, i % 3 == 0 ? "A" : i % 3 == 1 ? "B" : "C", bytes("body " + i)));
                }
            }
        }
        check(seen.size() == 120 && Collections.max(seen.values()) == 1, seen);
        check(seen.keySet().stream().noneMatch(name -> name.endsWith("C")), seen);
    }

    private static void orderly() throws Exception {
        String topic = prefix + "-order";
        send(topic, 1);
        for (int i = 0; i < 200; i++) {
            producer.send(new Message(topic, "T", bytes(i % 10 + ":" + i / 10)),
                (queues, message, key) -> queues.get((Integer) key % queues.size()), i % 10);
        }
        Map<String, List<Integer>> seen = new HashMap<>();
        AtomicInteger count = new AtomicInteger();
        DefaultMQPushConsumer consumer = push(prefix + "-orderly", "orderly");
        consumer.subscribe(topic, "T");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                String[] parts = text(message).split(":");
                synchronized (seen) {
                    seen.computeIfAbsent(parts[0], name -> new ArrayList<>()).add(Integer.valueOf(parts[1]));
                }
                count.incrementAndGet();
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        await(() -> count.get() >= 200, count::get);
        consumer.shutdown();
        check(count.get() == 200 && seen.size() == 10, count);
        for (List<Integer> numbers : seen.values()) {
            for (int i = 0; i < 20; i++) {
                check(numbers.get(i) == i, numbers);
            }
        }
    }

    private static void broadcasting() throws Exception {
        String topic = prefix + "-broadcast";
        send(topic, 30);
        List<Set<String>> seen = Arrays.asList(ConcurrentHashMap.newKeySet(), ConcurrentHashMap.newKeySet());
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            DefaultMQPushConsumer consumer = push(prefix + "-all", "all" + i);
            // The class of the model has moved between releases.
            for (java.lang.reflect.Method method : DefaultMQPushConsumer.class.getMethods()) {
                if (method.getName().equals("setMessageModel")) {
                    method.invoke(consumer, method.getParameterTypes()[0].getField("BROADCASTING").get(null));
                }
            }
            consumer.subscribe(topic, "*");
            Set<String> mine = seen.get(i);
            onEach(consumer, message -> mine.add(text(message)));
            consumer.start();
            consumers.add(consumer);
        }
        await(() -> seen.get(0).size() == 30 && seen.get(1).size() == 30, seen::toString);
        consumers.forEach(DefaultMQPushConsumer::shutdown);
    }

    private static void bySql() throws Exception {
        String topic = prefix + "-sql";
        send(topic, 60);
        Set<Integer> seen = Collections.synchronizedSet(new TreeSet<>());
        DefaultMQPushConsumer consumer = push(prefix + "-sql", "sql");
        consumer.subscribe(topic, MessageSelector.bySql("(TAGS IN ('A', 'B') AND number BETWEEN 10 AND 20) OR number = 59"));
        onEach(consumer, message -> seen.add(Integer.valueOf(message.getUserProperty("number"))));
        consumer.start();
        List<Integer> expected = Arrays.asList(10, 12, 13, 15, 16, 18, 19, 59);
        await(() -> seen.size() >= expected.size(), seen::toString);
        Message late = new Message(topic, "A", bytes("late"));
        late.putUserProperty("number", "15");
        seen.remove(15);
        producer.send(late);
        await(() -> seen.contains(15), seen::toString);
        consumer.shutdown();
        check(new ArrayList<>(seen).equals(expected), seen);
        DefaultMQPushConsumer wrong = push(prefix + "-wrong", "wrong");
        wrong.subscribe(topic, MessageSelector.bySql("number >"));
        onEach(wrong, message -> { });
        try {
            wrong.start();
            check(false, "a consumer with an expression that is none");
        } catch (MQClientException refused) {
            check(refused.getResponseCode() == 23 || String.valueOf(refused).contains("CODE: 23"), refused);
        }
    }

    @SuppressWarnings("deprecation")
    private static void pulls() throws Exception {
        String topic = prefix + "-pull";
        long before = System.currentTimeMillis();
        send(topic, 40);
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(prefix + "-puller");
        consumer.setNamesrvAddr(namesrv);
        consumer.setMqClientApiTimeout(20000);
        consumer.setInstanceName("puller");
        consumer.start();
        int found = 0;
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
            long end = consumer.maxOffset(queue);
            check(consumer.minOffset(queue) == 0, queue);
            check(consumer.searchOffset(queue, before - 1000) == 0, queue);
            check(end == 0 || Math.abs(consumer.earliestMsgStoreTime(queue) - before) < 60000, queue);
            long at = 0;
            while (at < end) {
                PullResult result = consumer.pull(queue, "A", at, 5);
                check(result.getPullStatus() == PullStatus.FOUND || result.getPullStatus() == PullStatus.NO_MATCHED_MSG, result);
                check(result.getMaxOffset() == end && result.getMinOffset() == 0, result);
                found += result.getMsgFoundList() == null ? 0 : result.getMsgFoundList().size();
                at = result.getNextBeginOffset();
            }
            check(consumer.pull(queue, "*", end, 5).getPullStatus() == PullStatus.NO_NEW_MSG, queue);
            check(consumer.pull(queue, "*", end + 10, 5).getPullStatus() == PullStatus.OFFSET_ILLEGAL, queue);
            consumer.updateConsumeOffset(queue, end);
            consumer.getOffsetStore().persistAll(Collections.singleton(queue));
            for (int i = 0; i < 100 && consumer.fetchConsumeOffset(queue, true) != end; i++) {
                Thread.sleep(20); // the client's one-way request may go out behind the next one
            }
            check(consumer.fetchConsumeOffset(queue, true) == end, queue);
        }
        check(found == 14, found);
        MessageQueue queue = consumer.fetchSubscribeMessageQueues(topic).iterator().next();
        long end = consumer.maxOffset(queue);
        Thread sender = new Thread(() -> {
            try {
                Thread.sleep(300);
                producer.send(new Message(topic, "A", bytes("held")), queue);
            } catch (Exception failure) {
                failure.printStackTrace();
            }
        });
        sender.start();
        PullResult held = consumer.pullBlockIfNotFound(queue, "*", end, 5);
        check(held.getPullStatus() == PullStatus.FOUND && text(held.getMsgFoundList().get(0)).equals("held"), held);
        sender.join();
        consumer.shutdown();
    }

    private static void litePulls() throws Exception {
        String topic = prefix + "-lite";
        send(topic, 50);
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(prefix + "-lite");
        consumer.setNamesrvAddr(namesrv);
        consumer.setMqClientApiTimeout(20000);
        consumer.setInstanceName("lite");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.start();
        Set<String> seen = new TreeSet<>();
        for (int i = 0; i < 60 && seen.size() < 50; i++) {
            consumer.poll(1000).forEach(message -> seen.add(text(message)));
        }
        check(seen.size() == 50, seen);
        consumer.shutdown();
        DefaultLitePullConsumer other = new DefaultLitePullConsumer(prefix + "-lite2");
        other.setNamesrvAddr(namesrv);
        other.setMqClientApiTimeout(20000);
        other.setInstanceName("lite2");
        other.start();
        MessageQueue queue = other.fetchMessageQueues(topic).stream().min(MessageQueue::compareTo).get();
        other.assign(Collections.singletonList(queue));
        other.seek(queue, 3);
        List<MessageExt> found = new ArrayList<>();
        // The group is new, so that the first message comes only by the seek; a pull may be under way before.
        for (int i = 0; i < 30 && found.stream().noneMatch(m -> m.getQueueOffset() == 3); i++) {
            found.addAll(other.poll(1000));
        }
        check(found.stream().anyMatch(m -> m.getQueueOffset() == 3), found);
        other.shutdown();
    }

    /** How soon a waiting consumer has its message. */
    private static void pushed() throws Exception {
        String topic = prefix + "-pushed";
        send(topic, 1);
        Map<String, Long> arrived = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = push(prefix + "-pushed", "pushed");
        consumer.subscribe(topic, "*");
        onEach(consumer, message -> arrived.put(text(message), System.nanoTime()));
        consumer.start();
        await(() -> arrived.size() == 1, arrived::size);
        Thread.sleep(2000);
        List<Long> waits = new ArrayList<>();
        for (int i = 0; i < 200; i++) {
            String name = "pushed " + i;
            long began = System.nanoTime();
            producer.send(new Message(topic, "A", bytes(name)));
            await(() -> arrived.containsKey(name), () -> name);
            waits.add((arrived.get(name) - began) / 1000);
        }
        consumer.shutdown();
        Collections.sort(waits);
        System.out.println("pushed after us: p50 " + waits.get(100) + " p99 " + waits.get(197));
    }
}
