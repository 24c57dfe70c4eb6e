import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.function.Function;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * A worker of the contended lock benchmark: takes and releases one Redisson lock for a while, and reports every hold.
 *
 * <pre>java Worker &lt;lib&gt; &lt;addr&gt; &lt;name&gt; &lt;seconds&gt; &lt;hold_ms&gt;     lib: redisson | redisson-fair</pre>
 *
 * It speaks the same protocol as the Python workers (see bench/fleet.py): prints "ready", waits for a line on standard
 * input, runs, prints one JSON line, and keeps its connections open until standard input is closed.
 */
public final class Worker {
    private static final long MILLISECOND = 1_000_000L;

    /** Sleeps for all but the last millisecond and spins the rest, so that a hold is as long in every language. */
    private static void hold(long since, long nanos) throws InterruptedException {
        if (nanos <= 0) {
            return;
        }
        if (nanos > MILLISECOND) {
            Thread.sleep((nanos - MILLISECOND) / MILLISECOND, (int) ((nanos - MILLISECOND) % MILLISECOND));
        }
        while (System.nanoTime() - since < nanos) {
            Thread.onSpinWait();
        }
    }

    // System.nanoTime is the clock that Python's time.monotonic_ns reads: holds of different processes compare.
    private static List<long[]> run(Function<String, RLock> locks, String name, double seconds, long holdNanos, int limit)
            throws InterruptedException {
        List<long[]> rows = new ArrayList<>();
        long deadline = System.nanoTime() + (long) (seconds * 1e9);
        while (System.nanoTime() < deadline && rows.size() < limit) {
            long start = System.nanoTime();
            RLock lock = locks.apply(name);
            lock.lock();
            long granted = System.nanoTime();
            hold(granted, holdNanos);
            long ending = System.nanoTime();
            lock.unlock();
            rows.add(new long[] {start, granted, ending, System.nanoTime()});
        }
        return rows;
    }

    private static String json(List<long[]> rows) {
        StringBuilder out = new StringBuilder("{\"rows\":[");
        String comma = "";
        for (long[] row : rows) {
            out.append(comma).append('[').append(row[0]).append(',').append(row[1]).append(',');
            out.append(row[2]).append(',').append(row[3]).append(']');
            comma = ",";
        }
        return out.append("]}").toString();
    }

    public static void main(String[] args) throws Exception {
        if (args.length != 5) {
            System.err.println("usage: Worker <lib> <addr> <name> <seconds> <hold_ms>");
            System.exit(2);
        }
        Config config = new Config();
        config.useSingleServer().setAddress("redis://" + args[1]);
        RedissonClient client = Redisson.create(config);
        try {
            Function<String, RLock> locks = args[0].equals("redisson-fair") ? client::getFairLock : client::getLock;
            // Longer than the others', and both ways, alone and contended: the code has to be compiled before it is as
            // fast as it will be. The workers start together, so they meet on the shared name.
            run(locks, "warm-up:" + ProcessHandle.current().pid(), 3.0, 0, 3000);
            run(locks, "warm-up:shared", 3.0, 0, 3000);

            BufferedReader stdin = new BufferedReader(new InputStreamReader(System.in));
            System.out.println("ready");
            if (stdin.readLine() == null) {
                return;
            }
            double seconds = Double.parseDouble(args[3]);
            long holdNanos = (long) (Double.parseDouble(args[4]) * 1e6);
            System.out.println(json(run(locks, args[2], seconds, holdNanos, Integer.MAX_VALUE)));
            stdin.readLine();
        } finally {
            client.shutdown(0, 2, java.util.concurrent.TimeUnit.SECONDS);
        }
    }
}
