import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.body.UserInfo;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Arguments: name servers. Each call that the dashboard and the exporter make of the admin API, beside a producer and a
 * consumer that are connected: a line with the name and "ok", or with what went wrong. */
public class Dashboard {
    private static final String TOPIC = "Dash", GROUP = "dash-group", OTHER = "dash-other", CLUSTER = "golden";

    private interface Call {
        Object run() throws Exception;
    }

    private interface Change {
        void run() throws Exception;
    }

    private static void ask(String name, Call call) {
        try {
            Object found = call.run();
            boolean isEmpty = found == null || found instanceof List && ((List<?>) found).isEmpty();
            System.out.println(name + (isEmpty ? " found nothing" : " ok"));
        } catch (Throwable error) {
            System.out.println(name + " failed: " + error.toString().replace('\n', ' '));
        }
    }

    private static void change(String name, Change change) {
        ask(name, () -> {
            change.run();
            return "";
        });
    }

    public static void main(String[] arguments) throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(60000);
        admin.setNamesrvAddr(arguments[0]);
        admin.setInstanceName("dashboard");
        admin.start();
        BrokerData broker = admin.examineBrokerClusterInfo().getBrokerAddrTable().get("brk");
        String address = broker.selectBrokerAddr();
        ask("examineBrokerClusterInfo", () -> broker);

        TopicConfig topic = new TopicConfig(TOPIC, 2, 2, 6);
        change("createAndUpdateTopicConfig", () -> admin.createAndUpdateTopicConfig(address, topic));
        for (String group : new String[] {GROUP, OTHER}) {
            SubscriptionGroupConfig config = new SubscriptionGroupConfig();
            config.setGroupName(group);
            change("createAndUpdateSubscriptionGroupConfig",
                () -> admin.createAndUpdateSubscriptionGroupConfig(address, config));
        }
        DefaultMQProducer producer = new DefaultMQProducer(GROUP + "-producer");
        producer.setNamesrvAddr(arguments[0]);
        producer.setInstanceName("stay");
        producer.start();
        SendResult sent = null;
        for (int i = 0; i < 8; i++) {
            Message message = new Message(TOPIC, "tag", "key" + i, ("body" + i).getBytes(StandardCharsets.UTF_8));
            sent = producer.send(message, (queues, one, at) -> queues.get((Integer) at), i % 2, 20000);
        }
        String last = sent.getOffsetMsgId(), unique = sent.getMsgId();
        CountDownLatch received = new CountDownLatch(8);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(GROUP);
        consumer.setNamesrvAddr(arguments[0]);
        consumer.setInstanceName("stay");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(TOPIC, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(one -> received.countDown());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        received.await();
        consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
        String client = consumer.buildMQClientId();
        MessageQueue queue = new MessageQueue(TOPIC, "brk", 0);
        long now = System.currentTimeMillis();

        // what both ask all the time
        ask("fetchAllTopicList", () -> admin.fetchAllTopicList().getTopicList());
        ask("fetchTopicsByCLuster", () -> admin.fetchTopicsByCLuster(CLUSTER).getTopicList());
        ask("examineTopicRouteInfo", () -> admin.examineTopicRouteInfo(TOPIC).getBrokerDatas());
        ask("examineTopicStats", () -> admin.examineTopicStats(TOPIC).getOffsetTable().get(queue));
        ask("examineTopicConfig", () -> admin.examineTopicConfig(address, TOPIC));
        ask("getAllTopicConfig", () -> admin.getAllTopicConfig(address, 60000).getTopicConfigTable().get(TOPIC));
        ask("getUserTopicConfig", () -> admin.getUserTopicConfig(address, true, 60000).getTopicConfigTable().get(TOPIC));
        ask("getAllSubscriptionGroup",
            () -> admin.getAllSubscriptionGroup(address, 60000).getSubscriptionGroupTable().get(GROUP));
        ask("getUserSubscriptionGroup",
            () -> admin.getUserSubscriptionGroup(address, 60000).getSubscriptionGroupTable().get(GROUP));
        ask("examineSubscriptionGroupConfig", () -> admin.examineSubscriptionGroupConfig(address, GROUP));
        ask("queryTopicConsumeByWho",
            () -> admin.queryTopicConsumeByWho(TOPIC).getGroupList().contains(GROUP) ? "" : null);
        ask("examineConsumeStats", () -> admin.examineConsumeStats(GROUP).getOffsetTable().get(queue));
        ask("examineConsumeStats of a topic", () -> admin.examineConsumeStats(GROUP, TOPIC).getOffsetTable().get(queue));
        ask("examineConsumeStats of a broker",
            () -> admin.examineConsumeStats(address, GROUP, TOPIC, 60000).getOffsetTable().get(queue));
        ask("fetchConsumeStatsInBroker",
            () -> admin.fetchConsumeStatsInBroker(address, false, 60000).getConsumeStatsList());
        ask("examineConsumerConnectionInfo",
            () -> admin.examineConsumerConnectionInfo(GROUP).getConnectionSet().iterator().next());
        ask("examineConsumerConnectionInfo of a broker",
            () -> admin.examineConsumerConnectionInfo(GROUP, address).getConnectionSet().iterator().next());
        ask("examineProducerConnectionInfo",
            () -> admin.examineProducerConnectionInfo(GROUP + "-producer", TOPIC).getConnectionSet().iterator().next());
        ask("getAllProducerInfo", () -> admin.getAllProducerInfo(address).getData().get(GROUP + "-producer"));
        ask("getConsumerRunningInfo", () -> admin.getConsumerRunningInfo(GROUP, client, false).getMqTable().get(queue));
        ask("getConsumerRunningInfo with stacks", () -> admin.getConsumerRunningInfo(GROUP, client, true).getJstack());
        ask("fetchBrokerRuntimeStats", () -> admin.fetchBrokerRuntimeStats(address).getTable().get("putTps"));
        for (String name : new String[] {"TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"}) {
            ask("viewBrokerStatsData " + name, () -> admin.viewBrokerStatsData(address, name, TOPIC).getStatsMinute());
        }
        for (String name : new String[] {"GROUP_GET_NUMS", "GROUP_GET_SIZE"}) {
            ask("viewBrokerStatsData " + name,
                () -> admin.viewBrokerStatsData(address, name, TOPIC + "@" + GROUP).getStatsMinute());
        }
        for (String name : new String[] {"BROKER_PUT_NUMS", "BROKER_GET_NUMS"}) {
            ask("viewBrokerStatsData " + name, () -> admin.viewBrokerStatsData(address, name, CLUSTER).getStatsMinute());
        }
        ask("getTopicClusterList", () -> admin.getTopicClusterList(TOPIC).contains(CLUSTER) ? "" : null);

        // messages
        ask("viewMessage", () -> admin.viewMessage(TOPIC, last));
        ask("viewMessage by key", () -> admin.viewMessage(TOPIC, unique));
        ask("queryMessage", () -> admin.queryMessage(TOPIC, "key1", 64, now - 3600000, now + 3600000).getMessageList());
        ask("messageTrackDetail", () -> admin.messageTrackDetail(admin.viewMessage(TOPIC, last)));
        ask("consumeMessageDirectly", () -> admin.consumeMessageDirectly(GROUP, client, TOPIC, last).getConsumeResult());
        ask("queryConsumeQueue", () -> admin.queryConsumeQueue(address, TOPIC, 0, 0, 4, GROUP).getQueueData());
        ask("queryConsumeTimeSpan", () -> admin.queryConsumeTimeSpan(TOPIC, GROUP));
        ask("searchOffset", () -> admin.searchOffset(queue, now));
        ask("maxOffset", () -> admin.maxOffset(queue) == 4 ? "" : null);
        ask("minOffset", () -> admin.minOffset(queue) == 0 ? "" : null);
        ask("earliestMsgStoreTime", () -> admin.earliestMsgStoreTime(queue) > 0 ? "" : null);

        // changes
        ask("getBrokerConfig", () -> admin.getBrokerConfig(address).getProperty("brokerName"));
        Properties settings = new Properties();
        settings.setProperty("transactionCheckMax", "9");
        change("updateBrokerConfig", () -> admin.updateBrokerConfig(address, settings));
        ask("getNameServerConfig", () -> admin.getNameServerConfig(admin.getNameServerAddressList()));
        ask("resetOffsetByTimestamp", () -> admin.resetOffsetByTimestamp(TOPIC, GROUP, now - 3600000, true));
        ask("getConsumeStatus", () -> admin.getConsumeStatus(TOPIC, GROUP, ""));
        ask("resetOffsetByTimestampOld", () -> admin.resetOffsetByTimestampOld(OTHER, TOPIC, now - 3600000, true));
        change("updateConsumeOffset", () -> admin.updateConsumeOffset(address, OTHER, queue, 1));
        change("cloneGroupOffset", () -> admin.cloneGroupOffset(GROUP, OTHER, TOPIC, true));
        change("createOrUpdateOrderConf", () -> admin.createOrUpdateOrderConf(TOPIC, "brk:2", false));
        change("createAndUpdateKvConfig", () -> admin.createAndUpdateKvConfig("dash", "k", "v"));
        ask("getKVConfig", () -> "v".equals(admin.getKVConfig("dash", "k")) ? "" : null);
        ask("getKVListByNamespace", () -> admin.getKVListByNamespace("dash").getTable().get("k"));
        change("deleteKvConfig", () -> admin.deleteKvConfig("dash", "k"));
        String namesrv = admin.getNameServerAddressList().get(0);
        ask("wipeWritePermOfBroker", () -> admin.wipeWritePermOfBroker(namesrv, "brk") > 0 ? "" : null);
        ask("addWritePermOfBroker", () -> admin.addWritePermOfBroker(namesrv, "brk") > 0 ? "" : null);
        ask("cleanExpiredConsumerQueue", () -> admin.cleanExpiredConsumerQueue(CLUSTER) ? "" : null);
        ask("cleanUnusedTopic", () -> admin.cleanUnusedTopic(CLUSTER) ? "" : null);

        ask("cleanExpiredConsumerQueueByAddr", () -> admin.cleanExpiredConsumerQueueByAddr(address) ? "" : null);
        ask("cleanUnusedTopicByAddr", () -> admin.cleanUnusedTopicByAddr(address) ? "" : null);
        change("createTopic", () -> admin.createTopic("brk", "DashMade", 2, null));
        change("resetOffsetNew", () -> admin.resetOffsetNew(OTHER, TOPIC, now - 3600000));
        Properties names = new Properties();
        names.setProperty("deleteTopicWithBrokerRegistration", "false");
        change("updateNameServerConfig", () -> admin.updateNameServerConfig(names, null));
        change("putKVConfig", () -> admin.putKVConfig("dash", "k", "v"));
        ask("getColdDataFlowCtrInfo", () -> admin.getColdDataFlowCtrInfo(address));
        Properties cold = new Properties();
        cold.setProperty(OTHER, "100");
        change("updateColdDataFlowCtrGroupConfig", () -> admin.updateColdDataFlowCtrGroupConfig(address, cold));
        change("removeColdDataFlowCtrGroupConfig", () -> admin.removeColdDataFlowCtrGroupConfig(address, OTHER));
        ask("setCommitLogReadAheadMode", () -> admin.setCommitLogReadAheadMode(address, "0"));
        ask("getClusterList", () -> admin.getClusterList(TOPIC));

        // users and rules
        change("createUser", () -> admin.createUser(address, "ann", "ann-secret", "Normal"));
        ask("getUser", () -> admin.getUser(address, "ann").getUsername());
        ask("listUser", () -> admin.listUser(address, ""));
        UserInfo user = UserInfo.of("ann", "other-secret", "Normal");
        user.setUserStatus("enable");
        change("updateUser", () -> admin.updateUser(address, user));
        List<String> topics = Collections.singletonList("Topic:" + TOPIC), pub = Collections.singletonList("Pub");
        List<String> everywhere = Collections.singletonList("127.0.0.1");
        change("createAcl", () -> admin.createAcl(address, "User:ann", topics, pub, everywhere, "Allow"));
        change("updateAcl", () -> admin.updateAcl(address, "User:ann", topics, pub, everywhere, "Deny"));
        ask("getAcl", () -> admin.getAcl(address, "User:ann").getPolicies());
        ask("listAcl", () -> admin.listAcl(address, "User:ann", ""));
        change("deleteAcl", () -> admin.deleteAcl(address, "User:ann", ""));
        change("deleteUser", () -> admin.deleteUser(address, "ann"));

        // the end
        consumer.shutdown();
        producer.shutdown();
        change("deleteSubscriptionGroup", () -> admin.deleteSubscriptionGroup(address, OTHER, true));
        change("deleteTopicInBroker", () -> admin.deleteTopicInBroker(Collections.singleton(address), TOPIC));
        change("deleteTopicInNameServer", () -> admin.deleteTopicInNameServer(Collections.singleton(namesrv), TOPIC));
        System.out.println("done");
        System.exit(0);
    }
}
