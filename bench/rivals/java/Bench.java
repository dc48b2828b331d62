// The measuring loop of a rival in Java: one command a line on stdin, one JSON object a line on stdout. The same commands as
// worker.py, which describes them. It must never touch a directory that it was not given.
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.TreeMap;

public final class Bench {
    // One store. put must be callable from several threads when threads() says so.
    public interface Target {
        void open(String directory, boolean durable) throws Exception;

        void put(byte[] body) throws Exception;

        void close() throws Exception;

        boolean threads();

        boolean durable();
    }

    private static final int CHUNK = 200;
    private static final long TICKS_NS = 20_000_000;
    private static final int LEAD_S = 1; // as in latency.py
    private static PrintStream out;

    public static void main(String[] args) throws Exception {
        out = new PrintStream(System.out, false, "UTF-8");
        System.setOut(System.err); // a library that prints must not break the protocol
        Target target = (Target) Class.forName(args[0]).getDeclaredConstructor().newInstance();
        boolean durable = false;
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line; (line = in.readLine()) != null; ) {
            String[] words = line.split("\t");
            String answer;
            try {
                switch (words[0]) {
                    case "open":
                        durable = words[2].equals("durable");
                        if (durable && !target.durable()) {
                            answer = "{\"skip\":\"has no durable put\"}";
                            break;
                        }
                        target.open(words[1], durable);
                        answer = "{}";
                        break;
                    case "close":
                        target.close();
                        answer = "{}";
                        break;
                    case "single":
                        answer = single(target, Integer.parseInt(words[1]), Double.parseDouble(words[2]), Integer.parseInt(words[3]),
                            durable);
                        break;
                    case "timed":
                        answer = timed(target, Integer.parseInt(words[1]), Double.parseDouble(words[2]));
                        break;
                    case "paced":
                        answer = paced(target, Integer.parseInt(words[1]), Integer.parseInt(words[2]), Double.parseDouble(words[3]), Long.parseLong(words[4]));
                        break;
                    case "thread":
                        answer = "{\"thread\":" + Files.readSymbolicLink(Path.of("/proc/thread-self")).getFileName() + "}";
                        break;
                    default:
                        answer = "{\"skip\":\"not measured\"}";
                }
            } catch (Exception e) {
                answer = "{\"error\":\"" + String.valueOf(e).replaceAll("[^ -!#-\\[\\]-~]", " ") + "\"}";
            }
            out.println(answer);
            out.flush();
        }
        Runtime.getRuntime().halt(0);
    }

    private static byte[] body(int size) {
        byte[] body = new byte[size];
        Arrays.fill(body, (byte) 'x');
        return body;
    }

    private static String single(Target target, int size, double seconds, int threads, boolean durable) throws Exception {
        if (threads > 1 && !target.threads()) {
            return "{\"skip\":\"one writer only\"}";
        }
        byte[] body = body(size);
        int chunk = durable ? 1 : CHUNK;
        long[] counts = new long[threads];
        Exception[] failed = new Exception[1];
        long begin = System.nanoTime();
        long end = begin + (long) (seconds * 1e9);
        Thread[] workers = new Thread[threads];
        for (int t = 0; t < threads; t++) {
            int number = t;
            Runnable work = () -> {
                try {
                    do {
                        for (int i = 0; i < chunk; i++) {
                            target.put(body);
                        }
                        counts[number] += chunk;
                    } while (System.nanoTime() < end);
                } catch (Exception e) {
                    failed[0] = e;
                }
            };
            if (threads == 1) {
                work.run(); // some writers may be used by one thread only
            } else {
                workers[t] = new Thread(work);
                workers[t].start();
            }
        }
        for (Thread worker : workers) {
            if (worker != null) {
                worker.join();
            }
        }
        if (failed[0] != null) {
            throw failed[0];
        }
        long took = System.nanoTime() - begin;
        long count = Arrays.stream(counts).sum();
        return "{\"count\":" + count + ",\"ns\":" + (double) took / count + "}";
    }

    private static String timed(Target target, int size, double seconds) throws Exception {
        byte[] body = body(size);
        TreeMap<Long, long[]> histogram = new TreeMap<>();
        long end = System.nanoTime() + (long) (seconds * 1e9);
        long[] chunk = new long[4096];
        do {
            int n = 0;
            while (n < chunk.length) {
                long begin = System.nanoTime();
                target.put(body);
                long done = System.nanoTime();
                chunk[n++] = done - begin;
                if (done >= end) {
                    break;
                }
            }
            add(histogram, chunk, 0, n);
        } while (System.nanoTime() < end);
        return "{\"call\":" + text(histogram) + "}";
    }

    private static String paced(Target target, int size, int rate, double seconds, long phase) throws Exception {
        byte[] body = body(size);
        int lead = rate * LEAD_S;
        int count = lead + (int) Math.max(1, rate * seconds);
        long[] due = new long[count];
        long[] call = new long[count];
        Arrays.fill(due, 1); // so that no page is met for the first time in the loop
        Arrays.fill(call, 1);
        for (int i = 0; i < 2000; i++) {
            target.put(body);
        }
        System.gc();
        double period = 1e9 / rate;
        long start = System.nanoTime() + 1_000_000;
        start += Math.floorMod(phase - start, TICKS_NS); // as first_due in latency.py
        for (int k = 0; k < count; k++) {
            long at = start + (long) (k * period);
            long now = System.nanoTime();
            while (now < at) {
                Thread.onSpinWait();
                now = System.nanoTime();
            }
            target.put(body);
            long end = System.nanoTime();
            due[k] = end - at;
            call[k] = end - now;
        }
        return "{\"due\":" + counted(due, lead) + ",\"call\":" + counted(call, lead) + ",\"alone\":"
            + counted(byCallsAlone(call, period), lead) + "}";
    }

    // As by_calls_alone in latency.py.
    private static long[] byCallsAlone(long[] call, double period) {
        long[] late = new long[call.length];
        double behind = 0;
        for (int k = 0; k < call.length; k++) {
            late[k] = (long) behind + call[k];
            behind = Math.max(0, behind + call[k] - period);
        }
        return late;
    }

    private static String counted(long[] values, int from) {
        TreeMap<Long, long[]> histogram = new TreeMap<>();
        add(histogram, values, from, values.length);
        return text(histogram);
    }

    // Values keep their 11 highest bits: an error below one in a thousand.
    private static void add(TreeMap<Long, long[]> histogram, long[] values, int from, int to) {
        for (int i = from; i < to; i++) {
            long value = Math.max(1, values[i]);
            int shift = Math.max(0, 53 - Long.numberOfLeadingZeros(value));
            histogram.computeIfAbsent(value >> shift << shift, key -> new long[1])[0]++;
        }
    }

    private static String text(TreeMap<Long, long[]> histogram) {
        StringBuilder text = new StringBuilder("[");
        histogram.forEach((value, count) -> text.append(text.length() > 1 ? "," : "").append('[').append(value).append(',')
            .append(count[0]).append(']'));
        return text.append(']').toString();
    }
}
