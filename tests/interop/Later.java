import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.function.BooleanSupplier;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Arguments: name server, prefix of all topics and groups. Messages that come again or later, one flow after the other. */
public class Later {
    static String namesrv, prefix;

    static <T extends ClientConfig> T quick(T client) {
        client.setNamesrvAddr(namesrv);
        client.setMqClientApiTimeout(20000);
        client.setVipChannelEnabled(false);
        client.setPollNameServerInterval(500);
        client.setHeartbeatBrokerInterval(500);
        return client;
    }

    static Message message(String topic, String body) {
        return new Message(prefix + topic, "tag", body, body.getBytes(StandardCharsets.UTF_8));
    }

    static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    static DefaultMQPushConsumer consumer(String group, String topic, MessageListenerConcurrently listener) throws Exception {
        DefaultMQPushConsumer consumer = quick(new DefaultMQPushConsumer(group));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.setMaxReconsumeTimes(2);
        consumer.registerMessageListener(listener);
        consumer.start();
        return consumer;
    }

    static void await(String what, BooleanSupplier condition) throws InterruptedException {
        for (int i = 0; i < 900; i++) {
            if (condition.getAsBoolean()) {
                return;
            }
            Thread.sleep(100);
        }
        throw new IllegalStateException("waited in vain for " + what);
    }

    static void expect(boolean isTrue, String what) {
        if (!isTrue) {
            throw new IllegalStateException(what);
        }
    }

    static void delays(DefaultMQProducer producer) throws Exception {
        Map<String, Long> came = new ConcurrentHashMap<>();
        List<String> order = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = consumer(prefix + "delayed", prefix + "Delayed", (messages, context) -> {
            for (MessageExt one : messages) {
                came.put(text(one), one.getStoreTimestamp() - one.getBornTimestamp());
                order.add(text(one));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        for (int level : new int[] {4, 3, 1, 0, 99}) {
            Message message = message("Delayed", "level " + level);
            message.setDelayTimeLevel(level);
            producer.send(message, 20000);
        }
        await("delayed messages", () -> came.size() == 5);
        Thread.sleep(500);
        expect(order.size() == 5, "delayed messages came twice: " + order);
        expect(came.get("level 0") < 900 && came.get("level 1") >= 1000 && came.get("level 4") >= 2000, "delays: " + came);
        expect(came.get("level 99") >= 2000, "delays: " + came);
        consumer.shutdown();
        System.out.println("delays");
    }

    static void retries(DefaultMQProducer producer) throws Exception {
        List<Integer> times = Collections.synchronizedList(new ArrayList<>());
        List<MessageExt> dead = Collections.synchronizedList(new ArrayList<>());
        String group = prefix + "retried";
        DefaultMQPushConsumer consumer = consumer(group, prefix + "Retried", (messages, context) -> {
            for (MessageExt one : messages) {
                expect(one.getTopic().equals(prefix + "Retried"), "topic of a retry: " + one.getTopic());
                times.add(one.getReconsumeTimes());
            }
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        String sent = producer.send(message("Retried", "bad"), 20000).getMsgId();
        await("retries", () -> times.size() == 3);
        DefaultMQPushConsumer letters = consumer(prefix + "letters", "%DLQ%" + group, (messages, context) -> {
            dead.addAll(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        await("a dead letter", () -> dead.size() == 1);
        expect(times.equals(List.of(0, 1, 2)), "reconsume times: " + times);
        MessageExt letter = dead.get(0);
        expect(text(letter).equals("bad") && letter.getReconsumeTimes() == 3, "dead letter: " + letter);
        expect(letter.getProperty("RETRY_TOPIC").equals(prefix + "Retried"), "dead letter: " + letter);
        expect(letter.getProperty("UNIQ_KEY").equals(sent), "dead letter: " + letter);
        consumer.shutdown();
        letters.shutdown();
        System.out.println("retries");
    }

    static void transactions() throws Exception {
        List<String> came = Collections.synchronizedList(new ArrayList<>());
        Map<String, Integer> checks = new ConcurrentHashMap<>();
        TransactionMQProducer producer = quick(new TransactionMQProducer(prefix + "transactions"));
        producer.setSendMsgTimeout(20000);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return state(text(message).split(" ")[0]);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                expect(message.getTopic().equals(prefix + "Prepared"), "topic of a check: " + message.getTopic());
                int times = checks.merge(text(message), 1, Integer::sum);
                return times < 2 ? LocalTransactionState.UNKNOW : state(text(message).split(" ")[1]);
            }

            private LocalTransactionState state(String word) {
                return word.equals("commit") ? LocalTransactionState.COMMIT_MESSAGE
                    : word.equals("rollback") ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.UNKNOW;
            }
        });
        producer.start();
        DefaultMQPushConsumer consumer = consumer(prefix + "committed", prefix + "Prepared", (messages, context) -> {
            messages.forEach(one -> came.add(text(one)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        for (String how : new String[] {"commit -", "rollback -", "unknown commit", "unknown rollback"}) {
            for (int i = 0; i < 5; i++) {
                TransactionSendResult result = producer.sendMessageInTransaction(message("Prepared", how + " " + i), null);
                expect(result.getSendStatus().name().equals("SEND_OK") && result.getTransactionId() != null, "sent: " + result);
            }
        }
        await("commits", () -> came.size() >= 10);
        await("checks", () -> checks.size() == 10 && checks.values().stream().allMatch(times -> times >= 2));
        Thread.sleep(2000);
        Collections.sort(came);
        List<String> expected = new ArrayList<>();
        for (String how : new String[] {"commit -", "unknown commit"}) {
            for (int i = 0; i < 5; i++) {
                expected.add(how + " " + i);
            }
        }
        expect(came.equals(expected), "committed: " + came);
        consumer.shutdown();
        producer.shutdown();
        System.out.println("transactions");
    }

    static void replies(DefaultMQProducer producer) throws Exception {
        DefaultMQPushConsumer consumer = consumer(prefix + "asked", prefix + "Asked", (messages, context) -> {
            for (MessageExt one : messages) {
                try {
                    producer.send(MessageUtil.createReplyMessage(one, ("re: " + text(one)).getBytes(StandardCharsets.UTF_8)), 20000);
                } catch (Exception error) {
                    error.printStackTrace();
                    return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        for (int i = 0; i < 3; i++) {
            Message answer = producer.request(message("Asked", "question " + i), 30000);
            expect(text(answer).equals("re: question " + i), "answer: " + answer);
        }
        consumer.shutdown();
        System.out.println("replies");
    }

    public static void main(String[] arguments) throws Exception {
        // A client's threads would keep the process alive behind a main that failed.
        Thread.currentThread().setUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        });
        namesrv = arguments[0];
        prefix = arguments[1];
        DefaultMQProducer producer = quick(new DefaultMQProducer(prefix + "producer"));
        producer.start();
        delays(producer);
        transactions();
        replies(producer);
        retries(producer);
        producer.shutdown();
        System.out.println("done");
        System.exit(0);
    }
}
