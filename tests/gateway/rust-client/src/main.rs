//! The crate `zookeeper-client` at a gateway, while members are lost and come back.
//!
//! The argument is the list of hosts. The program asks on its standard output for a member to be killed or
//! started ("kill 1"), and waits for a line on its standard input. It panics if any check fails.

use std::io::Write;
use std::time::Duration;

use zookeeper_client::{
    Acls, AddWatchMode, Client, Connector, CreateMode, CreateOptions, Error, EventType, LockPrefix,
    MultiReadResult, MultiWriteError, MultiWriteResult, SessionState,
};

const PERSISTENT: CreateOptions<'_> = CreateMode::Persistent.with_acls(Acls::anyone_all());
const EPHEMERAL: CreateOptions<'_> = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
const SEQUENTIAL: CreateOptions<'_> = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
const MEMBERS: usize = 3;
const ORDERS: [&str; 2] = ["kill", "start"];
/// The number of znodes that are created after each order.
const EACH: usize = 10;
const WORKERS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(60);

fn connector() -> Connector {
    Client::connector().with_session_timeout(Duration::from_secs(20)).with_server_version(3, 9, 0)
}

async fn connect(hosts: &str) -> Client {
    connector().connect(hosts).await.expect("the members serve")
}

/// Asks the parent process to kill or start a member, and waits until that is done.
async fn order(order: String) {
    let done = tokio::task::spawn_blocking(move || {
        println!("{order}");
        std::io::stdout().flush().expect("the parent process reads");
        std::io::stdin().read_line(&mut String::new())
    });
    assert_ne!(
        done.await.expect("it does not panic").expect("an answer"),
        0,
        "the parent process has ended"
    );
}

/// Whether the connection was lost: the crate passes on some errors of the socket unchanged.
fn is_lost(error: &Error) -> bool {
    matches!(error, Error::ConnectionLoss | Error::Custom(_))
}

/// Repeats an operation as long as the connection is lost on the way.
async fn again<T>(what: impl AsyncFn() -> Result<T, Error>) -> Result<T, Error> {
    loop {
        match what().await {
            Err(error) if is_lost(&error) => tokio::task::yield_now().await,
            other => return other,
        }
    }
}

async fn multis(client: &Client) {
    let mut writer = client.new_multi_writer();
    writer.add_create("/m", b"1", &PERSISTENT).unwrap();
    writer.add_set_data("/m", b"2", Some(0)).unwrap();
    writer.add_check_version("/m", 1).unwrap();
    writer.add_create("/m/a", b"", &PERSISTENT).unwrap();
    writer.add_delete("/m/a", None).unwrap();
    let results = writer.commit().await.unwrap();
    assert_eq!(results.len(), 5);
    assert!(matches!(&results[0], MultiWriteResult::Create { path, .. } if path == "/m"));
    assert!(matches!(&results[1], MultiWriteResult::SetData { stat } if stat.version == 1));
    assert!(matches!(results[4], MultiWriteResult::Delete));

    let mut writer = client.new_multi_writer();
    writer.add_create("/m/b", b"", &PERSISTENT).unwrap();
    writer.add_check_version("/m", 7).unwrap();
    writer.add_create("/m/c", b"", &PERSISTENT).unwrap();
    let failed = writer.commit().await.unwrap_err();
    assert_eq!(failed, MultiWriteError::OperationFailed { index: 1, source: Error::BadVersion });
    assert_eq!(client.check_stat("/m/b").await.unwrap(), None);

    let mut reader = client.new_multi_reader();
    reader.add_get_data("/m").unwrap();
    reader.add_get_children("/none").unwrap();
    reader.add_get_children("/m").unwrap();
    let results = reader.commit().await.unwrap();
    assert!(
        matches!(&results[0], MultiReadResult::Data { data, stat } if data == b"2" && stat.version == 1)
    );
    assert!(matches!(&results[1], MultiReadResult::Error { err: Error::NoNode }));
    assert!(matches!(&results[2], MultiReadResult::Children { children } if children.is_empty()));
}

async fn sequences(client: &Client) {
    client.create("/s", b"", &PERSISTENT).await.unwrap();
    // All in flight at once, in their order.
    let creates: Vec<_> = (0..10).map(|_| client.create("/s/n-", b"", &SEQUENTIAL)).collect();
    for (expected, create) in (0_i64..).zip(creates) {
        let (stat, sequence) = create.await.unwrap();
        assert_eq!((sequence.into_i64(), stat.ephemeral_owner), (expected, client.session_id().0));
    }
    assert_eq!(client.list_ephemerals("/s").await.unwrap().len(), 10);
    assert_eq!(client.count_descendants_number("/s").await.unwrap(), 10);
    let failed = client.create("/s/n-0000000000/x", b"", &PERSISTENT).await;
    assert_eq!(failed.unwrap_err(), Error::NoChildrenForEphemerals);
}

async fn watches(client: &Client, other: &Client) {
    client.create("/w", b"", &PERSISTENT).await.unwrap();
    let mut all = client.watch("/w", AddWatchMode::PersistentRecursive).await.unwrap();
    let (_, _, data) = client.get_and_watch_data("/w").await.unwrap();
    let (_, children) = client.list_and_watch_children("/w").await.unwrap();
    let (none, created) = client.check_and_watch_stat("/w/a").await.unwrap();
    assert_eq!(none, None);
    let (stat, _) = other.create("/w/a", b"", &PERSISTENT).await.unwrap();
    other.set_data("/w", b"1", None).await.unwrap();
    other.set_data("/w", b"2", None).await.unwrap();
    other.delete("/w/a", None).await.unwrap();
    let event = created.changed().await;
    assert_eq!(
        (event.event_type, &*event.path, event.zxid),
        (EventType::NodeCreated, "/w/a", stat.czxid)
    );
    assert_eq!(data.changed().await.event_type, EventType::NodeDataChanged);
    assert_eq!(children.changed().await.event_type, EventType::NodeChildrenChanged);
    let expected = [
        (EventType::NodeCreated, "/w/a"),
        (EventType::NodeDataChanged, "/w"),
        (EventType::NodeDataChanged, "/w"),
        (EventType::NodeDeleted, "/w/a"),
    ];
    for (kind, path) in expected {
        let event = all.changed().await;
        assert_eq!((event.event_type, &*event.path), (kind, path));
    }
}

/// A session outlives its client, and another client resumes it.
async fn resumed(hosts: &str, other: &Client) {
    let former = connector().with_detached().connect(hosts).await.unwrap();
    former.create("/mine", b"", &EPHEMERAL).await.unwrap();
    let (id, session) = (former.session_id(), former.into_session());
    let next = connector().with_session(session).connect(hosts).await.unwrap();
    assert_eq!(next.session_id(), id);
    assert_eq!(next.check_stat("/mine").await.unwrap().expect("it is there").ephemeral_owner, id.0);
    next.set_data("/mine", b"still", None).await.unwrap();
    let (_, _, watcher) = other.get_and_watch_data("/mine").await.unwrap();
    drop(next);
    assert_eq!(
        watcher.changed().await.event_type,
        EventType::NodeDeleted,
        "the end of the session deletes it"
    );
}

/// Counts under a lock until the znode `/enough` exists.
async fn count(hosts: String) -> u64 {
    let mut client = connect(&hosts).await;
    let mut counted = 0;
    while again(|| client.check_stat("/enough")).await.unwrap().is_none() {
        let prefix = LockPrefix::new_curator("/locks", "lock-").unwrap();
        let locked =
            client.lock(prefix, b"", Acls::anyone_all()).await.map(|lock| lock.into_owned());
        let lock = match locked {
            Ok(lock) => lock,
            // Its znode may be in the queue all the same; the end of the session deletes it.
            Err(error) if is_lost(&error) => {
                client = connect(&hosts).await;
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        again(|| client.sync("/count")).await.unwrap();
        let (data, stat) = again(|| client.get_data("/count")).await.unwrap();
        let next = (String::from_utf8(data).unwrap().parse::<u64>().unwrap() + 1).to_string();
        match lock.set_data("/count", next.as_bytes(), Some(stat.version)).await {
            Ok(_) => {}
            // The outcome of the write is unknown. No other client may have written.
            Err(error) if is_lost(&error) => loop {
                again(|| client.sync("/count")).await.unwrap();
                let (data, now) = again(|| client.get_data("/count")).await.unwrap();
                if now.version > stat.version {
                    assert_eq!((data, now.version), (next.clone().into_bytes(), stat.version + 1));
                    break;
                }
                match lock.set_data("/count", next.as_bytes(), Some(stat.version)).await {
                    Ok(_) => break,
                    Err(Error::BadVersion) => {}
                    Err(error) if is_lost(&error) => {}
                    Err(error) => panic!("{error}"),
                }
            },
            Err(error) => panic!("another client counts: {error}"),
        }
        // Not in the background, where the crate gives up on some errors of the socket.
        let path = lock.lock_path().to_owned();
        match again(|| client.delete(&path, None)).await {
            Ok(()) | Err(Error::NoNode) => {}
            Err(error) => panic!("{error}"),
        }
        counted += 1;
    }
    counted
}

/// The names of the created znodes.
fn turns() -> impl Iterator<Item = (usize, &'static str, usize)> {
    let orders = (0..MEMBERS).flat_map(|member| ORDERS.map(|order_of| (member, order_of)));
    orders.flat_map(|(member, order_of)| (0..EACH).map(move |each| (member, order_of, each)))
}

/// Members are lost one after the other. Locks hold, watches miss nothing, and no session is lost.
async fn turmoil(hosts: &str, client: &Client) {
    for path in ["/locks", "/seen"] {
        client.create(path, b"", &PERSISTENT).await.unwrap();
    }
    client.create("/count", b"0", &PERSISTENT).await.unwrap();
    let watching = connect(hosts).await;
    watching.create("/watching", b"", &EPHEMERAL).await.unwrap();
    // Not persistent ones: version 0.11.2 does not set those again after a lost connection.
    let mut watchers = Vec::new();
    for (member, order_of, each) in turns() {
        let path = format!("/seen/{member}-{order_of}-{each}");
        watchers.push((watching.check_and_watch_stat(&path).await.unwrap().1, path));
    }
    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        workers.push(tokio::task::spawn_local(count(hosts.to_owned())));
    }
    let number = async || {
        let data = again(|| client.get_data("/count")).await.unwrap().0;
        String::from_utf8(data).unwrap().parse::<u64>().unwrap()
    };
    for member in 0..MEMBERS {
        for order_of in ORDERS {
            order(format!("{order_of} {member}")).await;
            for each in 0..EACH {
                let path = format!("/seen/{member}-{order_of}-{each}");
                match again(|| client.create(&path, b"", &PERSISTENT)).await {
                    // Of the attempt whose reply was lost.
                    Ok(_) | Err(Error::NodeExists) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            println!("created after {order_of} {member}");
            // The workers go on, too.
            let before = number().await;
            while number().await < before + 2 {
                tokio::task::yield_now().await;
            }
        }
    }
    match again(|| client.create("/enough", b"", &PERSISTENT)).await {
        Ok(_) | Err(Error::NodeExists) => {}
        Err(error) => panic!("{error}"),
    }
    println!("enough is counted");
    let mut counted = 0;
    for worker in workers {
        counted += worker.await.expect("it does not panic");
    }
    again(|| client.sync("/count")).await.unwrap();
    assert_eq!(number().await, counted);
    println!("the workers are done");
    let seen = watchers.len();
    for (watcher, path) in watchers {
        let event = watcher.changed().await;
        assert_eq!((event.event_type, event.path), (EventType::NodeCreated, path));
    }
    let stat = again(|| client.check_stat("/watching")).await.unwrap();
    assert_eq!(stat.expect("its session lives").ephemeral_owner, watching.session_id().0);
    assert_ne!(watching.state(), SessionState::Expired);
    println!("counted {counted}, seen {seen}");
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let hosts = std::env::args().nth(1).expect("the hosts");
    let all = async {
        let (client, other) = (connect(&hosts).await, connect(&hosts).await);
        multis(&client).await;
        println!("done: multis");
        sequences(&client).await;
        println!("done: sequences");
        watches(&client, &other).await;
        println!("done: watches");
        resumed(&hosts, &other).await;
        println!("done: resumed");
        turmoil(&hosts, &client).await;
    };
    let all = tokio::time::timeout(2 * PATIENCE, all);
    tokio::task::LocalSet::new().run_until(all).await.expect("all is done in time");
}
