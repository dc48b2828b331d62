import java.nio.charset.StandardCharsets;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentSkipListSet;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * Arguments: name servers, topic, group, prefix, count, delay level, how many to wait for. Sends count messages; with a
 * delay level above 0 as many delayed, timed and half messages as well. Receives what comes until nothing new comes for
 * a while, prints the bodies. The producer of transactions commits each half message that a broker asks for.
 * Properties: user, secret (signed requests), tls, transactions (a producer of transactions is there), timed (ms).
 */
public class Swap {
    public static void main(String[] arguments) throws Exception {
        String namesrv = arguments[0], topic = arguments[1], group = arguments[2], prefix = arguments[3];
        int count = Integer.parseInt(arguments[4]), level = Integer.parseInt(arguments[5]);
        boolean tls = Boolean.getBoolean("tls");
        RPCHook hook = null;
        if (System.getProperty("user") != null) {
            hook = new AclClientRPCHook(new SessionCredentials(System.getProperty("user"), System.getProperty("secret")));
        }
        try {
            TransactionMQProducer transactions = null;
            if (Boolean.getBoolean("transactions")) {
                transactions = transactions(namesrv, group);
            }
            if (count > 0) {
                send(namesrv, topic, group, prefix, count, level, hook, tls);
                for (int i = 0; transactions != null && level > 0 && i < count; i++) {
                    byte[] body = (prefix + "half" + i).getBytes(StandardCharsets.UTF_8);
                    transactions.sendMessageInTransaction(new Message(topic, "tag", body), null);
                }
            }
            Set<String> seen = new ConcurrentSkipListSet<>();
            DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group, hook, new AllocateMessageQueueAveragely());
            consumer.setNamesrvAddr(namesrv);
            consumer.setMqClientApiTimeout(20000);
            consumer.setVipChannelEnabled(false);
            consumer.setUseTLS(tls);
            consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(one -> seen.add(new String(one.getBody(), StandardCharsets.UTF_8)));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            int wanted = Integer.parseInt(arguments[6]), quiet = 0;
            for (int i = 0; i < 600 && quiet < 20; i++) {
                Thread.sleep(100);
                quiet = seen.size() >= wanted ? quiet + 1 : 0;
            }
            consumer.shutdown();
            if (transactions != null) {
                transactions.shutdown();
            }
            System.out.println("received " + String.join(",", new TreeSet<>(seen)));
        } catch (Exception error) {
            System.out.println("failed " + (error.getMessage() + " " + error.getCause()).replace((char) 10, (char) 32));
        }
        System.exit(0);
    }

    static TransactionMQProducer transactions(String namesrv, String group) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(group + "-transactions");
        producer.setNamesrvAddr(namesrv);
        producer.setMqClientApiTimeout(20000);
        producer.setSendMsgTimeout(20000);
        producer.setVipChannelEnabled(false);
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.UNKNOW;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return Boolean.getBoolean("commits") ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.UNKNOW;
            }
        });
        producer.start();
        return producer;
    }

    static void send(String namesrv, String topic, String group, String prefix, int count, int level, RPCHook hook,
            boolean tls) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer(group + "-producer", hook);
        producer.setNamesrvAddr(namesrv);
        producer.setMqClientApiTimeout(20000);
        producer.setSendMsgTimeout(20000);
        producer.setVipChannelEnabled(false);
        producer.setUseTLS(tls);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        for (int i = 0; i < count; i++) {
            Message message = new Message(topic, "tag", (prefix + i).getBytes(StandardCharsets.UTF_8));
            if (producer.send(message, 20000).getSendStatus() != SendStatus.SEND_OK) {
                throw new IllegalStateException("message " + i + " was not stored");
            }
            if (level > 0) {
                Message later = new Message(topic, "tag", (prefix + "later" + i).getBytes(StandardCharsets.UTF_8));
                later.setDelayTimeLevel(level);
                producer.send(later, 20000);
                Message timed = new Message(topic, "tag", (prefix + "timed" + i).getBytes(StandardCharsets.UTF_8));
                timed.setDelayTimeMs(Long.getLong("timed"));
                producer.send(timed, 20000);
            }
        }
        producer.shutdown();
        System.out.println("sent");
    }
}
