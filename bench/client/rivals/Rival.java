import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.LongAdder;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/** The Java client on one row of make bench-client: NAMESRV ROW SECONDS COUNT GROUP. It is warm before it is measured. */
public class Rival {
    static final int WINDOW = 1024;

    public static void main(String[] arguments) throws Exception {
        String row = arguments[1];
        double seconds = Double.parseDouble(arguments[2]);
        if (row.startsWith("C7")) {
            consume(arguments[0], arguments[4], Long.parseLong(arguments[3]), row.equals("C7 batch") ? 32 : 1);
        } else {
            produce(arguments[0], row, seconds);
        }
        System.exit(0);
    }

    static long cpuNanos() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    static void show(long count, long nanos, long cpu) {
        System.out.printf(Locale.ROOT, "{\"rate\": %.1f, \"cpu_us\": %.2f}%n", count / (nanos / 1e9), cpu / 1e3 / count);
    }

    static void produce(String namesrv, String row, double seconds) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("rival-java");
        producer.setNamesrvAddr(namesrv);
        producer.setVipChannelEnabled(false);
        producer.start();
        for (double length : new double[] {3.0, seconds}) {
            LongAdder done = new LongAdder();
            long begin = System.nanoTime(), cpu = cpuNanos(), end = begin + (long) (length * 1e9);
            if (row.equals("C4")) {
                pipelined(producer, done, end);
            } else {
                int threads = row.equals("C2") ? 16 : 1;
                List<Thread> running = new ArrayList<>();
                for (int i = 0; i < threads; i++) {
                    Thread one = new Thread(() -> one(producer, row, done, end));
                    one.start();
                    running.add(one);
                }
                for (Thread one : running) {
                    one.join();
                }
            }
            if (length != 3.0) {
                show(done.sum(), System.nanoTime() - begin, cpuNanos() - cpu);
            }
        }
        producer.shutdown();
    }

    static void one(DefaultMQProducer producer, String row, LongAdder done, long end) {
        byte[] body = new byte[1024], small = new byte[100];
        try {
            while (System.nanoTime() < end) {
                if (row.equals("C5 batch")) {
                    List<Message> many = new ArrayList<>();
                    for (int i = 0; i < 32; i++) {
                        many.add(new Message("bench", small));
                    }
                    producer.send(many);
                    done.add(32);
                } else {
                    producer.send(new Message("bench", body));
                    done.increment();
                }
            }
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    static void pipelined(DefaultMQProducer producer, LongAdder done, long end) throws Exception {
        byte[] body = new byte[1024];
        Semaphore room = new Semaphore(WINDOW);
        while (System.nanoTime() < end) {
            room.acquire();
            producer.send(new Message("bench", body), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    done.increment();
                    room.release();
                }

                @Override
                public void onException(Throwable error) {
                    room.release();
                }
            });
        }
        room.acquire(WINDOW);
    }

    static void consume(String namesrv, String group, long count, int batch) throws Exception {
        AtomicLong seen = new AtomicLong();
        CountDownLatch finished = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        consumer.setVipChannelEnabled(false);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(batch);
        consumer.subscribe("filled", "*");
        long begin = System.nanoTime(), cpu = cpuNanos();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            if (seen.addAndGet(messages.size()) >= count) {
                finished.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        finished.await();
        show(seen.get(), System.nanoTime() - begin, cpuNanos() - cpu);
        consumer.shutdown();
    }
}
