// The clients of the golden stores: each action sends what one case holds, and says so line by line on stdout.
// Room: tests/golden/make. It talks to the name server it was given and to nobody else, and every loop has an end.
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.TopicFilterType;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.compression.CompressorFactory;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

public final class Client {
    private static final Random RANDOM = new Random(55);
    private static final String LONG_NAME = "L" + "x".repeat(126);
    private static String namesrv;
    private static String broker;

    public static void main(String[] args) throws Exception {
        namesrv = args[0];
        broker = args[1];
        switch (args[2]) {
            case "normal":
                normal();
                break;
            case "plain":
                plain(Integer.parseInt(args[3]), Integer.parseInt(args[4]));
                break;
            case "kill":
                kill(Integer.parseInt(args[3]));
                break;
            case "batch":
                batchQueue();
                break;
            case "timer":
                timer();
                break;
            default:
                throw new IllegalArgumentException(args[2]);
        }
        System.out.println("done");
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    // --- what all of them use ----------------------------------------------------------------------------------

    private static void topic(DefaultMQAdminExt admin, String name, int queues, TopicFilterType type, String queueType) throws Exception {
        TopicConfig config = new TopicConfig(name);
        config.setReadQueueNums(queues);
        config.setWriteQueueNums(queues);
        config.setTopicFilterType(type);
        if (queueType != null) {
            config.setAttributes(new HashMap<>(Map.of("+queue.type", queueType)));
        }
        admin.createAndUpdateTopicConfig(broker, config);
    }

    private static DefaultMQAdminExt admin() throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(20_000);
        admin.setNamesrvAddr(namesrv);
        admin.setInstanceName("admin" + System.nanoTime());
        admin.setVipChannelEnabled(false);
        admin.start();
        return admin;
    }

    private static DefaultMQProducer producer(DefaultMQProducer producer) throws Exception {
        producer.setNamesrvAddr(namesrv);
        producer.setInstanceName(producer.getProducerGroup() + System.nanoTime());
        producer.setVipChannelEnabled(false);
        producer.setSendMsgTimeout(20_000);
        producer.start();
        return producer;
    }

    /** Waits until the name server knows the topic, which takes a broker some seconds. */
    private static List<MessageQueue> queues(DefaultMQProducer producer, String topic) throws Exception {
        for (int i = 0; ; i++) {
            try {
                List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
                queues.sort((a, b) -> a.getQueueId() - b.getQueueId());
                return queues;
            } catch (Exception e) {
                if (i == 200) {
                    throw e;
                }
                Thread.sleep(200);
            }
        }
    }

    private static SendResult send(DefaultMQProducer producer, Message message, int queue) throws Exception {
        List<MessageQueue> queues = queues(producer, message.getTopic());
        return producer.send(message, queues.get(queue % queues.size()));
    }

    private static byte[] body(String text, int size) {
        byte[] body = new byte[Math.max(size, text.length() + 1)];
        Arrays.fill(body, (byte) 'a');
        byte[] start = (text + ":").getBytes(StandardCharsets.UTF_8);
        System.arraycopy(start, 0, body, 0, start.length);
        return body;
    }

    private static Message message(String topic, String tags, String keys, String text, int size) {
        Message message = new Message(topic, tags, keys, body(text, size));
        if (tags == null) {
            MessageAccessor.clearProperty(message, MessageConst.PROPERTY_TAGS);
        }
        return message;
    }

    // --- plain: PlainA with two queues and PlainB with one, messages numbered from `first` on ---------------------

    private static void plain(int first, int count) throws Exception {
        DefaultMQAdminExt admin = admin();
        if (first == 0) {
            topic(admin, "PlainA", 2, TopicFilterType.SINGLE_TAG, null);
            topic(admin, "PlainB", 1, TopicFilterType.SINGLE_TAG, null);
        }
        DefaultMQProducer producer = producer(new DefaultMQProducer("pg_plain"));
        for (int i = first; i < first + count; i++) {
            String topic = i % 3 == 0 ? "PlainB" : "PlainA";
            String tags = i % 5 == 0 ? null : new String[] {"TagA", "TagB", "标签"}[i % 3];
            send(producer, message(topic, tags, i % 4 == 0 ? null : "p" + i % 20, "plain " + i, i % 7 * 60), i / 2);
        }
        System.out.println("sent " + count);
    }

    // --- kill: sends until somebody kills the broker, or a minute is over ------------------------------------------

    private static void kill(int most) throws Exception {
        DefaultMQAdminExt admin = admin();
        topic(admin, "KillA", 3, TopicFilterType.SINGLE_TAG, null);
        topic(admin, "KillB", 1, TopicFilterType.SINGLE_TAG, null);
        DefaultMQProducer producer = producer(new DefaultMQProducer("pg_kill"));
        producer.setRetryTimesWhenSendFailed(0);
        producer.setSendMsgTimeout(2000);
        long end = System.currentTimeMillis() + 60_000;
        for (int i = 0; i < most && System.currentTimeMillis() < end; i++) {
            Message message = message(i % 3 == 2 ? "KillB" : "KillA", i % 4 == 0 ? null : "k" + i % 3, "ka" + i % 50, "kill " + i, i % 9 * 50);
            if (i % 25 == 7) {
                message.setDelayTimeLevel(1 + i % 2);
            }
            send(producer, message, i);
            System.out.println("sent " + (i + 1));
            System.out.flush();
            Thread.sleep(5);
        }
    }

    // --- batch: a topic whose queue has 46-byte units --------------------------------------------------------------

    private static void batchQueue() throws Exception {
        DefaultMQAdminExt admin = admin();
        topic(admin, "BatchCqTopic", 1, TopicFilterType.SINGLE_TAG, "BatchCQ");
        topic(admin, "PlainA", 2, TopicFilterType.SINGLE_TAG, null);
        DefaultMQProducer producer = producer(new DefaultMQProducer("pg_batch"));
        producer.setAutoBatch(false);
        for (int i = 0; i < 12; i++) {
            MessageQueue queue = queues(producer, "BatchCqTopic").get(0);
            if (i % 4 == 3) {
                producer.send(message("BatchCqTopic", "single", "bs" + i, "single " + i, 40), queue);
                continue;
            }
            List<Message> batch = new ArrayList<>();
            for (int k = 0; k < 2 + i; k++) {
                batch.add(message("BatchCqTopic", "inner", "bi" + i, "inner " + i + "." + k, 30));
            }
            producer.send(batch, queue);
        }
        for (int i = 0; i < 6; i++) {
            send(producer, message("PlainA", "TagA", "p" + i, "beside " + i, 50), i);
        }
    }

    // --- timer: arbitrary delays ------------------------------------------------------------------------------------

    private static void timer() throws Exception {
        DefaultMQAdminExt admin = admin();
        topic(admin, "TimerTopic", 1, TopicFilterType.SINGLE_TAG, null);
        topic(admin, "PlainA", 2, TopicFilterType.SINGLE_TAG, null);
        DefaultMQProducer producer = producer(new DefaultMQProducer("pg_timer"));
        queues(producer, "TimerTopic");
        for (int i = 0; i < 4; i++) {
            Message soon = message("TimerTopic", "soon", "soon" + i, "soon " + i, 20);
            soon.setDelayTimeMs(2000 + i * 700L);
            send(producer, soon, 0);
        }
        long slot = (System.currentTimeMillis() / 1000 + 3600) * 1000;
        for (int i = 0; i < 4; i++) {
            Message same = message("TimerTopic", "slot", "slot" + i, "slot " + i, 20);
            same.setDeliverTimeMs(slot + i * 100L);
            send(producer, same, 0);
        }
        List<String> unique = new ArrayList<>();
        long deleted = slot + 3_600_000;
        for (int i = 0; i < 4; i++) {
            Message one = message("TimerTopic", "delete", "delete" + i, "delete " + i, 20);
            one.setDeliverTimeMs(deleted);
            unique.add(send(producer, one, 0).getMsgId());
        }
        Message delete = message("TimerTopic", null, null, "the delete", 20);
        delete.setDeliverTimeMs(deleted);
        delete.putUserProperty("why", "taken back");
        MessageAccessor.putProperty(delete, MessageConst.PROPERTY_TIMER_DEL_UNIQKEY, unique.get(1));
        send(producer, delete, 0);
        for (int i = 0; i < 4; i++) {
            Message day = message("TimerTopic", "day", "day" + i, "day " + i, 20);
            day.setDelayTimeSec(86_400 + 10 + i);
            send(producer, day, 0);
        }
        for (int i = 0; i < 4; i++) {
            Message beyond = message("TimerTopic", "roll", "roll" + i, "roll " + i, 20);
            beyond.setDeliverTimeMs(System.currentTimeMillis() + 259_200_000 - 60_000);
            send(producer, beyond, 0);
        }
        for (int i = 0; i < 4; i++) {
            Message past = message("TimerTopic", "past", "past" + i, "past " + i, 20);
            past.setDeliverTimeMs(System.currentTimeMillis() - 1000 - i);
            send(producer, past, 0);
        }
        for (int i = 0; i < 6; i++) {
            send(producer, message("PlainA", "TagA", "p" + i, "beside " + i, 50), i);
        }
        Thread.sleep(12_000); // those that are due are delivered
    }

    // --- normal: everything that a broker does with messages ---------------------------------------------------------

    private static void normal() throws Exception {
        DefaultMQAdminExt admin = admin();
        Map<String, Integer> topics = new HashMap<>();
        topics.put("TopicA", 4);
        topics.put("TopicB", 1);
        topics.put(LONG_NAME, 1);
        topics.put("Topic_with-dash|bar%pct", 2);
        topics.put("PropTopic", 1);
        topics.put("BigTopic", 1);
        topics.put("BatchTopic", 2);
        topics.put("OrderTopic", 4);
        topics.put("CompressTopic", 2);
        topics.put("DelayTopic", 2);
        topics.put("RetryTopic", 1);
        topics.put("TxTopic", 2);
        for (Map.Entry<String, Integer> entry : topics.entrySet()) {
            topic(admin, entry.getKey(), entry.getValue(), TopicFilterType.SINGLE_TAG, null);
        }
        topic(admin, "MultiTagTopic", 1, TopicFilterType.MULTI_TAG, null);
        DefaultMQProducer producer = producer(new DefaultMQProducer("pg_normal"));
        producer.setCompressMsgBodyOverHowmuch(1 << 22);

        DefaultMQPushConsumer retry = consumer("cg_retry", "RetryTopic", "*");
        retry.setMaxReconsumeTimes(2);
        retry.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
            ("again".equals(messages.get(0).getTags()) || messages.get(0).getReconsumeTimes() > 0)
                ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        retry.start();
        queues(producer, "RetryTopic");
        for (int i = 0; i < 3; i++) {
            send(producer, message("RetryTopic", i == 1 ? "again" : "fine", "r" + i, "retry " + i, 30), 0);
        }

        String[] tags = {"TagA", "TagB", "标签", "\uD83D\uDE00", null, "Aa", "BB"};
        String[] keys = {"k1", "k2 k3", "Aa0", "same same", null, "k" + "z".repeat(40)};
        for (int i = 0; i < 110; i++) {
            Message message = message(i % 5 == 4 ? "TopicB" : "TopicA", tags[i % tags.length], keys[i % keys.length], "normal " + i, i % 11 * 30);
            message.setFlag(i % 3);
            if (i % 13 == 0) {
                message.setWaitStoreMsgOK(false);
            }
            send(producer, message, i);
        }
        send(producer, message(LONG_NAME, "TagA", "long", "long name", 10), 0);
        for (int i = 0; i < 4; i++) {
            send(producer, message("Topic_with-dash|bar%pct", "x", "n" + i, "name " + i, 10), i);
            send(producer, message("MultiTagTopic", i == 0 ? "a || b" : "m" + i, "m" + i, "multi " + i, 10), 0);
            Message order = message("OrderTopic", "o", "o" + i, "order " + i, 10);
            order.putUserProperty("__SHARDINGKEY", "s" + i % 2);
            send(producer, order, i % 2);
        }
        Message many = message("PropTopic", "p", "prop", "sixty", 10);
        for (int i = 0; i < 60; i++) {
            many.putUserProperty("name" + i, "wert-ü" + i);
        }
        send(producer, many, 0);
        Message large = message("PropTopic", null, null, "large", 10);
        large.putUserProperty("large", "v".repeat(8000));
        send(producer, large, 0);
        send(producer, message("BigTopic", "big", "big0", "big", 1), 0);
        send(producer, message("BigTopic", "big", "big1", "big", 70_000), 0);
        producer.sendOneway(message("BigTopic", null, "oneway", "one way", 20), queues(producer, "BigTopic").get(0));
        for (int i = 0; i < 3; i++) {
            List<Message> batch = new ArrayList<>();
            for (int k = 0; k < 10; k++) {
                Message element = message("BatchTopic", "b" + i, "bk" + k, "batch " + i + "." + k, 20);
                element.setFlag(k);
                batch.add(element);
            }
            producer.send(batch, queues(producer, "BatchTopic").get(i % 2));
        }
        for (CompressionType type : CompressionType.values()) {
            DefaultMQProducer other = new DefaultMQProducer("pg_" + type);
            other.setCompressMsgBodyOverHowmuch(100);
            other.setCompressType(type);
            producer(other);
            for (int i = 0; i < 2; i++) {
                send(other, message("CompressTopic", type.name(), "c" + type, "compressed " + i, 3000), i);
            }
            other.shutdown();
        }
        int[] levels = {1, 1, 1, 2, 3, 18, 99};
        for (int level : levels) {
            Message delayed = message("DelayTopic", level == 99 ? "capped" : "level" + level, "d" + level, "delayed " + level, 20);
            delayed.setDelayTimeLevel(level);
            send(producer, delayed, level);
        }
        transactions();
        DefaultMQPushConsumer all = consumer("cg_all", "TopicA", "*");
        AtomicInteger seen = new AtomicInteger();
        all.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            seen.addAndGet(messages.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        all.start();
        DefaultMQPushConsumer tag = consumer("cg_tag", "TopicB", "TagA || TagB");
        tag.registerMessageListener((MessageListenerConcurrently) (messages, context) -> ConsumeConcurrentlyStatus.CONSUME_SUCCESS);
        tag.start();
        DefaultMQPushConsumer order = consumer("cg_order", "OrderTopic", "*");
        order.registerMessageListener((MessageListenerOrderly) (messages, context) -> ConsumeOrderlyStatus.SUCCESS);
        order.start();
        Thread.sleep(60_000); // retries after 10 s and 30 s, then the dead letter; checks of transactions
        System.out.println("consumed " + seen);
        for (DefaultMQPushConsumer consumer : List.of(retry, all, tag, order)) {
            consumer.shutdown(); // persists its offsets
        }
    }

    private static DefaultMQPushConsumer consumer(String group, String topic, String tags) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setInstanceName(group + System.nanoTime());
        consumer.setVipChannelEnabled(false);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, tags);
        return consumer;
    }

    /** Committed, rolled back, checked and then committed, checked and then rolled back, never decided. */
    private static void transactions() throws Exception {
        Map<String, Integer> checks = new ConcurrentHashMap<>();
        TransactionMQProducer producer = new TransactionMQProducer("pg_tx");
        producer.setTransactionListener(new TransactionListener() {
            @Override public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                switch (message.getTags()) {
                    case "commit":
                        return LocalTransactionState.COMMIT_MESSAGE;
                    case "rollback":
                        return LocalTransactionState.ROLLBACK_MESSAGE;
                    default:
                        return LocalTransactionState.UNKNOW;
                }
            }

            @Override public LocalTransactionState checkLocalTransaction(MessageExt message) {
                int times = checks.merge(message.getKeys(), 1, Integer::sum);
                switch (message.getTags()) {
                    case "late":
                        return times > 1 ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.UNKNOW;
                    case "undone":
                        return times > 1 ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.UNKNOW;
                    default:
                        return LocalTransactionState.UNKNOW;
                }
            }
        });
        producer(producer);
        queues(producer, "TxTopic");
        for (String tags : List.of("commit", "commit", "commit", "rollback", "late", "undone", "never")) {
            Message message = message("TxTopic", tags, "tx" + RANDOM.nextInt(1000), "transaction " + tags, 20);
            message.setFlag(3);
            producer.sendMessageInTransaction(message, null);
        }
    }

    private Client() {
    }
}
