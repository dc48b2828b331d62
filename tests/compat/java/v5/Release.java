// What release 5 alone has: queue interfaces, boundary kinds, the package of MessageExtBrokerInner.
// It is compiled for 5.3 and for 5.5: what only 5.5 has is asked for by name.
package mqfast.oracle;

import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.common.BoundaryType;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.attribute.CQType;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.remoting.protocol.filter.FilterAPI;
import org.apache.rocketmq.store.CommitLog;
import org.apache.rocketmq.store.DefaultMessageFilter;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.DispatchRequest;
import org.apache.rocketmq.store.MessageFilter;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.queue.CqUnit;
import org.apache.rocketmq.store.queue.ReferredIterator;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

final class Release {
    static final String NAME = System.getProperty("oracle.release");
    static final String[] BOUNDARIES = {"LOWER", "UPPER"};

    static DefaultMessageStore newStore(MessageStoreConfig config, List<String> batchTopics) throws Exception {
        BrokerConfig broker = new BrokerConfig();
        ConcurrentMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        for (String name : batchTopics) {
            TopicConfig topic = new TopicConfig(name);
            topic.setAttributes(new HashMap<>(Map.of("queue.type", "BatchCQ")));
            topics.put(name, topic);
        }
        return new DefaultMessageStore(config, new BrokerStatsManager("oracle", false),
            (topic, queueId, offset, tagsCode, time, bits, properties) -> { }, broker, topics);
    }

    /** Lets a store that was loaded, not started, answer: start() would write to it. */
    static void answer(DefaultMessageStore store) throws Exception {
        Field shutdown = DefaultMessageStore.class.getDeclaredField("shutdown");
        shutdown.setAccessible(true);
        shutdown.set(store, false);
    }

    /** Closes what the constructor opened: 5.5 opens a RocksDB, whose files lie in the store. */
    static void close(DefaultMessageStore store) throws Exception {
        Method getter;
        try {
            getter = DefaultMessageStore.class.getMethod("getMessageRocksDBStorage");
        } catch (NoSuchMethodException e) {
            return;
        }
        Object storage = getter.invoke(store);
        storage.getClass().getMethod("shutdown").invoke(storage);
    }

    static void extras(DefaultMessageStore store, Map<String, Object> result) {
        result.put("confirmOffsetStored", store.getConfirmOffsetDirectly());
        result.put("flushedWhere", store.getFlushedWhere());
        result.put("checkpointConfirmPhyOffsetAfterLoad", store.getStoreCheckpoint().getConfirmPhyOffset());
        result.put("masterFlushedOffset", store.getStoreCheckpoint().getMasterFlushedOffset());
    }

    static DispatchRequest check(CommitLog commitLog, ByteBuffer buffer) {
        return commitLog.checkMessageAndReturnSize(buffer, true, false, true);
    }

    static long offsetByTime(DefaultMessageStore store, String topic, int queueId, long time, String boundary) {
        return store.getOffsetInQueueByTime(topic, queueId, time, BoundaryType.valueOf(boundary));
    }

    static MessageFilter filter(String topic, String tags) throws Exception {
        return new DefaultMessageFilter(FilterAPI.buildSubscriptionData(topic, tags));
    }

    static List<QueueView> queues(DefaultMessageStore store) {
        List<QueueView> views = new ArrayList<>();
        store.getConsumeQueueTable().values().forEach(map -> map.values().forEach(queue -> views.add(new View(queue))));
        return views;
    }

    private static final class View implements QueueView {
        private final ConsumeQueueInterface queue;

        View(ConsumeQueueInterface queue) {
            this.queue = queue;
        }

        @Override public String topic() {
            return queue.getTopic();
        }

        @Override public int queueId() {
            return queue.getQueueId();
        }

        @Override public long minOffset() {
            return queue.getMinOffsetInQueue();
        }

        @Override public long maxOffset() {
            return queue.getMaxOffsetInQueue();
        }

        @Override public long maxPhysicOffset() {
            return queue.getMaxPhysicOffset();
        }

        @Override public long minLogicOffset() {
            return queue.getMinLogicOffset();
        }

        @Override public void extras(Map<String, Object> row) {
            row.put("type", queue.getCQType().name());
            try {
                row.put("lastOffset", queue.getLastOffset());
            } catch (RuntimeException e) { // when the newest queue file holds no unit yet
                row.put("lastOffset", "throws " + e.getClass().getSimpleName());
            }
        }

        @Override public void forEachUnit(UnitSink sink) throws Exception {
            boolean batch = queue.getCQType() == CQType.BatchCQ;
            long next = Math.max(0, queue.getMinOffsetInQueue());
            while (next < queue.getMaxOffsetInQueue()) {
                ReferredIterator<CqUnit> units = queue.iterateFrom(next);
                if (units == null) {
                    return;
                }
                long before = next;
                try {
                    while (units.hasNext()) {
                        CqUnit unit = units.next();
                        sink.unit(unit.getQueueOffset(), unit.getPos(), unit.getSize(), unit.getValidTagsCodeAsLong(),
                            batch ? Integer.valueOf(unit.getBatchNum()) : null);
                        next = unit.getQueueOffset() + unit.getBatchNum();
                    }
                } finally {
                    units.release();
                }
                if (next == before) {
                    return;
                }
            }
        }
    }

    static PutMessageResult put(DefaultMessageStore store, Msg msg) {
        MessageExtBrokerInner inner = new MessageExtBrokerInner();
        fill(inner, msg);
        return store.putMessage(inner);
    }

    static PutMessageResult putBatch(DefaultMessageStore store, Msg msg) {
        MessageExtBatch batch = new MessageExtBatch();
        List<Message> elements = new ArrayList<>();
        for (Msg element : msg.batch) {
            Message message = new Message(msg.topic, element.body);
            message.setFlag(element.flag);
            MessageAccessor.setProperties(message, element.properties);
            elements.add(message);
        }
        msg.body = MessageDecoder.encodeMessages(elements);
        fill(batch, msg);
        return store.putMessages(batch);
    }

    private static void fill(MessageExtBrokerInner inner, Msg msg) {
        inner.setTopic(msg.topic);
        inner.setQueueId(msg.queueId);
        inner.setBody(msg.body);
        inner.setFlag(msg.flag);
        inner.setSysFlag(msg.sysFlag);
        inner.setBornTimestamp(msg.bornTimestamp);
        inner.setBornHost(msg.bornHost);
        inner.setStoreHost(msg.storeHost);
        inner.setReconsumeTimes(msg.reconsumeTimes);
        inner.setPreparedTransactionOffset(msg.preparedTransactionOffset);
        String text = msg.propertiesString;
        MessageAccessor.setProperties(inner, text == null ? msg.properties : MessageDecoder.string2messageProperties(text));
        inner.setPropertiesString(text == null ? MessageDecoder.messageProperties2String(msg.properties) : text);
    }

    private Release() {
    }
}
