import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;

import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.cache.CuratorCache;
import org.apache.curator.framework.recipes.leader.LeaderSelector;
import org.apache.curator.framework.recipes.leader.LeaderSelectorListenerAdapter;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.retry.RetryForever;

/**
 * Curator, driven by lines: the name of a client, a command, a path, data. Each is answered by a line
 * that starts with "=". Lines with "!" are events of caches, "~" states, "*" locks and leaderships, "#" errors
 * that nobody has handled.
 */
public class Recipes {
    private static final Map<String, CuratorFramework> clients = new HashMap<>();
    private static final Map<String, CountDownLatch> releases = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = lines.readLine()) != null;) {
            String[] words = line.split(" ");
            print("= " + run(words[0], words[1], words[2], words.length > 3 ? words[3].getBytes() : null));
        }
    }

    private static synchronized void print(String line) {
        System.out.println(line);
    }

    private static String run(String name, String command, String path, byte[] data) throws Exception {
        if (command.equals("open")) {
            var curator = CuratorFrameworkFactory.newClient(path, 30_000, 30_000, new RetryForever(100));
            curator.getConnectionStateListenable().addListener((client, state) -> print("~ " + name + " " + state));
            curator.getUnhandledErrorListenable().addListener((message, error) -> print("# " + name + " " + message + " " + error));
            curator.start();
            clients.put(name, curator);
            return "done";
        }
        CuratorFramework curator = clients.get(name);
        switch (command) {
            case "create":
                return curator.create().creatingParentContainersIfNeeded().forPath(path, data);
            case "set":
                return "" + curator.setData().forPath(path, data).getVersion();
            case "delete":
                curator.delete().forPath(path);
                return "done";
            case "lock": {
                CountDownLatch release = new CountDownLatch(1);
                releases.put(name, release);
                new Thread(() -> hold(name, new InterProcessMutex(curator, path), release)).start();
                return "done";
            }
            case "release":
                releases.get(name).countDown();
                return "done";
            case "lead":
                new LeaderSelector(curator, path, new LeaderSelectorListenerAdapter() {
                    @Override
                    public void takeLeadership(CuratorFramework client) throws Exception {
                        print("* " + name + " leads");
                        try {
                            new CountDownLatch(1).await();
                        } finally {
                            print("* " + name + " leads no more");
                        }
                    }
                }).start();
                return "done";
            case "hosts":
                return curator.getZookeeperClient().getCurrentConnectionString();
            case "children":
                return "" + curator.getChildren().forPath(path).size();
            default: {
                CuratorCache cache = CuratorCache.build(curator, path);
                cache.listenable().addListener((type, before, after) -> {
                    var node = after == null ? before : after;
                    print("! " + name + " " + type + " " + node.getPath() + " " + new String(node.getData()));
                });
                cache.start();
                return "done";
            }
        }
    }

    private static void hold(String name, InterProcessMutex mutex, CountDownLatch release) {
        try {
            mutex.acquire();
            print("* " + name + " holds");
            release.await();
            mutex.release();
            print("* " + name + " has released");
        } catch (Exception error) {
            print("* " + name + " " + error);
        }
    }
}
