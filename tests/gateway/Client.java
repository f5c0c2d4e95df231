import java.io.BufferedReader;
import java.io.FileInputStream;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.security.cert.CertificateFactory;
import java.security.cert.X509Certificate;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.stream.Collectors;

import org.apache.zookeeper.AddWatchMode;
import org.apache.zookeeper.CreateMode;
import org.apache.zookeeper.KeeperException;
import org.apache.zookeeper.Op;
import org.apache.zookeeper.OpResult;
import org.apache.zookeeper.Watcher;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.Stat;

/**
 * ZooKeeper's Java client, driven by lines: the name of a client, a command, its arguments. Each is
 * answered by a line that starts with "=". Lines with "!" are watch events, "~" states, "*" locks.
 */
public class Client {
    private static final Map<String, ZooKeeper> clients = new HashMap<>();

    public static void main(String[] arguments) throws Exception {
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = lines.readLine()) != null;) {
            String[] words = line.split(" ");
            try {
                print("= " + run(words[0], words[1], words));
            } catch (KeeperException error) {
                print("= " + error.code());
            }
        }
    }

    private static synchronized void print(String line) {
        System.out.println(line);
    }

    private static Watcher watcher(String name, String tag) {
        return event -> {
            if (event.getType() != Watcher.Event.EventType.None) {
                print("! " + name + " " + tag + " " + event.getType() + " " + event.getPath());
            }
        };
    }

    private static String run(String name, String command, String[] words) throws Exception {
        if (command.equals("open")) {
            Watcher states = event -> {
                if (event.getType() == Watcher.Event.EventType.None) {
                    print("~ " + name + " " + event.getState());
                }
            };
            clients.put(name, new ZooKeeper(words[2], Integer.parseInt(words[3]), states, words.length > 4));
            return "opened";
        }
        ZooKeeper zk = clients.get(name);
        String path = words.length > 2 ? words[2] : null;
        switch (command) {
            case "close":
                zk.close();
                return "closed";
            case "session":
                return Long.toHexString(zk.getSessionId());
            case "port": {
                String remote = zk.toString().replaceAll(".*remoteserver:(\\S+) .*", "$1");
                return remote.substring(remote.lastIndexOf(':') + 1);
            }
            case "subject":
                try (var file = new FileInputStream(path)) {
                    var certificate = CertificateFactory.getInstance("X.509").generateCertificate(file);
                    return ((X509Certificate) certificate).getSubjectX500Principal().getName();
                }
            case "who":
                return zk.whoAmI().stream().map(id -> id.getAuthScheme() + ":" + id.getUser()).sorted()
                    .collect(Collectors.toList()).toString();
            case "auth":
                zk.addAuthInfo("digest", words[2].getBytes());
                return "done";
            case "create": {
                var acl = words.length > 5 ? ZooDefs.Ids.CREATOR_ALL_ACL : ZooDefs.Ids.OPEN_ACL_UNSAFE;
                Stat stat = new Stat();
                String made = zk.create(path, data(words, 3), acl, CreateMode.valueOf(words[4]), stat);
                return made + " " + stat.getVersion() + " " + (stat.getEphemeralOwner() != 0);
            }
            case "set":
                return "" + zk.setData(path, data(words, 3), -1).getVersion();
            case "delete":
                zk.delete(path, -1);
                return "done";
            case "get":
                return new String(zk.getData(path, false, null));
            case "owner":
                return Long.toHexString(zk.exists(path, false).getEphemeralOwner());
            case "data":
                return new String(zk.getData(path, watcher(name, "data"), null));
            case "exists":
                return "" + (zk.exists(path, watcher(name, "exists")) != null);
            case "children": {
                List<String> children = zk.getChildren(path, watcher(name, "children"));
                Collections.sort(children);
                return children.toString();
            }
            case "persistent":
                zk.addWatch(path, watcher(name, "persistent"), AddWatchMode.PERSISTENT);
                return "done";
            case "recursive":
                zk.addWatch(path, watcher(name, "recursive"), AddWatchMode.PERSISTENT_RECURSIVE);
                return "done";
            case "multi":
                return multi(zk, words);
            case "lock":
                new Thread(() -> lock(name, zk, path)).start();
                return "done";
            default:
                throw new IllegalArgumentException(command);
        }
    }

    private static byte[] data(String[] words, int place) {
        return words[place].getBytes();
    }

    /** Ops as create:/path:data, set:/path:data, delete:/path, check:/path:version. */
    private static String multi(ZooKeeper zk, String[] words) throws Exception {
        List<Op> ops = new ArrayList<>();
        for (int place = 2; place < words.length; place++) {
            String[] op = words[place].split(":");
            switch (op[0]) {
                case "create":
                    ops.add(Op.create(op[1], op[2].getBytes(), ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.PERSISTENT));
                    break;
                case "set":
                    ops.add(Op.setData(op[1], op[2].getBytes(), -1));
                    break;
                case "delete":
                    ops.add(Op.delete(op[1], -1));
                    break;
                default:
                    ops.add(Op.check(op[1], Integer.parseInt(op[2])));
            }
        }
        try {
            return zk.multi(ops).stream().map(Client::show).toList().toString();
        } catch (KeeperException error) {
            return error.code() + " " + error.getResults().stream().map(Client::show).toList();
        }
    }

    private static String show(OpResult result) {
        if (result instanceof OpResult.CreateResult created) {
            return "created " + created.getPath();
        } else if (result instanceof OpResult.SetDataResult set) {
            return "set " + set.getStat().getVersion();
        } else if (result instanceof OpResult.ErrorResult failed) {
            return KeeperException.Code.get(failed.getErr()).toString();
        }
        return result.getClass().getSimpleName();
    }

    /** ZooKeeper's recipe: the lowest znode has the lock, and each waits for the one before it. */
    private static void lock(String name, ZooKeeper zk, String path) {
        try {
            String mine = zk.create(path + "/lock-", null, ZooDefs.Ids.OPEN_ACL_UNSAFE, CreateMode.EPHEMERAL_SEQUENTIAL);
            print("* " + name + " waits " + mine);
            while (true) {
                List<String> all = zk.getChildren(path, false);
                Collections.sort(all);
                int place = all.indexOf(mine.substring(path.length() + 1));
                if (place == 0) {
                    print("* " + name + " holds " + mine);
                    return;
                }
                CountDownLatch gone = new CountDownLatch(1);
                Watcher watcher = event -> {
                    if (event.getType() == Watcher.Event.EventType.NodeDeleted) {
                        gone.countDown();
                    }
                };
                if (zk.exists(path + "/" + all.get(place - 1), watcher) != null) {
                    gone.await();
                }
            }
        } catch (Exception error) {
            print("* " + name + " " + error);
        }
    }
}
