//! Requests, replies and events.

use bytes::{Buf, Bytes, BytesMut};

use super::read_only::word;
use super::*;
use crate::gateway::wire::codes::{AddWatchMode, OpCode};
use crate::gateway::wire::request::{
    AddWatch, Check, MultiOp, PathOnly, SetWatches, SetWatches2, WatchesOf,
};
use crate::gateway::wire::response::{
    AclReply, Children2Reply, DataReply, MultiReply, MultiResult, PathReply, Stat,
};
use crate::types::znode::CreateMode;

#[test]
fn replies_come_in_order_and_show_what_was_asked_before() {
    let (_cluster, gateway) = one();
    let mut client = Client::open(&gateway);
    client.send(&create("/a", b"0"));
    const SETS: usize = 200;
    for _ in 0..SETS {
        client.send(&set("/a", b"x"));
        client.send(&Request::GetData(read("/a", false)));
    }
    assert_eq!(client.receive().body::<PathReply>().path.as_deref(), Some("/a"));
    let mut zxid = 0;
    for version in 1..=i32::try_from(SETS).unwrap() {
        let written = client.receive();
        assert!(written.header.zxid >= zxid);
        zxid = written.header.zxid;
        assert_eq!(written.body::<Stat>().version, version);
        let read = client.receive();
        assert!(read.header.zxid >= zxid);
        assert_eq!(read.body::<DataReply>().stat.version, version);
    }
}

/// A client takes an event as the end of its watch. If the event came before the reply to the read that
/// sets the watch, the client would not know the watch. If it came after a reply that shows the change,
/// the client would see the change before its event.
#[test]
fn an_event_comes_between_the_replies_that_it_belongs_between() {
    let (cluster, gateway) = one();
    let session = cluster.node(0).session();
    session.create("/a", b"", CreateMode::Persistent).wait().unwrap();
    let mut client = Client::open(&gateway);
    // The data that the client saw when it set its present watch.
    let mut watched: Option<Bytes> = None;
    for round in 0..100_u8 {
        let sets = client.send(&Request::GetData(read("/a", true)));
        let written = session.set("/a", [round]);
        client.send(&Request::GetData(read("/a", false)));
        loop {
            let packet = client.receive();
            if packet.header.xid == -1 {
                assert_eq!(packet.event(), (EventType::NodeDataChanged, "/a".to_owned()));
                assert!(watched.take().is_some(), "round {round}: of a watch that is not known");
                continue;
            }
            let xid = packet.header.xid;
            let data = packet.body::<DataReply>().data.unwrap_or_default();
            if let Some(before) = &watched {
                assert_eq!(*before, data, "round {round}: a change is seen before its event");
            }
            if xid == sets {
                watched = Some(data);
            } else if *data == [round] {
                break;
            } else {
                client.send(&Request::GetData(read("/a", false)));
            }
        }
        written.wait().unwrap();
    }
}

#[test]
fn a_change_that_several_watches_see_is_one_event() {
    let (cluster, gateway) = one();
    let session = cluster.node(0).session();
    session.create("/a", b"", CreateMode::Persistent).wait().unwrap();
    let mut client = Client::open(&gateway);
    for _ in 0..3 {
        client.ask(&Request::GetData(read("/a", true)));
        client.ask(&Request::Exists(read("/a", true)));
        client.ask(&Request::GetChildren(read("/a", true)));
    }
    for mode in [AddWatchMode::Persistent, AddWatchMode::PersistentRecursive] {
        client.ask(&Request::AddWatch(AddWatch { path: Some("/a".into()), mode: mode.into() }));
    }
    session.delete("/a").wait().unwrap();
    assert_eq!(client.receive().event(), (EventType::NodeDeleted, "/a".to_owned()));
    client.ping();
    // Persistent watches stay set.
    session.create("/a", b"", CreateMode::Persistent).wait().unwrap();
    assert_eq!(client.receive().event(), (EventType::NodeCreated, "/a".to_owned()));
    let any = WatchesOf { path: Some("/a".into()), kind: 3 };
    assert_eq!(client.code(&Request::CheckWatches(any.clone())), ErrorCode::Ok);
    assert_eq!(client.code(&Request::RemoveWatches(any.clone())), ErrorCode::Ok);
    assert_eq!(client.code(&Request::RemoveWatches(any.clone())), ErrorCode::NoWatcher);
    assert_eq!(client.code(&Request::CheckWatches(any)), ErrorCode::NoWatcher);
    session.delete("/a").wait().unwrap();
    client.ping();
}

#[test]
fn errors_are_those_of_zookeeper() {
    let (_cluster, gateway) = one();
    let mut client = Client::open(&gateway);
    assert_eq!(client.code(&create("/x/y", b"")), ErrorCode::NoNode);
    assert_eq!(client.code(&create("/zookeeper/", b"")), ErrorCode::BadArguments);
    assert_eq!(client.code(&Request::GetData(read("x", false))), ErrorCode::NoNode);
    assert_eq!(client.code(&Request::Exists(read("", false))), ErrorCode::Ok);
    let null = Request::GetData(request::Read { path: None, watch: false });
    assert_eq!(client.code(&null), ErrorCode::MarshallingError);
    // A body that cannot be read fails only its own request.
    let mut body = BytesMut::new();
    77_i32.write(&mut body);
    i32::from(OpCode::GetData).write(&mut body);
    client.write(&body);
    let reply = client.receive().header;
    assert_eq!((reply.xid, reply.err), (77, ErrorCode::MarshallingError.into()));
    let Request::Create(made) = create("/m", b"") else { unreachable!("it is a create") };
    let delete = request::Delete { path: Some("/none".into()), version: -1 };
    let ops = vec![MultiOp::Create(made.clone()), MultiOp::Delete(delete), MultiOp::Create(made)];
    let reply = client.ask(&Request::Multi(request::MultiRequest { ops })).body::<MultiReply>();
    let codes = [ErrorCode::Ok, ErrorCode::NoNode, ErrorCode::RuntimeInconsistency];
    assert_eq!(reply.results, codes.map(|code| Err(code.into())));
    let root = Request::GetAllChildrenNumber(PathOnly { path: Some("/".into()) });
    assert!(client.ask(&root).body::<i32>() > 0);
    // An unknown op ends the connection, and so does a length that is out of range.
    client.send(&Request::DeleteContainer(PathOnly { path: Some("/m".into()) }));
    assert_eq!(client.receive().header.err, i32::from(ErrorCode::Unimplemented));
    assert!(client.read().is_none());
    let mut client = Client::open(&gateway);
    client.send(&Request::Check(Check { path: Some("/".into()), version: -1 }));
    let refused = client.receive().header;
    assert_eq!((refused.zxid, refused.err), (-1, i32::from(ErrorCode::Unimplemented)));
    assert!(client.read().is_none());
    for length in [-1, 1_048_576_i32] {
        let mut client = Client::open(&gateway);
        client.stream.write_all(&length.to_be_bytes()).unwrap();
        assert!(client.read().is_none());
    }
}

/// The members' ports were shown as those of servers. ZooKeeper's parser refused the text, Curator reported an
/// unhandled error, and Flink ended.
#[test]
fn clients_see_no_configuration() {
    let (_cluster, gateway) = one();
    let mut client = Client::open(&gateway);
    let config = || read("/zookeeper/config", false);
    let reply = client.ask(&Request::GetData(config())).body::<DataReply>();
    assert_eq!(reply.data.as_deref(), Some(&b""[..]));
    let path = PathOnly { path: config().path };
    let stats = [
        reply.stat,
        client.ask(&Request::Exists(config())).body::<Stat>(),
        client.ask(&Request::GetChildren2(config())).body::<Children2Reply>().stat,
        client.ask(&Request::GetAcl(path)).body::<AclReply>().stat,
    ];
    assert_eq!(stats.map(|stat| stat.data_length), [0; 4]);
    let ops = vec![MultiOp::GetData(config()), MultiOp::GetData(read("/", false))];
    let reads = client.ask(&Request::MultiRead(request::MultiRequest { ops })).body::<MultiReply>();
    let Ok(MultiResult::GetData(data)) = &reads.results[0] else { panic!("{reads:?}") };
    assert_eq!((data.data.as_deref(), data.stat.data_length), (Some(&b""[..]), 0));
}

#[test]
fn words_are_answered_as_zookeeper_does() {
    let (_cluster, gateway) = one();
    let number = |text: &str, name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|number| number.trim_matches(['\t', '=']).parse::<i64>().ok())
    };
    assert!(word(&gateway, "hash").contains(": "));
    let monitor = word(&gateway, "mntr");
    for (name, value) in [
        ("zk_quorum_size", 1),
        ("zk_synced_followers", 0),
        ("zk_synced_observers", 0),
        ("zk_synced_non_voting_followers", 0),
        ("zk_pending_syncs", 0),
    ] {
        assert_eq!(number(&monitor, name), Some(value), "{name}: {monitor}");
    }
    for name in ["zk_approximate_data_size", "zk_leader_uptime"] {
        assert!(number(&monitor, name).is_some_and(|number| number >= 0), "{name}: {monitor}");
    }
    // A `long` of Java.
    let settings = word(&gateway, "conf");
    assert!(number(&settings, "serverId").is_some_and(|number| number > 0), "{settings}");
    assert_eq!(word(&gateway, "gtmk"), "306");
}

#[test]
fn the_trace_mask_is_kept() {
    let cluster = Cluster::new(1);
    let builder = Gateway::builder().four_letter_words(&["*"]);
    let gateway = builder.serve(&cluster.node(0), "127.0.0.1:0").expect("a free port");
    assert_eq!(word(&gateway, "stmk\0\0\0\0\0\0\0\u{6}"), "6");
    assert_eq!(word(&gateway, "gtmk"), "6");
}

/// Bytes that a client does not read are bounded, and do not delay other clients.
#[test]
fn a_client_that_reads_nothing_is_served_no_further() {
    let (cluster, gateway) = one();
    let session = cluster.node(0).session();
    session.create("/large", vec![7; 900_000], CreateMode::Persistent).wait().unwrap();
    let mut lazy = Client::open(&gateway);
    const READS: usize = 300;
    for _ in 0..READS {
        lazy.send(&Request::GetData(read("/large", false)));
    }
    let mut other = Client::open(&gateway);
    assert_eq!(other.code(&create("/other", b"")), ErrorCode::Ok);
    // When it reads again, it gets everything.
    for _ in 0..READS {
        assert_eq!(
            lazy.receive().body::<DataReply>().data.map_or(0, |data| data.remaining()),
            900_000
        );
    }
}

/// More events than a watch can hold at once made the gateway close the connection, again and again.
#[test]
fn a_client_that_missed_many_events_still_gets_its_watch() {
    let (cluster, gateway) = one();
    let session = cluster.node(0).session();
    session.create("/a", b"", CreateMode::Persistent).wait().unwrap();
    for _ in 0..crate::types::watch::WATCH_CAPACITY + 10 {
        session.set("/a", b"").wait().unwrap();
    }
    let mut client = Client::open(&gateway);
    let xid = client.send(&Request::SetWatches2(SetWatches2 {
        one_shot: SetWatches {
            relative_zxid: 1,
            data: Vec::new(),
            exist: Vec::new(),
            child: Vec::new(),
        },
        persistent: Vec::new(),
        persistent_recursive: vec![Some("/a".into())],
    }));
    while client.receive().header.xid != xid {}
    session.set("/a", b"").wait().unwrap();
    assert_eq!(client.receive().event(), (EventType::NodeDataChanged, "/a".to_owned()));
}
