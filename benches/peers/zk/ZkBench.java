// ZooKeeper's side of the comparison. Runs workloads one after the other, and prints one JSON line each.
//
//   java -cp ... ZkBench --servers HOST:PORT,... NAME[:KEY=VALUE]...
//
// The first server is the leader: on=leader is that one, on=follower the second, and otherwise clients are spread.

import java.io.*;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import org.apache.curator.framework.*;
import org.apache.curator.framework.recipes.queue.SimpleDistributedQueue;
import org.apache.curator.retry.RetryOneTime;
import org.apache.zookeeper.*;
import org.apache.zookeeper.data.ACL;

public class ZkBench {
    static final int KEYS = 1000;
    static final List<ACL> OPEN = ZooDefs.Ids.OPEN_ACL_UNSAFE;
    static final int SESSION_MS = 10000;
    static String[] servers;

    // ---- options, connections, figures ----

    static int number(Map<String, String> o, String key, int other) {
        return o.containsKey(key) ? Integer.parseInt(o.get(key)) : other;
    }

    static long millis(Map<String, String> o, String key, double other) {
        return (long) (1000 * (o.containsKey(key) ? Double.parseDouble(o.get(key)) : other));
    }

    static String server(Map<String, String> o, int client) {
        switch (o.getOrDefault("on", "spread")) {
            case "leader": return servers[0];
            case "follower": return servers[1];
            default: return servers[client % servers.length];
        }
    }

    static String child(String parent, long i) { return String.format("%s/%05d", parent, i); }

    static String key(long i) { return String.format("/bench/k/%04d", i % KEYS); }

    static ZooKeeper connect(String where) throws Exception {
        CountDownLatch up = new CountDownLatch(1);
        ZooKeeper z = new ZooKeeper(where, SESSION_MS, e -> {
            if (e.getState() == Watcher.Event.KeeperState.SyncConnected) up.countDown();
        });
        if (!up.await(30, TimeUnit.SECONDS)) throw new IOException("no connection to " + where);
        return z;
    }

    /** Nanoseconds each; one thread adds. */
    static class Latencies {
        long[] all = new long[1 << 12];
        int count;

        void add(long ns) {
            if (count == all.length) all = Arrays.copyOf(all, count * 2);
            all[count++] = ns;
        }
    }

    static long[] sorted(List<Latencies> each) {
        return each.stream().flatMapToLong(l -> Arrays.stream(l.all, 0, l.count)).sorted().toArray();
    }

    static String percentiles(String prefix, List<Latencies> each) {
        long[] all = sorted(each);
        if (all.length == 0) return "";
        StringBuilder s = new StringBuilder();
        String[] names = {"p50", "p99", "p999", "max"};
        double[] shares = {.5, .99, .999, 1};
        for (int i = 0; i < names.length; i++) {
            long at = all[Math.min(all.length - 1, (int) (all.length * shares[i]))];
            s.append(String.format(Locale.ROOT, ",\"%s%s_us\":%.1f", prefix, names[i], at / 1e3));
        }
        return s.toString();
    }

    static void print(String row, String fields) {
        System.out.println("{\"row\":\"" + row + "\"" + fields + "}");
        System.out.flush();
    }

    // ---- clients that call until the window is over ----

    static final int WARM = 0, TIMED = 1, OVER = 2;
    static volatile int phase;
    static double seconds;

    static void window(Map<String, String> o) throws Exception {
        Thread.sleep(millis(o, "warm", 2));
        long begun = System.nanoTime();
        phase = TIMED;
        Thread.sleep(millis(o, "secs", 6));
        phase = OVER;
        seconds = (System.nanoTime() - begun) / 1e9;
    }

    /** A client's whole loop: calls while phase < OVER, and adds what ended while it was TIMED. */
    interface Loop { void run(int client, ZooKeeper z, Latencies l, AtomicLong errors) throws Exception; }
    /** Not to be counted. */
    static final long NONE = -1;

    /** One blocking call; returns its latency. */
    interface Call { long run(int client, ZooKeeper z, long sequence) throws Exception; }

    /** The longest time in which nothing was done, of pipelined calls. */
    static volatile long gap;

    static void clients(String row, Map<String, String> o, Loop loop, List<Latencies> handoffs) throws Exception {
        gap = 0;
        int count = number(o, "clients", 1);
        phase = WARM;
        AtomicLong errors = new AtomicLong();
        List<ZooKeeper> connections = new ArrayList<>();
        List<Latencies> latencies = new ArrayList<>();
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            connections.add(connect(server(o, i)));
            latencies.add(new Latencies());
        }
        for (int i = 0; i < count; i++) {
            final int client = i;
            threads.add(new Thread(() -> {
                try {
                    loop.run(client, connections.get(client), latencies.get(client), errors);
                } catch (Exception e) {
                    errors.incrementAndGet();
                    System.err.println(row + ": " + e);
                }
            }));
            threads.get(i).start();
        }
        window(o);
        for (Thread t : threads) t.join();
        String rate = String.format(Locale.ROOT, ",\"ops_per_s\":%.1f", sorted(latencies).length / seconds);
        String more = percentiles("", latencies) + percentiles("handoff_", handoffs);
        if (gap > 0) more += String.format(Locale.ROOT, ",\"gap_ms\":%.1f", gap / 1e6);
        print(row, rate + more + ",\"errors\":" + errors.get());
        for (ZooKeeper z : connections) z.close();
    }

    static Loop blocking(Call call) {
        return (client, z, l, errors) -> {
            for (long sequence = 0; phase < OVER; sequence++) {
                long ns = call.run(client, z, sequence);
                if (phase == TIMED && ns != NONE) l.add(ns);
            }
        };
    }

    /** Sets with that many outstanding. */
    static Loop pipelined(Map<String, String> o, int outstanding, byte[] data) {
        int many = number(o, "keys", 0);
        return (client, z, l, errors) -> {
            Semaphore room = new Semaphore(outstanding);
            long[] last = new long[1];
            for (long sequence = 0; phase < OVER; sequence++) {
                room.acquireUninterruptibly();
                long begun = System.nanoTime();
                // A step through all of them that looks random: their number is not a multiple of it.
                String path = many > 0 ? child(o.get("path"), sequence * 61803 % many) : key(client * 31 + sequence);
                z.setData(path, data, -1, (rc, p, c, stat) -> {
                    // In the connection's one event thread.
                    if (rc != 0) errors.incrementAndGet();
                    else if (phase == TIMED) {
                        long now = System.nanoTime();
                        l.add(now - begun);
                        if (last[0] > 0) gap = Math.max(gap, now - last[0]);
                        last[0] = now;
                    }
                    room.release();
                }, null);
            }
            room.acquireUninterruptibly(outstanding);
        };
    }

    // ---- workloads ----

    static void run(String name, Map<String, String> o) throws Exception {
        String row = o.getOrDefault("row", name);
        int outstanding = number(o, "out", 1);
        byte[] data = new byte[number(o, "size", 100)];
        Arrays.fill(data, (byte) 'x');
        switch (name) {
            case "init": init(data); break;
            case "set":
                // The first client sets a large value, which does not count.
                byte[] large = new byte[number(o, "beside", 0)];
                clients(row, o, outstanding > 1 ? pipelined(o, outstanding, data) : blocking((client, z, sequence) -> {
                    boolean isLarge = large.length > 0 && client == 0;
                    String path = key(isLarge ? sequence % 16 : client * 31 + sequence);
                    long begun = System.nanoTime();
                    z.setData(path, isLarge ? large : data, -1);
                    return isLarge ? NONE : System.nanoTime() - begun;
                }), List.of());
                break;
            case "client":
            case "get":
                clients(row, o, blocking((client, z, sequence) -> {
                    long begun = System.nanoTime();
                    get(o, z, key(client * 31 + sequence));
                    return System.nanoTime() - begun;
                }), List.of());
                break;
            case "mix": // seven of ten are gets
                clients(row, o, blocking((client, z, sequence) -> {
                    String path = key(client * 31 + sequence);
                    long begun = System.nanoTime();
                    if (sequence % 10 < 7) get(o, z, path);
                    else z.setData(path, data, -1);
                    return System.nanoTime() - begun;
                }), List.of());
                break;
            case "fill": fill(o.get("path"), number(o, "keys", 1), data); break;
            case "list":
                clients(row, o, blocking((client, z, sequence) -> {
                    long begun = System.nanoTime();
                    z.getChildren(o.get("path"), false);
                    return System.nanoTime() - begun;
                }), List.of());
                break;
            case "queue": queue(row, o, data); break;
            case "fanout": fanOut(row, number(o, "rounds", 100), number(o, "sessions", 1000), data); break;
            case "watch": watch(row, number(o, "rounds", 1000), data); break;
            case "lock": lock(row, o); break;
            case "rawsession":
                clients(row, o, blocking((client, z, sequence) -> {
                    long begun = System.nanoTime();
                    rawSession(server(o, client), "/bench/lock/e" + client + "-" + sequence, data);
                    return System.nanoTime() - begun;
                }), List.of());
                break;
            case "failover": failover(row, o, data); break;
            default: throw new Exception("no workload " + name);
        }
    }

    static void init(byte[] data) throws Exception {
        ZooKeeper z = connect(servers[0]);
        for (String path : List.of("/bench", "/bench/k", "/bench/lock"))
            z.create(path, data, OPEN, CreateMode.PERSISTENT);
        for (int i = 0; i < KEYS; i++) z.create(key(i), data, OPEN, CreateMode.PERSISTENT);
        z.close();
    }

    /** From the server's own state; with `linear`, no older than the call. */
    static void get(Map<String, String> o, ZooKeeper z, String path) throws Exception {
        if (number(o, "linear", 0) > 0) z.sync(path, (rc, p, c) -> { }, null);
        z.getData(path, false, null);
    }

    /** Creates this parent and so many children, many at a time. */
    static void fill(String parent, int keys, byte[] data) throws Exception {
        ZooKeeper z = connect(servers[0]);
        z.create(parent, new byte[0], OPEN, CreateMode.PERSISTENT);
        Semaphore room = new Semaphore(1000);
        for (int i = 0; i < keys; i++) {
            room.acquireUninterruptibly();
            z.create(child(parent, i), data, OPEN, CreateMode.PERSISTENT, (rc, p, c, name) -> room.release(), null);
        }
        room.acquireUninterruptibly(1000);
        z.close();
    }

    /** Curator's simple queue: half of the clients put, and the others take. */
    static void queue(String row, Map<String, String> o, byte[] data) throws Exception {
        int count = number(o, "clients", 2);
        SimpleDistributedQueue[] queues = new SimpleDistributedQueue[count];
        CuratorFramework[] connections = new CuratorFramework[count];
        for (int i = 0; i < count; i++) {
            connections[i] = CuratorFrameworkFactory.newClient(server(o, i), SESSION_MS, 5000, new RetryOneTime(10));
            connections[i].start();
            queues[i] = new SimpleDistributedQueue(connections[i], "/bench/" + row);
        }
        clients(row, o, blocking((client, z, sequence) -> {
            long begun = System.nanoTime();
            if (client % 2 == 0) {
                queues[client].offer(data);
                return NONE;
            }
            byte[] taken = queues[client].poll(1, TimeUnit.SECONDS);
            return taken == null ? NONE : System.nanoTime() - begun;
        }), List.of());
        for (CuratorFramework connection : connections) connection.close();
    }

    /** A set at the leader, and the last of the events at so many sessions of all servers. */
    static void fanOut(String row, int rounds, int sessions, byte[] data) throws Exception {
        ZooKeeper setter = connect(servers[0]);
        List<ZooKeeper> watchers = new ArrayList<>();
        for (int i = 0; i < sessions; i++) watchers.add(connect(servers[i % servers.length]));
        Latencies events = new Latencies();
        for (int i = 0; i < rounds; i++) {
            AtomicLong last = new AtomicLong();
            CountDownLatch set = new CountDownLatch(sessions), seen = new CountDownLatch(sessions);
            Watcher watcher = e -> { last.accumulateAndGet(System.nanoTime(), Math::max); seen.countDown(); };
            for (ZooKeeper z : watchers) z.exists(key(0), watcher, (rc, p, c, stat) -> set.countDown(), null);
            set.await();
            long begun = System.nanoTime();
            setter.setData(key(0), data, -1);
            if (!seen.await(10, TimeUnit.SECONDS)) throw new Exception("event lost");
            if (i >= rounds / 3) events.add(last.get() - begun);
        }
        print(row, percentiles("", List.of(events)));
        // A close takes 100 ms.
        watchers.parallelStream().forEach(z -> { try { z.close(1); } catch (InterruptedException e) { } });
        setter.close();
    }

    /** Set at the leader, event at the last server. */
    static void watch(String row, int rounds, byte[] data) throws Exception {
        ZooKeeper setter = connect(servers[0]), watcher = connect(servers[servers.length - 1]);
        Latencies events = new Latencies();
        for (int i = 0; i < rounds; i++) {
            long[] at = new long[1];
            CountDownLatch seen = new CountDownLatch(1);
            watcher.exists(key(0), e -> { at[0] = System.nanoTime(); seen.countDown(); });
            long begun = System.nanoTime();
            setter.setData(key(0), data, -1);
            if (!seen.await(10, TimeUnit.SECONDS)) throw new Exception("event lost");
            // The first third warms up.
            if (i >= rounds / 3) events.add(at[0] - begun);
        }
        print(row, percentiles("", List.of(events)));
        setter.close();
        watcher.close();
    }

    /** The recipe of ZooKeeper's documentation: an ephemeral sequential znode, and a watch of the one before it. */
    static void lock(String row, Map<String, String> o) throws Exception {
        String root = "/bench/lock/" + row;
        ZooKeeper admin = connect(servers[0]);
        admin.create(root, new byte[0], OPEN, CreateMode.PERSISTENT);
        admin.close();
        AtomicLong released = new AtomicLong();
        AtomicInteger holders = new AtomicInteger();
        List<Latencies> handoffs = new ArrayList<>();
        for (int i = 0; i < number(o, "clients", 1); i++) handoffs.add(new Latencies());
        clients(row, o, blocking((client, z, sequence) -> {
            long begun = System.nanoTime();
            String mine = z.create(root + "/l-", new byte[0], OPEN, CreateMode.EPHEMERAL_SEQUENTIAL);
            String leaf = mine.substring(root.length() + 1);
            for (String before; (before = before(z.getChildren(root, false), leaf)) != null; ) {
                CountDownLatch gone = new CountDownLatch(1);
                if (z.exists(root + "/" + before, e -> gone.countDown()) != null) gone.await();
            }
            long acquired = System.nanoTime();
            if (holders.incrementAndGet() != 1) throw new Exception("two holders at once");
            if (released.get() != 0 && phase == TIMED) handoffs.get(client).add(acquired - released.get());
            holders.decrementAndGet();
            released.set(System.nanoTime());
            z.delete(mine, -1);
            return acquired - begun;
        }), handoffs);
    }

    static String before(List<String> children, String leaf) {
        return children.stream().filter(c -> c.compareTo(leaf) < 0).max(Comparator.naturalOrder()).orElse(null);
    }

    /**
     * Opens a session, creates an ephemeral znode with it and closes it, over a socket of its own. The Java client's
     * close() sleeps for 100 ms, which would hide what the servers can do.
     */
    static void rawSession(String server, String path, byte[] data) throws Exception {
        String[] address = server.split(":");
        try (Socket socket = new Socket(address[0], Integer.parseInt(address[1]))) {
            socket.setTcpNoDelay(true);
            socket.setSoTimeout(10000);
            DataInputStream in = new DataInputStream(new BufferedInputStream(socket.getInputStream()));
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            DataOutputStream out = new DataOutputStream(bytes);
            // ConnectRequest: protocol version, last zxid, timeout, session id, password, read-only.
            out.writeInt(0); out.writeLong(0); out.writeInt(30000); out.writeLong(0);
            text(out, new byte[16]); out.writeBoolean(false);
            send(socket, bytes);
            in.readNBytes(in.readInt());
            // xid 1, create: path, data, ACL (all rights, world:anyone), ephemeral.
            out.writeInt(1); out.writeInt(1); text(out, path.getBytes()); text(out, data);
            out.writeInt(1); out.writeInt(31); text(out, "world".getBytes()); text(out, "anyone".getBytes());
            out.writeInt(1);
            send(socket, bytes);
            reply(in);
            // xid 2, closeSession.
            out.writeInt(2); out.writeInt(-11);
            send(socket, bytes);
            reply(in);
        }
    }

    static void text(DataOutputStream out, byte[] bytes) throws IOException { out.writeInt(bytes.length); out.write(bytes); }

    static void send(Socket socket, ByteArrayOutputStream bytes) throws IOException {
        ByteBuffer framed = ByteBuffer.allocate(bytes.size() + 4).putInt(bytes.size()).put(bytes.toByteArray());
        socket.getOutputStream().write(framed.array());
        bytes.reset();
    }

    static void reply(DataInputStream in) throws IOException {
        int length = in.readInt();
        in.readInt(); // xid
        in.readLong(); // zxid
        int error = in.readInt();
        in.readNBytes(length - 16);
        if (error != 0) throw new IOException("error " + error);
    }

    /** Writers at all servers; the leader, with the process id `pid`, is signalled while they write. */
    static void failover(String row, Map<String, String> o, byte[] data) throws Exception {
        AtomicBoolean stop = new AtomicBoolean();
        AtomicLong last = new AtomicLong();
        Queue<Long> written = new ConcurrentLinkedQueue<>();
        for (int i = 0; i < number(o, "clients", 8); i++) {
            List<String> order = new ArrayList<>(Arrays.asList(servers));
            Collections.rotate(order, -(i % servers.length));
            final String path = key(i), where = String.join(",", order);
            Thread t = new Thread(() -> write(where, path, data, stop, last, written));
            t.setDaemon(true);
            t.start();
        }
        Thread.sleep(millis(o, "before", 3));
        long signalled = System.nanoTime();
        new ProcessBuilder("/bin/kill", "-" + o.get("signal"), o.get("pid")).inheritIO().start().waitFor();
        // Until writes have gone on for two seconds, a minute at most.
        for (long resumed = 0, now = signalled; now - signalled < 60e9; now = System.nanoTime()) {
            Thread.sleep(20);
            if (now - signalled < 1e9 || now - last.get() > 300e6) resumed = now;
            else if (now - resumed > 2e9) break;
        }
        stop.set(true);
        // Should nobody have written again, the gap lasts to the end.
        List<Long> times = new ArrayList<>(written);
        times.add(System.nanoTime());
        Collections.sort(times);
        long gap = 0;
        for (int i = 1; i < times.size(); i++)
            if (times.get(i) > signalled - 100e6) gap = Math.max(gap, times.get(i) - times.get(i - 1));
        print(row, String.format(Locale.ROOT, ",\"gap_ms\":%.1f", gap / 1e6));
    }

    static void write(String where, String path, byte[] data, AtomicBoolean stop, AtomicLong last, Queue<Long> written) {
        ZooKeeper z = null;
        while (!stop.get()) {
            try {
                if (z == null) z = connect(where);
                z.setData(path, data, -1);
                long now = System.nanoTime();
                written.add(now);
                last.set(now);
            } catch (KeeperException.SessionExpiredException e) {
                z = null;
            } catch (Exception e) { /* tried again */ }
            try { Thread.sleep(2); } catch (InterruptedException e) { return; }
        }
    }

    public static void main(String[] args) throws Exception {
        servers = args[1].split(",");
        for (String workload : Arrays.copyOfRange(args, 2, args.length)) {
            String[] words = workload.split(":");
            Map<String, String> o = new HashMap<>();
            for (int i = 1; i < words.length; i++) o.put(words[i].split("=")[0], words[i].split("=")[1]);
            try {
                run(words[0], o);
            } catch (Exception e) {
                e.printStackTrace();
                print(o.getOrDefault("row", words[0]), ",\"failed\":\"" + e.toString().replaceAll("[\"\\\\\n]", " ") + "\"");
            }
        }
        System.exit(0);
    }
}
