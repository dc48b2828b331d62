// The Java oracle: RocketMQ's own store classes behind JSON lines on stdin and stdout.
// One request a line in, one answer a line out. It never touches a directory it was not given.
// The same sources are compiled once per release; what differs between releases is in Release.java.
package mqfast.oracle;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.Comparator;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.AppendMessageResult;
import org.apache.rocketmq.store.CommitLog;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.DispatchRequest;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.StoreCheckpoint;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.index.IndexService;

public final class Main {
    private static final long FAR_FUTURE_MS = 9999999999999L;
    private static PrintStream out;

    public static void main(String[] args) throws Exception {
        out = new PrintStream(System.out, false, "UTF-8");
        System.setOut(System.err); // a library that prints must not break the protocol
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = in.readLine()) != null) {
            JSONObject answer = new JSONObject(true);
            boolean halt = false;
            try {
                JSONObject request = JSON.parseObject(line);
                halt = "halt".equals(request.getString("stop"));
                answer.put("result", serve(request));
                answer.put("ok", true);
            } catch (Throwable e) {
                StringWriter text = new StringWriter();
                e.printStackTrace(new PrintWriter(text));
                answer.put("ok", false);
                answer.put("error", text.toString());
            }
            out.println(JSON.toJSONString(answer, SerializerFeature.WriteMapNullValue,
                SerializerFeature.DisableCircularReferenceDetect));
            out.flush();
            if (halt) {
                Runtime.getRuntime().halt(0); // no shutdown hook, no flush: like a kill
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static Object serve(JSONObject request) throws Exception {
        switch (request.getString("op")) {
            case "hello":
                return Release.NAME;
            case "dump":
                return dump(request);
            case "put":
                return put(request);
            case "settings":
                return Settings.of(request);
            case "load":
                return loadTime(request);
            case "bench":
                return bench(request);
            default:
                throw new IllegalArgumentException("unknown op " + request.getString("op"));
        }
    }

    // --- opening -----------------------------------------------------------------------------------------------

    private static MessageStoreConfig config(String root, JSONObject settings) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root);
        config.setStorePathCommitLog(root + File.separator + "commitlog");
        config.setHaListenPort(0); // any free port: several oracles may run at once
        if (settings == null) {
            return config;
        }
        for (Map.Entry<String, Object> entry : settings.entrySet()) {
            String name = "set" + Character.toUpperCase(entry.getKey().charAt(0)) + entry.getKey().substring(1);
            String text = String.valueOf(entry.getValue());
            boolean found = false;
            for (Method method : MessageStoreConfig.class.getMethods()) {
                if (!method.getName().equals(name) || method.getParameterCount() != 1) {
                    continue;
                }
                Class<?> type = method.getParameterTypes()[0];
                Object value = type == int.class ? (Object) Integer.valueOf(text) : type == long.class ? (Object) Long.valueOf(text)
                    : type == boolean.class ? (Object) Boolean.valueOf(text) : type == double.class ? (Object) Double.valueOf(text)
                    : type == String.class ? text : null;
                if (value != null) {
                    method.invoke(config, value);
                    found = true;
                }
            }
            if (!found) {
                throw new IllegalArgumentException("no such setting: " + entry.getKey());
            }
        }
        return config;
    }

    private static DefaultMessageStore open(JSONObject request) throws Exception {
        String root = request.getString("store");
        List<String> batchTopics = new ArrayList<>();
        String[] names = new File(root, "batchconsumequeue").list();
        if (names != null) {
            batchTopics.addAll(Arrays.asList(names));
        }
        JSONArray asked = request.getJSONArray("batchTopics");
        if (asked != null) {
            for (Object topic : asked) {
                batchTopics.add((String) topic);
            }
        }
        return Release.newStore(config(root, request.getJSONObject("settings")), batchTopics);
    }

    private static void mustLoad(DefaultMessageStore store) {
        if (!store.load()) {
            throw new IllegalStateException("load() answered false");
        }
    }

    static Object field(Object object, String name) throws Exception {
        for (Class<?> type = object.getClass(); type != null; type = type.getSuperclass()) {
            try {
                Field field = type.getDeclaredField(name);
                field.setAccessible(true);
                return field.get(object);
            } catch (NoSuchFieldException e) {
                // look in the superclass
            }
        }
        throw new NoSuchFieldException(name);
    }

    // --- dump --------------------------------------------------------------------------------------------------

    private static Object dump(JSONObject request) throws Exception {
        DefaultMessageStore store = open(request);
        mustLoad(store);
        Release.answer(store);
        for (Thread thread : Thread.getAllStackTraces().keySet()) {
            if (thread.getName().contains("FlushIndexFileThread")) {
                thread.join(10_000); // sets indexMsgTimestamp when it ends
            }
        }
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("readBy", "RocketMQ " + Release.NAME + " store classes, load() on a copy, not started");
        StoreCheckpoint checkpoint = store.getStoreCheckpoint();
        Map<String, Object> after = new LinkedHashMap<>();
        after.put("physicMsgTimestamp", checkpoint.getPhysicMsgTimestamp());
        after.put("logicsMsgTimestamp", checkpoint.getLogicsMsgTimestamp());
        after.put("indexMsgTimestamp", checkpoint.getIndexMsgTimestamp());
        after.put("minTimestamp", checkpoint.getMinTimestamp());
        result.put("checkpointAfterLoad", after);
        result.put("minPhyOffset", store.getMinPhyOffset());
        result.put("maxPhyOffset", store.getMaxPhyOffset());
        result.put("confirmOffset", store.getConfirmOffset());
        try {
            result.put("earliestMessageTime", store.getEarliestMessageTime());
        } catch (RuntimeException e) {
            result.put("earliestMessageTime", "throws " + e.getClass().getSimpleName());
        }
        Release.extras(store, result);
        result.put("logColumns", Arrays.asList("physicalOffset", "size", "topic", "queueId", "queueOffset", "tagsCode",
            "storeTimestamp", "sysFlag", "preparedTransactionOffset", "uniqKey", "keys"));
        result.put("log", log(store.getCommitLog(), store.getMinPhyOffset(), store.getMaxPhyOffset()));

        List<QueueView> queues = Release.queues(store);
        queues.sort(Comparator.comparing(QueueView::topic).thenComparingInt(QueueView::queueId));
        List<Object> queueRows = new ArrayList<>();
        List<Object> messageRows = new ArrayList<>();
        JSONObject times = request.getJSONObject("times");
        for (QueueView queue : queues) {
            queueRows.add(queueRow(store, queue, messageRows, times));
        }
        result.put("queues", queueRows);
        result.put("messages", messageRows);
        result.put("indexColumns", Arrays.asList("topic", "key", "maxNum", "begin", "end", "physicalOffsets"));
        result.put("index", index(store, request.getJSONArray("index")));
        result.put("gets", gets(store, request.getJSONArray("gets")));
        ((java.io.RandomAccessFile) field(store, "lockFile")).close();
        Release.close(store);
        return result;
    }

    private static List<Object> log(CommitLog commitLog, long min, long max) {
        List<Object> rows = new ArrayList<>();
        long position = min;
        while (position < max) {
            SelectMappedBufferResult data = commitLog.getData(position);
            if (data == null) {
                rows.add(Arrays.asList(position, 0, null, "MISSING"));
                return rows;
            }
            try {
                long here = position;
                while (position < max && position - here < data.getSize()) {
                    DispatchRequest request = Release.check(commitLog, data.getByteBuffer());
                    if (request.isSuccess() && request.getMsgSize() > 0) {
                        rows.add(Arrays.asList(request.getCommitLogOffset(), request.getMsgSize(), request.getTopic(),
                            request.getQueueId(), request.getConsumeQueueOffset(), request.getTagsCode(),
                            request.getStoreTimestamp(), request.getSysFlag(), request.getPreparedTransactionOffset(),
                            request.getUniqKey(), emptyToNull(request.getKeys())));
                        position += request.getMsgSize();
                    } else if (request.isSuccess()) {
                        long next = commitLog.rollNextFile(position);
                        rows.add(Arrays.asList(position, next - position, null, "BLANK"));
                        position = next;
                        break;
                    } else {
                        rows.add(Arrays.asList(position, request.getMsgSize(), null, "BAD"));
                        return rows;
                    }
                }
            } finally {
                data.release();
            }
        }
        return rows;
    }

    private static String emptyToNull(String text) {
        return text == null || text.isEmpty() ? null : text;
    }

    private static Object queueRow(DefaultMessageStore store, QueueView queue, List<Object> messages, JSONObject times)
        throws Exception {
        List<Long> storeTimes = new ArrayList<>();
        queue.forEachUnit((cqOffset, physicalOffset, size, tagsCode, batchNum) -> {
            Map<String, Object> row = new LinkedHashMap<>();
            row.put("topic", queue.topic());
            row.put("queueId", queue.queueId());
            row.put("cqOffset", cqOffset);
            row.put("physicalOffset", physicalOffset);
            row.put("size", size);
            row.put("tagsCode", tagsCode);
            if (batchNum != null && batchNum > 1) {
                row.put("batchNum", batchNum);
            }
            storeTimes.add(record(store, queue.topic(), physicalOffset, size, row));
            messages.add(row);
        });
        Map<String, Object> row = new LinkedHashMap<>();
        row.put("topic", queue.topic());
        row.put("queueId", queue.queueId());
        row.put("minOffset", queue.minOffset());
        row.put("maxOffset", queue.maxOffset());
        row.put("units", storeTimes.size());
        row.put("maxPhysicOffset", queue.maxPhysicOffset());
        row.put("minLogicOffset", queue.minLogicOffset());
        queue.extras(row);
        row.put("earliestMessageTime", store.getEarliestMessageTime(queue.topic(), queue.queueId()));
        List<Long> asked = new ArrayList<>();
        JSONArray given = times == null ? null : times.getJSONArray(queue.topic() + "|" + queue.queueId());
        if (given != null) {
            for (int i = 0; i < given.size(); i++) {
                asked.add(given.getLong(i));
            }
        } else {
            asked.addAll(defaultTimes(storeTimes));
        }
        List<Object> answers = new ArrayList<>();
        for (Long time : asked) {
            for (String boundary : Release.BOUNDARIES) {
                answers.add(Arrays.asList(time, boundary, Release.offsetByTime(store, queue.topic(), queue.queueId(), time, boundary)));
            }
        }
        row.put("offsetByTime", answers);
        return row;
    }

    /** Zero, five store times spread over the queue with their neighbours, and the far future. */
    private static List<Long> defaultTimes(List<Long> storeTimes) {
        java.util.TreeSet<Long> times = new java.util.TreeSet<>(Arrays.asList(0L, FAR_FUTURE_MS));
        int n = storeTimes.size();
        for (int i : new int[] {0, n / 4, n / 2, n * 3 / 4, n - 1}) {
            if (i >= 0 && i < n) {
                long time = storeTimes.get(i);
                times.addAll(Arrays.asList(time - 1, time, time + 1));
            }
        }
        return new ArrayList<>(times);
    }

    private static long record(DefaultMessageStore store, String topic, long physicalOffset, int size, Map<String, Object> row)
        throws Exception {
        SelectMappedBufferResult data = store.getCommitLog().getMessage(physicalOffset, size);
        if (data == null) {
            row.put("error", "record not readable");
            return -1;
        }
        try {
            ByteBuffer buffer = data.getByteBuffer();
            String magic = String.format("%08x", buffer.getInt(buffer.position() + 4));
            MessageExt message = MessageDecoder.decode(buffer, true, false);
            if (message == null) {
                row.put("error", "record not decodable");
                return -1;
            }
            byte[] body = message.getBody() == null ? new byte[0] : message.getBody();
            row.put("recordTopic", message.getTopic().equals(topic) ? null : message.getTopic());
            row.put("recordQueueId", message.getQueueId());
            row.put("queueOffset", message.getQueueOffset());
            row.put("magic", magic);
            row.put("sysFlag", message.getSysFlag());
            row.put("flag", message.getFlag());
            row.put("bornTimestamp", message.getBornTimestamp());
            row.put("storeTimestamp", message.getStoreTimestamp());
            row.put("bornHost", host(message.getBornHost()));
            row.put("storeHost", host(message.getStoreHost()));
            row.put("reconsumeTimes", message.getReconsumeTimes());
            row.put("preparedTransactionOffset", message.getPreparedTransactionOffset());
            row.put("bodyCRC", message.getBodyCRC());
            row.put("bodyLength", body.length);
            row.put("bodySha256", hex(MessageDigest.getInstance("SHA-256").digest(body)));
            row.put("msgId", message.getMsgId());
            row.put("properties", message.getProperties() == null ? new TreeMap<>() : new TreeMap<>(message.getProperties()));
            return message.getStoreTimestamp();
        } finally {
            data.release();
        }
    }

    private static String host(SocketAddress address) {
        InetSocketAddress host = (InetSocketAddress) address;
        return host.getAddress().getHostAddress() + "|" + host.getPort();
    }

    private static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte b : bytes) {
            text.append(String.format("%02x", b));
        }
        return text.toString();
    }

    private static List<Object> index(DefaultMessageStore store, JSONArray queries) throws Exception {
        List<Object> rows = new ArrayList<>();
        if (queries != null) {
            IndexService service = (IndexService) field(store, "indexService");
            for (Object item : queries) {
                JSONArray q = (JSONArray) item;
                rows.add(Arrays.asList(q.getString(0), q.getString(1), q.getInteger(2), q.getLong(3), q.getLong(4),
                    service.queryOffset(q.getString(0), q.getString(1), q.getInteger(2), q.getLong(3), q.getLong(4)).getPhyOffsets()));
            }
        }
        return rows;
    }

    private static List<Object> gets(DefaultMessageStore store, JSONArray queries) throws Exception {
        List<Object> rows = new ArrayList<>();
        if (queries != null) {
            for (Object item : queries) {
                JSONArray q = (JSONArray) item;
                String topic = q.getString(0);
                GetMessageResult got = store.getMessage("oracle", topic, q.getInteger(1), q.getLong(2), q.getInteger(3),
                    q.getString(4) == null ? null : Release.filter(topic, q.getString(4)));
                Map<String, Object> row = new LinkedHashMap<>();
                row.put("query", q);
                row.put("status", got == null ? null : got.getStatus().name());
                if (got != null) {
                    row.put("nextBeginOffset", got.getNextBeginOffset());
                    row.put("minOffset", got.getMinOffset());
                    row.put("maxOffset", got.getMaxOffset());
                    List<Object> offsets = new ArrayList<>();
                    for (SelectMappedBufferResult message : got.getMessageMapedList()) {
                        offsets.add(message.getByteBuffer().getLong(28));
                    }
                    row.put("physicalOffsets", offsets);
                    row.put("suggestPullingFromSlave", got.isSuggestPullingFromSlave());
                    got.release();
                }
                rows.add(row);
            }
        }
        return rows;
    }

    // --- put ---------------------------------------------------------------------------------------------------

    private static Object put(JSONObject request) throws Exception {
        DefaultMessageStore store = open(request);
        mustLoad(store);
        store.start();
        List<Object> results = new ArrayList<>();
        try {
            for (Object item : request.getJSONArray("script")) {
                JSONObject step = (JSONObject) item;
                String op = step.getString("op");
                if (op == null || op.equals("put")) {
                    results.add(putRow(Release.put(store, message(step))));
                } else if (op.equals("batch")) {
                    results.add(putRow(Release.putBatch(store, message(step))));
                } else if (op.equals("flush")) {
                    store.flush();
                } else if (op.equals("dispatched")) {
                    waitDispatched(store);
                } else if (op.equals("tick")) {
                    waitDispatched(store);
                    long now = System.currentTimeMillis();
                    while (System.currentTimeMillis() == now) {
                        Thread.onSpinWait();
                    }
                } else if (op.equals("checkpoint")) {
                    store.getStoreCheckpoint().flush();
                } else {
                    throw new IllegalArgumentException("unknown step " + op);
                }
            }
        } finally {
            if (!"halt".equals(request.getString("stop"))) {
                store.shutdown();
            }
        }
        return results;
    }

    private static void waitDispatched(DefaultMessageStore store) throws Exception {
        long deadline = System.currentTimeMillis() + 20_000;
        while (store.dispatchBehindBytes() > 0) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException("dispatch stays behind by " + store.dispatchBehindBytes());
            }
            Thread.sleep(2);
        }
    }

    private static Msg message(JSONObject step) throws Exception {
        Msg msg = new Msg();
        msg.topic = step.getString("topic");
        msg.queueId = step.getIntValue("queueId");
        String body = step.getString("body");
        msg.body = body == null ? new byte[0] : Base64.getDecoder().decode(body);
        msg.flag = step.getIntValue("flag");
        msg.sysFlag = step.getIntValue("sysFlag");
        msg.bornTimestamp = step.containsKey("bornTimestamp") ? step.getLongValue("bornTimestamp") : System.currentTimeMillis();
        msg.bornHost = address(step.getString("bornHost"), 40000);
        msg.storeHost = address(step.getString("storeHost"), 10911);
        msg.reconsumeTimes = step.getIntValue("reconsumeTimes");
        msg.preparedTransactionOffset = step.getLongValue("preparedTransactionOffset");
        msg.propertiesString = step.getString("propertiesString");
        msg.properties = new LinkedHashMap<>();
        JSONObject properties = step.getJSONObject("properties");
        if (properties != null) {
            for (String name : properties.keySet()) {
                msg.properties.put(name, properties.getString(name));
            }
        }
        if (step.getString("tags") != null) {
            msg.properties.put("TAGS", step.getString("tags"));
        }
        if (step.getString("keys") != null) {
            msg.properties.put("KEYS", step.getString("keys"));
        }
        JSONArray messages = step.getJSONArray("messages");
        if (messages != null) {
            msg.batch = new ArrayList<>();
            for (Object element : messages) {
                msg.batch.add(message((JSONObject) element));
            }
        }
        return msg;
    }

    private static InetSocketAddress address(String text, int port) throws Exception {
        if (text == null) {
            return new InetSocketAddress(InetAddress.getByAddress(new byte[] {127, 0, 0, 1}), port);
        }
        int bar = text.lastIndexOf('|');
        return new InetSocketAddress(InetAddress.getByName(text.substring(0, bar)), Integer.parseInt(text.substring(bar + 1)));
    }

    private static Object putRow(PutMessageResult put) {
        Map<String, Object> row = new LinkedHashMap<>();
        row.put("status", put.getPutMessageStatus().name());
        AppendMessageResult append = put.getAppendMessageResult();
        row.put("appendStatus", append == null ? null : append.getStatus().name());
        if (append != null) {
            row.put("physicalOffset", append.getWroteOffset());
            row.put("size", append.getWroteBytes());
            row.put("queueOffset", append.getLogicsOffset());
            row.put("storeTimestamp", append.getStoreTimestamp());
            row.put("msgId", append.getMsgId());
            row.put("msgNum", append.getMsgNum());
        }
        return row;
    }

    // --- speed -------------------------------------------------------------------------------------------------

    /** Times load(), which recovers; the store is then left as it is. */
    private static Object loadTime(JSONObject request) throws Exception {
        DefaultMessageStore store = open(request);
        long begin = System.nanoTime();
        mustLoad(store);
        long end = System.nanoTime();
        Map<String, Object> row = new LinkedHashMap<>();
        row.put("load_s", (end - begin) / 1e9);
        row.put("maxPhyOffset", store.getMaxPhyOffset());
        return row;
    }

    private static Object bench(JSONObject request) throws Exception {
        int count = request.getIntValue("count");
        int threads = Math.max(1, request.getIntValue("threads"));
        int keyQueries = request.getIntValue("keyQueries");
        byte[] body = new byte[request.getIntValue("bodySize")];
        new java.util.Random(1).nextBytes(body);
        long opened = System.nanoTime();
        DefaultMessageStore store = open(request);
        mustLoad(store);
        store.start();
        double openS = (System.nanoTime() - opened) / 1e9;

        runPuts(store, body, Math.min(count, request.getIntValue("warmUp")), threads, "Warm", null);
        long[] nanos = new long[count];
        AtomicInteger failed = new AtomicInteger();
        long begin = System.nanoTime();
        failed.addAndGet(runPuts(store, body, count, threads, "Bench", nanos));
        double wall = (System.nanoTime() - begin) / 1e9;
        begin = System.nanoTime();
        waitDispatched(store);
        double dispatchTail = (System.nanoTime() - begin) / 1e9;

        begin = System.nanoTime();
        long got = 0;
        for (int queue = 0; queue < threads; queue++) {
            long offset = 0;
            while (true) {
                GetMessageResult result = store.getMessage("bench", "Bench", queue, offset, 32, null);
                long next = result.getNextBeginOffset();
                got += result.getMessageCount();
                result.release();
                if (next <= offset) {
                    break;
                }
                offset = next;
            }
        }
        double getWall = (System.nanoTime() - begin) / 1e9;

        begin = System.nanoTime();
        long hits = 0;
        for (int i = 0; i < keyQueries; i++) {
            QueryMessageResult result = store.queryMessage("Bench", "k" + (long) i * count / keyQueries, 1, 0, Long.MAX_VALUE);
            hits += result.getMessageBufferList().size();
            result.release();
        }
        double queryWall = (System.nanoTime() - begin) / 1e9;

        Arrays.sort(nanos);
        Map<String, Object> row = new HashMap<>();
        row.put("release", Release.NAME);
        row.put("open_s", openS);
        row.put("count", count);
        row.put("failed", failed.get());
        row.put("wall_s", wall);
        row.put("put_per_s", count / wall);
        row.put("put_p50_ns", nanos[count / 2]);
        row.put("put_p99_ns", nanos[(int) (count * 0.99)]);
        row.put("put_p999_ns", nanos[(int) (count * 0.999)]);
        row.put("put_max_ns", nanos[count - 1]);
        row.put("dispatch_tail_s", dispatchTail);
        row.put("got", got);
        row.put("get_per_s", got / getWall);
        row.put("query_hits", hits);
        row.put("query_us", keyQueries == 0 ? null : queryWall * 1e6 / keyQueries);
        if (!"halt".equals(request.getString("stop"))) {
            store.shutdown();
        }
        return row;
    }

    private static int runPuts(DefaultMessageStore store, byte[] body, int count, int threads, String topic, long[] nanos)
        throws Exception {
        AtomicInteger failed = new AtomicInteger();
        Thread[] workers = new Thread[threads];
        for (int t = 0; t < threads; t++) {
            int first = (int) ((long) count * t / threads);
            int last = (int) ((long) count * (t + 1) / threads);
            int queue = t;
            workers[t] = new Thread(() -> {
                for (int i = first; i < last; i++) {
                    Msg msg = new Msg();
                    msg.topic = topic;
                    msg.queueId = queue;
                    msg.body = body;
                    msg.bornTimestamp = System.currentTimeMillis();
                    msg.bornHost = LOCAL;
                    msg.storeHost = LOCAL;
                    msg.properties = new HashMap<>();
                    msg.properties.put("KEYS", "k" + i);
                    long begin = System.nanoTime();
                    boolean good = Release.put(store, msg).isOk();
                    if (nanos != null) {
                        nanos[i] = System.nanoTime() - begin;
                    }
                    if (!good) {
                        failed.incrementAndGet();
                    }
                }
            });
            workers[t].start();
        }
        for (Thread worker : workers) {
            worker.join();
        }
        return failed.get();
    }

    private static final InetSocketAddress LOCAL = new InetSocketAddress("127.0.0.1", 10911);
}
