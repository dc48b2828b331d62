// Apache RocketMQ's own store, as a broker drives it: one putMessage a message, a fresh message object each time.
import java.io.File;
import java.net.InetSocketAddress;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

public final class RocketTarget implements Bench.Target {
    private static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 10911);
    private static final AtomicInteger QUEUES = new AtomicInteger();
    private static final ThreadLocal<Integer> QUEUE = ThreadLocal.withInitial(() -> QUEUES.getAndIncrement() % 4);
    private DefaultMessageStore store;

    @Override public void open(String directory, boolean durable) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(directory);
        config.setStorePathCommitLog(directory + File.separator + "commitlog");
        config.setHaListenPort(0);
        config.setFlushDiskType(durable ? FlushDiskType.SYNC_FLUSH : FlushDiskType.ASYNC_FLUSH);
        store = new DefaultMessageStore(config, new BrokerStatsManager("bench", false),
            (topic, queueId, offset, tagsCode, time, bits, properties) -> { }, new BrokerConfig(), new ConcurrentHashMap<>());
        if (!store.load()) {
            throw new IllegalStateException("load() answered false");
        }
        store.start();
    }

    @Override public void put(byte[] body) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic("Bench");
        message.setQueueId(QUEUE.get());
        message.setBody(body);
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(HOST);
        message.setStoreHost(HOST);
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_TAGS, "TagA");
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        PutMessageResult result = store.putMessage(message);
        if (!result.isOk()) {
            throw new IllegalStateException("put answered " + result.getPutMessageStatus());
        }
    }

    @Override public void close() {
        store.shutdown();
    }

    @Override public boolean threads() {
        return true;
    }

    @Override public boolean durable() {
        return true;
    }
}
