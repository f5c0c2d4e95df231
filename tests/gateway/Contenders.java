import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;

import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.atomic.DistributedAtomicInteger;
import org.apache.curator.framework.recipes.atomic.DistributedAtomicLong;
import org.apache.curator.framework.recipes.barriers.DistributedBarrier;
import org.apache.curator.framework.recipes.leader.LeaderLatch;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;
import org.apache.curator.framework.recipes.locks.InterProcessMultiLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.framework.recipes.locks.InterProcessSemaphoreV2;
import org.apache.curator.framework.recipes.locks.Revoker;
import org.apache.curator.framework.recipes.nodes.GroupMember;
import org.apache.curator.framework.recipes.nodes.PersistentNode;
import org.apache.curator.retry.RetryForever;
import org.apache.curator.x.discovery.ServiceDiscovery;
import org.apache.curator.x.discovery.ServiceDiscoveryBuilder;
import org.apache.curator.x.discovery.ServiceInstance;
import org.apache.zookeeper.CreateMode;

/**
 * Curator's locks and elections, driven by lines as examples/shared_recipes.rs: a name, a command, a path and a
 * value. Each line is answered by one that starts with "="; lines with "*" say what a name holds.
 */
public class Contenders {
    /** The permits of semaphores. */
    private static final int PERMITS = 2;
    private static final Map<String, CuratorFramework> clients = new ConcurrentHashMap<>();
    private static GroupMember member;
    private static ServiceDiscovery<Map> discovery;
    private static final Map<String, CountDownLatch> ends = new ConcurrentHashMap<>();

    public static void main(String[] arguments) throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null;) {
            String[] words = line.split(" ");
            print("= " + run(words[0], words[1], words.length > 2 ? words[2] : "", words.length > 3 ? words[3] : null));
        }
    }

    private static synchronized void print(String line) {
        System.out.println(line);
    }

    private static String run(String name, String command, String path, String value) throws Exception {
        switch (command) {
            case "open": {
                var curator = CuratorFrameworkFactory.newClient(path, 5_000, 5_000, new RetryForever(50));
                curator.start();
                clients.put(name, curator);
                return "done";
            }
            case "release":
                ends.get(name).countDown();
                return "done";
        }
        CuratorFramework curator = clients.get(name);
        switch (command) {
            case "add-int": {
                var counter = new DistributedAtomicInteger(curator, path, new RetryForever(1));
                return "" + counter.add(Integer.parseInt(value)).postValue();
            }
            case "add-long": {
                var counter = new DistributedAtomicLong(curator, path, new RetryForever(1));
                return "" + counter.add(Long.parseLong(value)).postValue();
            }
            case "set-barrier":
                new DistributedBarrier(curator, path).setBarrier();
                return "done";
            case "is-barrier":
                return "" + !new DistributedBarrier(curator, path).waitOnBarrier(0, TimeUnit.SECONDS);
            case "revoke": {
                var holder = new InterProcessMutex(curator, path).getParticipantNodes().iterator().next();
                Revoker.attemptRevoke(curator, holder);
                return "done";
            }
            case "until-asked":
                new Thread(() -> {
                    try {
                        var asked = new CountDownLatch(1);
                        var mutex = new InterProcessMutex(curator, path);
                        mutex.makeRevocable(held -> asked.countDown());
                        mutex.acquire();
                        print("* " + name + " holds");
                        asked.await();
                        print("* " + name + " was asked");
                        mutex.release();
                        print("* " + name + " has released");
                    } catch (Exception error) {
                        print("* " + name + " " + error);
                    }
                }).start();
                return "done";
            case "try-multi": {
                var locks = new InterProcessMultiLock(curator, List.of(path, "/free"));
                boolean held = locks.acquire(0, TimeUnit.SECONDS);
                if (held) {
                    locks.release();
                }
                return "" + held;
            }
            case "keep":
                new PersistentNode(curator, CreateMode.EPHEMERAL, false, path, value.getBytes()).start();
                return "done";
            case "register":
                discovery(curator, path).registerService(ServiceInstance.<Map>builder().name("billing").id(value)
                        .address("10.0.0.8").port(81).payload(Map.of("zone", "b")).build());
                return "done";
            case "services":
                return discovery(curator, path).queryForInstances("billing").stream()
                        .map(one -> one.getId() + " " + one.getAddress() + ":" + one.getPort() + " " + one.getPayload().get("zone"))
                        .sorted().collect(Collectors.joining(","));
            case "join-group":
                member = new GroupMember(curator, path, value, value.getBytes());
                member.start();
                return "done";
            case "group":
                return String.join(",", new TreeSet<>(member.getCurrentMembers().keySet()));
        }
        if (command.startsWith("try-")) {
            Held held = attempt(curator, command.substring(4), path);
            if (held != null) {
                held.release();
            }
            return "" + (held != null);
        }
        CountDownLatch end = new CountDownLatch(1);
        ends.put(name, end);
        new Thread(() -> {
            try {
                if (value != null) {
                    print("* " + name + " had " + contend(curator, name, command, path, value, end) + " turns");
                    return;
                }
                Held held = acquire(curator, command, path);
                print("* " + name + " holds");
                end.await();
                held.release();
                print("* " + name + " has released");
            } catch (Throwable error) {
                print("* " + name + " " + error);
            }
        }).start();
        return "done";
    }

    private static ServiceDiscovery<Map> discovery(CuratorFramework curator, String path) throws Exception {
        if (discovery == null) {
            discovery = ServiceDiscoveryBuilder.builder(Map.class).client(curator).basePath(path).build();
            discovery.start();
        }
        return discovery;
    }

    private interface Held {
        void release() throws Exception;

        /** The path of the znode, if Curator shows it; of an elected one, its token. */
        default String path() throws Exception {
            return "-";
        }
    }

    /** Shows the path of its znode. */
    private static class Mutex extends InterProcessMutex implements Held {
        Mutex(CuratorFramework curator, String path) {
            super(curator, path);
        }

        public String path() {
            return getLockPath();
        }
    }

    private static Held acquire(CuratorFramework curator, String kind, String path) throws Exception {
        switch (kind) {
            case "lock": {
                var mutex = new Mutex(curator, path);
                mutex.acquire();
                return mutex;
            }
            case "read": {
                var lock = new InterProcessReadWriteLock(curator, path).readLock();
                lock.acquire();
                return lock::release;
            }
            case "write": {
                var lock = new InterProcessReadWriteLock(curator, path).writeLock();
                lock.acquire();
                return lock::release;
            }
            case "latch", "elected", "handed": {
                var latch = new LeaderLatch(curator, path, UUID.randomUUID().toString());
                latch.start();
                latch.await();
                return new Held() {
                    public void release() throws Exception {
                        latch.close();
                    }

                    public String path() throws Exception {
                        return kind.equals("latch") ? latch.getOurPath() : token(curator, path, latch.getOurPath());
                    }
                };
            }
            case "semaphore": {
                var semaphore = new InterProcessSemaphoreV2(curator, path, PERMITS);
                var lease = semaphore.acquire();
                return () -> semaphore.returnLease(lease);
            }
            case "selector": {
                var leads = new CountDownLatch(1);
                var end = new CountDownLatch(1);
                var selector = selector(curator, path, leads, end);
                selector.start();
                leads.await();
                return () -> {
                    end.countDown();
                    selector.close();
                };
            }
            default:
                throw new IllegalArgumentException(kind);
        }
    }

    /** The token of a leader; "None" if it was passed, or does not lead any more. */
    private static String token(CuratorFramework curator, String path, String own) throws Exception {
        var candidate = curator.checkExists().forPath(own);
        long passed = curator.checkExists().forPath(path).getMzxid();
        return candidate != null && candidate.getCzxid() > passed ? "" + candidate.getCzxid() : "None";
    }

    private static LeaderSelector selector(CuratorFramework curator, String path, CountDownLatch leads, CountDownLatch end) {
        var selector = new LeaderSelector(curator, path, new LeaderSelectorListenerAdapter() {
            @Override
            public void takeLeadership(CuratorFramework client) throws Exception {
                leads.countDown();
                end.await();
            }
        });
        selector.setId(UUID.randomUUID().toString());
        return selector;
    }

    /** Acquires it if it is free. */
    private static Held attempt(CuratorFramework curator, String kind, String path) throws Exception {
        switch (kind) {
            case "lock": {
                var mutex = new Mutex(curator, path);
                return mutex.acquire(0, TimeUnit.SECONDS) ? mutex : null;
            }
            case "read": {
                var lock = new InterProcessReadWriteLock(curator, path).readLock();
                return lock.acquire(0, TimeUnit.SECONDS) ? lock::release : null;
            }
            case "write": {
                var lock = new InterProcessReadWriteLock(curator, path).writeLock();
                return lock.acquire(0, TimeUnit.SECONDS) ? lock::release : null;
            }
            case "latch": {
                var latch = new LeaderLatch(curator, path, UUID.randomUUID().toString());
                latch.start();
                // It is a candidate before it knows whether it leads.
                while (latch.getParticipants().stream().noneMatch(one -> one.getId().equals(latch.getId()))) {
                    Thread.onSpinWait();
                }
                boolean leads = latch.getLeader().getId().equals(latch.getId());
                latch.close();
                return leads ? () -> { } : null;
            }
            case "semaphore": {
                var semaphore = new InterProcessSemaphoreV2(curator, path, PERMITS);
                // It needs time for its own lock and lease.
                var lease = semaphore.acquire(2, TimeUnit.SECONDS);
                return lease == null ? null : () -> semaphore.returnLease(lease);
            }
            case "selector": {
                var end = new CountDownLatch(1);
                var selector = selector(curator, path, new CountDownLatch(1), end);
                selector.start();
                while (selector.getParticipants().stream().noneMatch(one -> one.getId().equals(selector.getId()))) {
                    Thread.onSpinWait();
                }
                boolean leads = selector.getLeader().getId().equals(selector.getId());
                end.countDown();
                selector.close();
                return leads ? () -> { } : null;
            }
            default:
                throw new IllegalArgumentException(kind);
        }
    }

    /**
     * Acquires and releases again and again. What is held is written into a folder: a file "holder" while somebody
     * holds alone, and a file for each reader and each permit. Each is a link to its holder's name.
     */
    private static int contend(CuratorFramework curator, String name, String kind, String path, String folder, CountDownLatch end) throws Exception {
        int turns = 0;
        while (!end.await(1, TimeUnit.MILLISECONDS)) {
            Held held;
            try {
                held = acquire(curator, kind, path);
            } catch (Exception over) {
                // Its session has ended.
                continue;
            }
            String file = switch (kind) {
                case "read" -> "reader-" + name;
                case "semaphore" -> "permit-" + name;
                default -> "holder";
            };
            // A link that names its holder: made in one step, whenever somebody is killed.
            Files.createSymbolicLink(Path.of(folder, file), Path.of(name));
            String others = switch (kind) {
                case "read" -> "holder";
                case "semaphore" -> "permit";
                default -> "reader";
            };
            try (var all = Files.list(Path.of(folder))) {
                var beside = all.map(other -> other.getFileName().toString()).filter(other -> other.startsWith(others)).toList();
                if (beside.size() > (others.equals("permit") ? PERMITS : 0)) {
                    throw new IllegalStateException(name + " holds beside " + beside);
                }
            }
            if (file.equals("holder")) {
                Files.write(Path.of(folder, "order"), (name + " " + held.path() + "\n").getBytes(), StandardOpenOption.APPEND);
            }
            Thread.sleep(3);
            Files.delete(Path.of(folder, file));
            turns++;
            try {
                held.release();
            } catch (Exception over) {
                // Curator deletes the znode in the background.
            }
        }
        return turns;
    }
}
