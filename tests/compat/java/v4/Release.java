// What release 4 alone has: one kind of queue, no boundary kinds, other packages.
package mqfast.oracle;

import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.filter.FilterAPI;
import org.apache.rocketmq.store.CommitLog;
import org.apache.rocketmq.store.ConsumeQueue;
import org.apache.rocketmq.store.ConsumeQueueExt;
import org.apache.rocketmq.store.DefaultMessageFilter;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.DispatchRequest;
import org.apache.rocketmq.store.MessageExtBrokerInner;
import org.apache.rocketmq.store.MessageFilter;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

final class Release {
    static final String NAME = System.getProperty("oracle.release");
    static final String[] BOUNDARIES = {"NONE"};

    static DefaultMessageStore newStore(MessageStoreConfig config, List<String> batchTopics) throws Exception {
        if (!batchTopics.isEmpty()) {
            throw new IllegalArgumentException("release 4 has no BatchCQ");
        }
        return new DefaultMessageStore(config, new BrokerStatsManager("oracle", false),
            (topic, queueId, offset, tagsCode, time, bits, properties) -> { }, new BrokerConfig());
    }

    /** Lets a store that was loaded, not started, answer: start() would write to it. */
    static void answer(DefaultMessageStore store) throws Exception {
        Field shutdown = DefaultMessageStore.class.getDeclaredField("shutdown");
        shutdown.setAccessible(true);
        shutdown.set(store, false);
    }

    static void close(DefaultMessageStore store) {
        // what was opened is closed already
    }

    static void extras(DefaultMessageStore store, Map<String, Object> result) {
        // nothing beyond the common fields
    }

    static DispatchRequest check(CommitLog commitLog, ByteBuffer buffer) {
        return commitLog.checkMessageAndReturnSize(buffer, true, true);
    }

    static long offsetByTime(DefaultMessageStore store, String topic, int queueId, long time, String boundary) {
        return store.getOffsetInQueueByTime(topic, queueId, time);
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
        private final ConsumeQueue queue;

        View(ConsumeQueue queue) {
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
            // nothing beyond the common fields
        }

        @Override public void forEachUnit(UnitSink sink) throws Exception {
            ConsumeQueueExt.CqExtUnit ext = new ConsumeQueueExt.CqExtUnit();
            long next = queue.getMinOffsetInQueue();
            while (next < queue.getMaxOffsetInQueue()) {
                SelectMappedBufferResult data = queue.getIndexBuffer(next);
                if (data == null || data.getSize() < ConsumeQueue.CQ_STORE_UNIT_SIZE) {
                    return;
                }
                try {
                    ByteBuffer bytes = data.getByteBuffer();
                    for (int at = 0; at < data.getSize(); at += ConsumeQueue.CQ_STORE_UNIT_SIZE) {
                        long physicalOffset = bytes.getLong();
                        int size = bytes.getInt();
                        Long tagsCode = bytes.getLong();
                        if (ConsumeQueueExt.isExtAddr(tagsCode)) {
                            tagsCode = queue.getExt(tagsCode, ext) ? Long.valueOf(ext.getTagsCode()) : null;
                        }
                        sink.unit(next++, physicalOffset, size, tagsCode, null);
                    }
                } finally {
                    data.release();
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

    private static void fill(MessageExt inner, Msg msg) {
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
        if (inner instanceof MessageExtBrokerInner) {
            ((MessageExtBrokerInner) inner).setPropertiesString(
                text == null ? MessageDecoder.messageProperties2String(msg.properties) : text);
        }
    }

    private Release() {
    }
}
