//! Limits: what a client may send, what it may leave unread, and how it learns that it may not.

use crossbeam_channel::{Receiver, bounded};

use super::*;
use crate::api::coordinator::Coordinator;
use crate::gateway::wire::request::{MultiOp, MultiRequest, PathOnly, SetWatches};
use crate::gateway::wire::response::{
    Children2Reply, ChildrenReply, DataReply, MultiReply, MultiResult,
};
use crate::security::AuthProvider;
use crate::types::znode::CreateMode;

/// A gateway that takes packets of at most so many bytes.
fn with_packets_of(most: usize) -> (Cluster, Gateway) {
    let cluster = Cluster::new(1);
    let builder = Gateway::builder().packet_bytes_max(most);
    let gateway = builder.serve(&cluster.node(0), "127.0.0.1:0").expect("a free port");
    (cluster, gateway)
}

/// The limit of packets was applied to replies, too, where ZooKeeper has none: a znode with many children could be
/// created, and then neither be listed nor deleted by any client. The connection was closed without a word.
#[test]
fn replies_may_be_longer_than_requests() {
    const MOST: usize = 2_000;
    let (cluster, gateway) = with_packets_of(MOST);
    let session = cluster.node(0).session();
    session.create("/long", vec![7; MOST - 1], CreateMode::Persistent).wait().unwrap();
    let mut client = Client::open(&gateway);
    for number in 0..50 {
        let Request::Create(body) = create(&format!("/long/{number:0100}"), b"") else { panic!() };
        let child = Request::Create(Create { flags: CreateFlags::Ephemeral.into(), ..body });
        assert_eq!(client.code(&child), ErrorCode::Ok);
    }
    let list = client.ask(&Request::GetChildren(read("/long", false))).body::<ChildrenReply>();
    assert_eq!(list.children.len(), 50);
    let list = client.ask(&Request::GetChildren2(read("/long", false))).body::<Children2Reply>();
    assert_eq!((list.children.len(), list.stat.num_children), (50, 50));
    let own = Request::GetEphemerals(PathOnly { path: None });
    assert_eq!(client.ask(&own).body::<ChildrenReply>().children.len(), 50);
    let both = [MultiOp::GetData(read("/long", false)), MultiOp::GetChildren(read("/long", false))];
    let reads = Request::MultiRead(MultiRequest { ops: both.into() });
    let MultiReply { results } = client.ask(&reads).body();
    let [Ok(MultiResult::GetData(data)), Ok(MultiResult::GetChildren(list))] = &results[..] else {
        panic!("{results:?}")
    };
    assert_eq!((data.data.as_ref().unwrap().len(), list.children.len()), (MOST - 1, 50));
}

/// Waits until the gateway has closed the connection.
fn wait_for_end(client: &mut Client) {
    while client.read().is_some() {}
}

/// The gateway closed connections, and neither the log nor a counter had the reason.
#[test]
fn each_end_of_a_connection_is_counted_with_its_reason() {
    const MOST: usize = 2_000;
    let cluster = Cluster::new(1);
    let builder = Gateway::builder().packet_bytes_max(MOST).connections_max(3);
    let gateway = builder.serve(&cluster.node(0), "127.0.0.1:0").unwrap();
    let count =
        |reason: &str| cluster.node(0).metrics().wait().unwrap().gateway_connections_ended[reason];
    assert_eq!(count("request_too_long"), 0, "all reasons are there from the beginning");

    let mut client = Client::open(&gateway);
    client.write(&[0; MOST + 1]);
    wait_for_end(&mut client);
    assert_eq!(count("request_too_long"), 1);

    let mut client = Client::open(&gateway);
    client.write(b"cut");
    wait_for_end(&mut client);
    assert_eq!(count("unreadable"), 1);

    let mut client = Client::dial(&gateway);
    client.stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    wait_for_end(&mut client);
    assert_eq!(count("foreign"), 1);

    let mut client = Client::open(&gateway);
    assert_eq!(client.code(&Request::CloseSession), ErrorCode::Ok);
    wait_for_end(&mut client);
    assert_eq!(count("session_closed"), 1);

    let mut client = Client::open(&gateway);
    let auth = request::Auth {
        kind: 0,
        scheme: Some("unknown".into()),
        auth: Credential(Some(Bytes::from_static(b"a:b"))),
    };
    assert_eq!(client.code(&Request::Auth(auth)), ErrorCode::AuthFailed);
    wait_for_end(&mut client);
    assert_eq!(count("auth_failed"), 1);

    let refused = Client::dial(&gateway).greet(0, 7, Bytes::from_static(&[1; 16]));
    assert_eq!(refused.session_id, 0);

    let all = [Client::open(&gateway), Client::open(&gateway), Client::open(&gateway)];
    wait_for_end(&mut Client::dial(&gateway));
    assert_eq!(count("too_many"), 1);
    assert_eq!(count("session_unknown"), 1);
    drop(all);
    let monitor = || {
        let mut client = Client::dial(&gateway);
        client.stream.write_all(b"mntr").unwrap();
        let mut answer = String::new();
        let _ = client.stream.read_to_string(&mut answer);
        answer.contains("zk_connections_ended_client_left\t3\n")
    };
    let mut until = std::iter::repeat_with(monitor).take(1000);
    assert!(until.any(|shown| shown), "mntr shows the same counts");
    assert_eq!(count("client_left"), 3);
    drop(gateway);
}

/// Credentials of a scheme that costs microseconds waited for all hashes that take 20 ms each, and 256 of those shut
/// everybody else out: the connection was closed without a reply.
#[test]
fn cheap_credentials_do_not_wait_for_slow_ones() {
    struct Slow(Receiver<()>);
    impl AuthProvider for Slow {
        fn scheme(&self) -> &'static str {
            "slow"
        }

        fn authenticate(&self, _: &[u8]) -> Result<Vec<String>, String> {
            self.0.recv().map_err(|_| "the test is over".to_owned())?;
            Ok(vec!["one".to_owned()])
        }
    }
    let (go, waits) = bounded(0);
    let cluster = Cluster::with_settings(1, Coordinator::builder().auth_provider(Slow(waits)));
    let gateway = Gateway::serve(&cluster.node(0), "127.0.0.1:0").unwrap();
    let auth = |scheme: &str, credentials: Vec<u8>| {
        let auth = Credential(Some(credentials.into()));
        Request::Auth(request::Auth { kind: 0, scheme: Some(scheme.to_owned()), auth })
    };
    let mut slow = [Client::open(&gateway), Client::open(&gateway), Client::open(&gateway)];
    let xids = slow.each_mut().map(|client| client.send(&auth("slow", b"x".to_vec())));
    let mut client = Client::open(&gateway);
    assert_eq!(client.code(&auth("digest", b"alice:secret".to_vec())), ErrorCode::Ok);
    // What is refused gets a reply.
    assert_eq!(client.code(&auth("slow", vec![7; 5_000])), ErrorCode::AuthFailed);
    wait_for_end(&mut client);
    assert_eq!(
        cluster.node(0).metrics().wait().unwrap().gateway_connections_ended["auth_failed"],
        1
    );
    for (client, xid) in slow.iter_mut().zip(xids) {
        go.send(()).unwrap();
        let reply = client.receive().header;
        assert_eq!((reply.xid, reply.err), (xid, 0));
    }
}

/// A packet that set many watches again was sent to the node all at once, and calls of the application failed with
/// `Busy` until all of it was answered.
#[test]
fn no_client_makes_calls_of_the_application_fail() {
    const CALLS: usize = 64;
    const WATCHES: usize = 50_000;
    let cluster = Cluster::with_settings(1, Coordinator::builder().pending_requests_max(CALLS));
    let gateway = Gateway::serve(&cluster.node(0), "127.0.0.1:0").unwrap();
    let session = cluster.node(0).session();
    let set = || {
        let data = vec![Some(String::new()); WATCHES];
        let (exist, child) = (Vec::new(), Vec::new());
        let watches = SetWatches { relative_zxid: i64::MAX, data, exist, child };
        Client::open(&gateway).code(&Request::SetWatches(watches))
    };
    std::thread::scope(|scope| {
        let client = scope.spawn(set);
        while !client.is_finished() {
            session.exists("/").wait().unwrap();
        }
        assert_eq!(client.join().unwrap(), ErrorCode::Ok);
    });
}

/// The names of a znode's children were kept for each watch of them that was set again, though no client receives
/// them. One with many such watches was disconnected as often as it connected.
#[test]
fn watches_of_long_lists_can_be_set_again() {
    let cluster = Cluster::new(1);
    let builder = Gateway::builder().buffer_bytes_max(1 << 20);
    let gateway = builder.serve(&cluster.node(0), "127.0.0.1:0").unwrap();
    let session = cluster.node(0).session();
    session.create("/many", b"", CreateMode::Persistent).wait().unwrap();
    for number in 0..100 {
        session
            .create(&format!("/many/{number:0400}"), b"", CreateMode::Persistent)
            .wait()
            .unwrap();
    }
    let mut client = Client::open(&gateway);
    let child = vec![Some("/many".to_owned()); 500];
    let (data, exist) = (Vec::new(), Vec::new());
    let watches = SetWatches { relative_zxid: i64::MAX, data, exist, child };
    assert_eq!(client.code(&Request::SetWatches(watches)), ErrorCode::Ok);
}

/// What `mntr` says of a figure.
fn figure(gateway: &Gateway, name: &str) -> usize {
    let mut client = Client::dial(gateway);
    client.stream.write_all(b"mntr").unwrap();
    let mut answer = String::new();
    client.stream.read_to_string(&mut answer).unwrap();
    let mut lines = answer.lines().filter_map(|line| line.strip_prefix("zk_")?.split_once('\t'));
    let (_, value) =
        lines.find(|(of, _)| *of == name).unwrap_or_else(|| panic!("no {name}: {answer}"));
    value.parse().unwrap()
}

/// Waits until a figure of `mntr` is in this range.
fn wait_for(gateway: &Gateway, name: &str, range: impl std::ops::RangeBounds<usize>) {
    let mut figures = std::iter::repeat_with(|| figure(gateway, name)).take(20_000);
    assert!(figures.any(|figure| range.contains(&figure)), "{name}: {}", figure(gateway, name));
}

/// Clients that read nothing made the member keep about 16 MiB for each of them, without a bound for all.
#[test]
fn the_client_that_holds_most_is_disconnected_when_all_hold_too_much() {
    const READS: usize = 6_000;
    const SMALL: usize = 5_000;
    let cluster = Cluster::new(1);
    let builder = Gateway::builder().buffer_bytes_max(850_000);
    let gateway = builder.serve(&cluster.node(0), "127.0.0.1:0").unwrap();
    let session = cluster.node(0).session();
    session.create("/small", vec![1; SMALL], CreateMode::Persistent).wait().unwrap();
    session.create("/large", vec![2; 900_000], CreateMode::Persistent).wait().unwrap();
    let (mut thin, mut fat) = (Client::open(&gateway), Client::open(&gateway));
    for _ in 0..READS {
        thin.send(&Request::GetData(read("/small", false)));
    }
    // Its replies share the data of one znode. As if it shared nothing, it holds at most 128 of them and what
    // one may leave unread, which is less than the other's first reply.
    wait_for(&gateway, "buffered_bytes", SMALL..300_000);
    // More than a socket takes. One part alone passes the bound.
    let ops = (0..20).map(|_| MultiOp::GetData(read("/large", false))).collect();
    fat.send(&Request::MultiRead(MultiRequest { ops }));
    wait_for(&gateway, "connections_ended_memory", 1..);
    for _ in 0..READS {
        assert_eq!(thin.receive().body::<DataReply>().data.map(|data| data.len()), Some(SMALL));
    }
    assert_eq!(figure(&gateway, "connections_ended_memory"), 1);
    wait_for(&gateway, "buffered_bytes", 0..100);
}

/// Each client that waited for an event had a copy of its own.
#[test]
fn an_event_counts_once_for_all_clients_that_do_not_read_it() {
    const WATCHERS: usize = 8;
    const EVENTS: usize = 2_000;
    const EACH: usize = 4_000;
    let (cluster, gateway) = one();
    let session = cluster.node(0).session();
    let watchers: Vec<Client> = (0..WATCHERS)
        .map(|_| {
            let mut client = Client::open(&gateway);
            let recursive = request::AddWatch { path: Some("/".into()), mode: 1 };
            assert_eq!(client.code(&Request::AddWatch(recursive)), ErrorCode::Ok);
            client
        })
        .collect();
    let name = "n".repeat(EACH);
    for number in 0..EVENTS {
        session.create(&format!("/{name}{number}"), b"", CreateMode::Persistent).wait().unwrap();
    }
    // The sockets have taken some of them.
    let held = figure(&gateway, "buffered_bytes");
    assert!((1 << 20..EVENTS * EACH * 2).contains(&held), "{held}");
    drop(watchers);
    wait_for(&gateway, "buffered_bytes", 0..100);
}

/// A client could ask for the same long list 128 times, and all of them were made before it had read one.
#[test]
fn long_lists_are_not_made_many_at_a_time() {
    let (cluster, gateway) = one();
    let session = cluster.node(0).session();
    session.create("/many", b"", CreateMode::Persistent).wait().unwrap();
    for number in 0..2_000 {
        session
            .create(&format!("/many/{number:0400}"), b"", CreateMode::Persistent)
            .wait()
            .unwrap();
    }
    let mut client = Client::open(&gateway);
    for _ in 0..128 {
        client.send(&Request::GetChildren(read("/many", false)));
    }
    // Far fewer than 128 are in hand, whatever moment it is.
    wait_for(&gateway, "outstanding_requests", 1..=8);
    for _ in 0..100 {
        let outstanding = figure(&gateway, "outstanding_requests");
        assert!(outstanding <= 8, "{outstanding}");
    }
    for _ in 0..128 {
        assert_eq!(client.receive().body::<ChildrenReply>().children.len(), 2_000);
    }
}

/// The leader took in a request of 5 MB, and no message could carry it to the other members. From then on, the
/// cluster took no writes.
#[test]
fn a_request_that_no_message_could_carry_is_refused() {
    let cluster = Cluster::new(3);
    // One of them leads, and the others send it what they are asked for.
    for node in 0..3 {
        let builder = Gateway::builder().packet_bytes_max(16 << 20);
        let gateway = builder.serve(&cluster.node(node), "127.0.0.1:0").unwrap();
        let mut client = Client::open(&gateway);
        for bytes in [1_500_000, 5_000_000] {
            let (path, data) = (Some("/".into()), Some(vec![7; bytes].into()));
            let large = Request::SetData(SetData { path, data, version: -1 });
            assert_eq!(client.code(&large), ErrorCode::BadArguments);
        }
        let path = format!("/{}", "d".repeat(4_000));
        let delete = || request::Delete { path: Some(path.clone()), version: -1 };
        let ops = (0..1_200).map(|_| MultiOp::Delete(delete())).collect();
        let MultiReply { results } = client.ask(&Request::Multi(MultiRequest { ops })).body();
        assert!(results.contains(&Err(ErrorCode::BadArguments.into())));
        assert_eq!(client.code(&set("/", b"1")), ErrorCode::Ok);
    }
}
