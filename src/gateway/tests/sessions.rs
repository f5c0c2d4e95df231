//! Sessions: their beginning, their moves, and their end.

use super::*;
use crate::api::coordinator::Coordinator;
use crate::gateway::turns::SWEEP;
use crate::gateway::wire::codes::AddWatchMode;
use crate::gateway::wire::request::{AddWatch, PathOnly, Sasl, SetWatches, SetWatches2, WatchesOf};
use crate::gateway::wire::response::{ChildrenReply, ClientInfo, DataReply, Stat};
use crate::recipes::Group;
use crate::types::znode::CreateMode;

fn ephemeral(path: &str) -> Request {
    let Request::Create(body) = create(path, b"") else { unreachable!("it is a create") };
    Request::Create(Create { flags: CreateFlags::Ephemeral.into(), ..body })
}

#[test]
fn a_session_goes_on_at_another_member_and_receives_what_it_missed() {
    let cluster = Cluster::new(3);
    let serve = |node: usize| Gateway::serve(&cluster.node(node), "127.0.0.1:0").unwrap();
    let (first, second) = (serve(0), serve(1));
    let session = cluster.node(2).session();
    for path in ["/data", "/gone", "/parent", "/still", "/lasting"] {
        session.create(path, b"", CreateMode::Persistent).wait().unwrap();
    }
    let mut client = Client::dial(&first);
    let opened = client.greet(0, 0, Bytes::new());
    assert_eq!(client.code(&create("/own", b"")), ErrorCode::Ok);
    client.ask(&Request::Sync(PathOnly { path: Some("/".into()) }));
    let seen = client.ask(&Request::Exists(read("/still", false))).header.zxid;
    drop(client);

    session.set("/data", b"1").wait().unwrap();
    session.delete("/gone").wait().unwrap();
    session.create("/new", b"", CreateMode::Persistent).wait().unwrap();
    session.create("/parent/child", b"", CreateMode::Persistent).wait().unwrap();
    session.set("/lasting", b"1").wait().unwrap();

    // A client that has seen a later state than this member has to wait for it; a wrong password is
    // refused.
    let Credential(Some(password)) = opened.password else { panic!("there is a password") };
    let wrong = Client::dial(&second).greet(0, opened.session_id, Bytes::from_static(&[1; 16]));
    assert_eq!((wrong.timeout, wrong.session_id), (0, 0));
    let mut client = Client::dial(&second);
    let resumed = client.greet(seen, opened.session_id, password);
    assert_eq!(resumed.session_id, opened.session_id);
    client.ask(&Request::Sync(PathOnly { path: Some("/".into()) }));

    let list = |paths: &[&str]| paths.iter().map(|path| Some((*path).to_owned())).collect();
    let xid = client.send(&Request::SetWatches2(SetWatches2 {
        one_shot: SetWatches {
            relative_zxid: seen,
            data: list(&["/data", "/gone", "/still"]),
            exist: list(&["/new", "/later"]),
            child: list(&["/parent"]),
        },
        persistent: list(&["/lasting"]),
        persistent_recursive: Vec::new(),
    }));
    let mut events = Vec::new();
    loop {
        let packet = client.receive();
        if packet.header.xid == xid {
            assert_eq!(packet.header.err, 0);
            break;
        }
        events.push(packet.event());
    }
    events.sort_by_key(|(kind, path)| (path.clone(), i32::from(*kind)));
    let expected = [
        (EventType::NodeDataChanged, "/data"),
        (EventType::NodeDeleted, "/gone"),
        (EventType::NodeDataChanged, "/lasting"),
        (EventType::NodeCreated, "/new"),
        (EventType::NodeChildrenChanged, "/parent"),
    ];
    assert_eq!(events, expected.map(|(kind, path)| (kind, path.to_owned())));
    // The other watches are set.
    session.set("/still", b"1").wait().unwrap();
    assert_eq!(client.receive().event(), (EventType::NodeDataChanged, "/still".to_owned()));
    session.create("/later", b"", CreateMode::Persistent).wait().unwrap();
    assert_eq!(client.receive().event(), (EventType::NodeCreated, "/later".to_owned()));
}

/// A member that is started again takes over what its former run has left. The sessions of its gateway's
/// clients were on that member, too, but the clients live.
#[test]
fn a_restarted_member_takes_nothing_over_from_a_client_of_its_gateway() {
    let (cluster, gateway) = one();
    cluster.node(0).session().create("/group", b"", CreateMode::Persistent).wait().unwrap();
    let mut client = Client::open(&gateway);
    assert_eq!(client.code(&ephemeral("/group/zero")), ErrorCode::Ok);
    cluster.stop(0);
    drop(gateway);
    cluster.restart(0);
    let group = Group::new(&cluster.node(0).session(), "/group").unwrap();
    assert!(group.try_join("zero", b"").wait().unwrap().is_none(), "the client has the name");
}

#[test]
fn a_silent_client_loses_its_session_and_one_that_pings_does_not() {
    let (cluster, gateway) = one();
    let session = cluster.node(0).session();
    let (mut silent, mut alive) = (Client::open(&gateway), Client::open(&gateway));
    assert_eq!(silent.code(&ephemeral("/silent")), ErrorCode::Ok);
    assert_eq!(alive.code(&ephemeral("/alive")), ErrorCode::Ok);
    let gone = session.exists_and_watch("/silent").wait().unwrap().1;
    let own = alive.ask(&Request::GetEphemerals(PathOnly { path: None })).body::<ChildrenReply>();
    assert_eq!(own.children, ["/alive"]);
    // In steps: after a delay of its own thread, the gateway counts no client as silent.
    for _ in 0..50 {
        cluster.advance(SWEEP * 3 / 5);
        alive.ping();
    }
    assert!(gone.recv().wait().unwrap().is_some());
    assert!(silent.read().is_none());
    alive.ping();
    assert!(session.exists("/alive").wait().unwrap().is_some());
    assert!(SWEEP < Duration::from_secs(1));
    // An orderly close deletes the ephemeral znodes at once.
    let gone = session.exists_and_watch("/alive").wait().unwrap().1;
    assert_eq!(alive.code(&Request::CloseSession), ErrorCode::Ok);
    assert!(alive.read().is_none());
    assert!(gone.recv().wait().unwrap().is_some());
}

#[test]
fn there_is_room_for_so_many_clients() {
    let cluster = Cluster::new(1);
    let builder = Gateway::builder().connections_max(3).connections_per_address_max(2);
    let gateway = builder.serve(&cluster.node(0), "127.0.0.1:0").unwrap();
    let clients = [Client::open(&gateway), Client::open(&gateway)];
    assert!(Client::dial(&gateway).read().is_none());
    drop(clients);
    let again = || {
        let mut client = Client::dial(&gateway);
        client.stream.write_all(b"ruok").unwrap();
        let mut answer = String::new();
        let _ = client.stream.read_to_string(&mut answer);
        answer == "imok"
    };
    let until = std::iter::repeat_with(again).take(1000);
    assert!(until.into_iter().any(|served| served), "room is made when clients go");
}

/// The gateway opened a session for a client that it then refused: the session was kept alive for ever, with no
/// client connected.
#[test]
fn a_client_ahead_of_the_server_leaves_no_session_behind() {
    let (cluster, gateway) = one();
    let session = cluster.node(0).session();
    session.sync().wait().unwrap();
    let mut client = Client::dial(&gateway);
    let hello = ConnectRequest {
        protocol_version: 0,
        last_zxid_seen: i64::MAX,
        timeout: 4000,
        session_id: 0,
        password: Credential(None),
        read_only: None,
    };
    let mut body = BytesMut::new();
    hello.write(&mut body);
    client.write(&body);
    assert!(client.read().is_none(), "nothing is sent to it");
    for _ in 0..30 {
        cluster.advance(Duration::from_secs(1));
        session.sync().wait().unwrap();
    }
    assert_eq!(cluster.node(0).status().sessions, Some(1), "the test's own");
}

/// An instance that was closed also closed its clients' sessions, and so released their locks.
#[test]
fn an_instance_that_is_closed_leaves_its_clients_their_sessions() {
    let cluster = Cluster::new(3);
    let serve = |node: usize| Gateway::serve(&cluster.node(node), "127.0.0.1:0").unwrap();
    let (first, second) = (serve(0), serve(1));
    let mut client = Client::dial(&first);
    let opened = client.greet(0, 0, Bytes::new());
    assert_eq!(client.code(&create("/own", b"")), ErrorCode::Ok);
    cluster.node(0).close().wait().unwrap();
    assert!(client.read().is_none());
    let Credential(Some(password)) = opened.password else { panic!("there is a password") };
    let resumed = Client::dial(&second).greet(0, opened.session_id, password);
    assert_eq!(resumed.session_id, opened.session_id);
}

/// A client that closes its socket while something is unread resets the connection. The close of its session, which it
/// had sent before, was lost with it, and its ephemerals stayed until the session's timeout.
#[test]
fn a_session_is_closed_though_its_connection_is_reset_at_once() {
    const CLIENTS: usize = 50;
    let (cluster, gateway) = one();
    for number in 0..CLIENTS {
        let stream = dial(&gateway);
        let mut client = Client::over(stream.try_clone().unwrap());
        client.greet(0, 0, Bytes::new());
        assert_eq!(client.code(&ephemeral(&format!("/{number}"))), ErrorCode::Ok);
        client.send(&Request::Ping);
        stream.peek(&mut [0]).unwrap();
        client.send(&Request::CloseSession);
    }
    let node = cluster.node(0);
    let (session, clock) = (node.session(), &node.shared().clock);
    let until = clock.now() + Duration::from_secs(5);
    while session.children("/").wait().unwrap().len() > 1 {
        assert!(clock.now() < until, "their timeout is twice as long");
        std::thread::yield_now();
    }
}

/// A client instance has no tree of its own: its member answers.
#[test]
fn an_instance_without_a_replica_serves_too() {
    let cluster = Cluster::new(3);
    let place = cluster.add_client();
    let gateway = Gateway::serve(&cluster.node(place), "127.0.0.1:0").unwrap();
    let mut client = Client::dial(&gateway);
    let opened = client.greet(0, 0, Bytes::new());
    assert_eq!(client.code(&create("/a", b"1")), ErrorCode::Ok);
    assert_eq!(client.code(&create("/a/b", b"")), ErrorCode::Ok);
    let read_back = client.ask(&Request::GetData(read("/a", true)));
    let seen = read_back.header.zxid;
    assert!(seen > 0);
    assert_eq!(read_back.body::<DataReply>().data.as_deref(), Some(&b"1"[..]));
    let count = Request::GetAllChildrenNumber(PathOnly { path: Some("/a".into()) });
    assert_eq!(client.ask(&count).body::<i32>(), 1);
    let count = Request::GetAllChildrenNumber(PathOnly { path: Some("/none".into()) });
    assert_eq!(client.code(&count), ErrorCode::NoNode);
    client.send(&set("/a", b"2"));
    assert_eq!(client.receive().event(), (EventType::NodeDataChanged, "/a".to_owned()));
    assert_eq!(client.receive().body::<Stat>().version, 1);
    // The client reconnects with a zxid that it has seen here.
    drop(client);
    let Credential(Some(password)) = opened.password else { panic!("there is a password") };
    let resumed = Client::dial(&gateway).greet(seen, opened.session_id, password);
    assert_eq!(resumed.session_id, opened.session_id);
}

/// kazoo sends its first SASL token again for as long as the server does not know SASL, and sends nothing else:
/// its session lasted for ever, and its `stop` waited for the end of that. In ZooKeeper, such packets do not
/// keep a session alive.
#[test]
fn a_client_that_only_asks_for_sasl_loses_its_session() {
    let (cluster, gateway) = one();
    let session = cluster.node(0).session();
    let (mut client, mut other) = (Client::open(&gateway), Client::open(&gateway));
    assert_eq!(client.code(&ephemeral("/own")), ErrorCode::Ok);
    let gone = session.exists_and_watch("/own").wait().unwrap().1;
    let mut answers = 0;
    let token = Credential(Some(Bytes::new()));
    let ends = (0..2000).any(|_| {
        other.ping();
        let sasl = Request::Sasl(Sasl { token: token.clone() });
        let Some(mut reply) = client.try_ask(&sasl) else { return true };
        assert_eq!((reply.header.zxid, reply.header.err), (0, 0));
        assert_eq!(Credential::read(&mut reply.body), Ok(Credential(None)));
        answers += 1;
        cluster.advance(SWEEP * 3 / 5);
        false
    });
    assert!(ends && answers > 1, "{answers}");
    assert!(gone.recv().wait().unwrap().is_some());
    other.ping();
}

/// The empty path is the root's, which always exists. A watch of it was answered with NodeDeleted.
#[test]
fn watches_of_the_empty_path_are_set_again_as_zookeeper_does() {
    let (cluster, gateway) = one();
    let mut client = Client::open(&gateway);
    assert_eq!(client.code(&create("/a", b"")), ErrorCode::Ok);
    assert_eq!(client.code(&set("/", b"1")), ErrorCode::Ok);
    let mut events = |relative_zxid, list: usize| {
        let mut lists = [Vec::new(), Vec::new(), Vec::new()];
        lists[list] = vec![Some(String::new())];
        let [data, exist, child] = lists;
        let watches = SetWatches { relative_zxid, data, exist, child };
        let xid = client.send(&Request::SetWatches(watches));
        let mut events = Vec::new();
        loop {
            let packet = client.receive();
            if packet.header.xid == xid {
                assert_eq!(packet.header.err, 0);
                return events;
            }
            events.push(packet.event());
        }
    };
    let only = |kind| vec![(kind, String::new())];
    assert_eq!(events(i64::MAX, 0), []);
    assert_eq!(events(i64::MAX, 1), only(EventType::NodeCreated));
    assert_eq!(events(i64::MAX, 2), []);
    assert_eq!(events(0, 0), only(EventType::NodeDataChanged));
    assert_eq!(events(0, 2), only(EventType::NodeChildrenChanged));
    // No watch is left.
    let session = cluster.node(0).session();
    session.set("/", b"2").wait().unwrap();
    session.create("/b", b"", CreateMode::Persistent).wait().unwrap();
    client.ping();
}

/// S39: a client gets the timeout that it requests, within the bounds.
#[test]
fn timeouts_lie_within_the_bounds() {
    let bounds = (Duration::from_secs(15), Duration::from_secs(120));
    let cluster = Cluster::with_settings(
        1,
        Coordinator::builder().session_timeout_bounds(bounds.0, bounds.1),
    );
    let gateway = Gateway::serve(&cluster.node(0), "127.0.0.1:0").unwrap();
    let opened = Client::dial(&gateway).greet(0, 0, Bytes::new());
    assert_eq!(opened.timeout, 15_000);
    let timeout = |asked| cluster.node(0).open_session_with(asked).unwrap().timeout();
    assert_eq!(timeout(Duration::from_secs(60)), Duration::from_secs(60));
    assert_eq!(timeout(Duration::from_secs(600)), bounds.1);
    let (cluster, _gateway) = one();
    let opened = cluster.node(0).open_session_with(bounds.1).unwrap();
    assert_eq!(opened.timeout(), Duration::from_secs(40), "20 ticks");
}

#[test]
fn clients_may_do_everything_where_access_lists_are_skipped() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    session.add_auth("digest", "alice:hers").wait().unwrap();
    let hers = crate::acl::Acl::creator_all();
    session.create_with_acl("/hers", b"", CreateMode::Persistent, &hers).wait().unwrap();
    let serve = |skips| {
        let builder = Gateway::builder().skip_acl(skips);
        builder.serve(&cluster.node(0), "127.0.0.1:0").unwrap()
    };
    let (strict, open) = (serve(false), serve(true));
    assert_eq!(Client::open(&strict).code(&set("/hers", b"1")), ErrorCode::NoAuth);
    assert_eq!(Client::open(&open).code(&set("/hers", b"1")), ErrorCode::Ok);
    assert_eq!(Client::open(&open).code(&create("/hers/own", b"")), ErrorCode::Ok);
}

/// ZooKeeper's clients can use a scheme of the application, too.
#[test]
fn schemes_of_the_application_authenticate_clients() {
    struct Tokens;
    impl crate::security::AuthProvider for Tokens {
        fn scheme(&self) -> &str {
            "token"
        }

        fn authenticate(&self, credentials: &[u8]) -> Result<Vec<String>, String> {
            match credentials {
                b"7f3a" => Ok(vec!["alice".into(), "team:billing".into()]),
                _ => Err("no such token".into()),
            }
        }
    }
    let cluster = Cluster::with_settings(1, Coordinator::builder().auth_provider(Tokens));
    let gateway = Gateway::serve(&cluster.node(0), "127.0.0.1:0").unwrap();
    let auth = |token: &'static [u8]| {
        let auth = Credential(Some(Bytes::from_static(token)));
        Request::Auth(request::Auth { kind: 0, scheme: Some("token".into()), auth })
    };
    let mut client = Client::open(&gateway);
    client.send(&auth(b"7f3a"));
    // Requests sent in the meantime wait until the ids are known.
    client.send(&Request::WhoAmI);
    assert_eq!(client.receive().header.err, 0);
    let ids = client.receive().body::<Vec<ClientInfo>>();
    for user in ["alice", "team:billing"] {
        assert!(ids.iter().any(|id| (&*id.scheme, &*id.user) == ("token", user)), "{ids:?}");
    }
    client.send(&auth(b"other"));
    assert_eq!(client.receive().header.err, i32::from(ErrorCode::AuthFailed));
    assert!(client.read().is_none(), "the connection is closed");
}

/// An operator saw only the member of the gateway that a client had come to, and not which client it was.
#[test]
fn every_member_reports_where_a_client_is() {
    let cluster = Cluster::new(3);
    let gateway = Gateway::serve(&cluster.node(0), "127.0.0.1:0").unwrap();
    let stream = dial(&gateway);
    let address = stream.local_addr().unwrap();
    let mut client = Client::over(stream);
    let opened = client.greet(0, 0, Bytes::new());
    client.ask(&Request::Sync(PathOnly { path: Some("/".into()) }));
    let reported = |at: usize| {
        let sessions = cluster.node(at).sessions().wait().unwrap();
        let of = |info: &crate::operate::SessionInfo| {
            info.id.number() == opened.session_id.cast_unsigned()
        };
        sessions.into_iter().find(of).unwrap()
    };
    for at in 0..3 {
        let info = reported(at);
        assert_eq!(info.from, Some(address.to_string()), "as member {at} reports");
        assert_eq!(info.owner, Some(cluster.node(0).address()));
    }
    // The replicas know its host. That is left once it is gone, and its session waits for its end.
    drop(client);
    while reported(1).from != Some(address.ip().to_string()) {}
}

/// A client may send its watches along with its first packet. What they have missed came before the reply to
/// that packet then, and the client took it for the reply.
#[test]
fn no_event_comes_before_the_reply_to_the_first_packet() {
    let cluster = Cluster::new(3);
    let gateway = Gateway::serve(&cluster.node(0), "127.0.0.1:0").unwrap();
    let session = cluster.node(2).session();
    session.create("/lasting", b"", CreateMode::Persistent).wait().unwrap();
    let mut client = Client::dial(&gateway);
    let opened = client.greet(0, 0, Bytes::new());
    let Credential(Some(password)) = opened.password else { panic!("there is a password") };
    let seen = client.ask(&Request::Exists(read("/lasting", false))).header.zxid;
    drop(client);
    for round in 0..10_u8 {
        session.set("/lasting", [round]).wait().unwrap();
        let mut client = Client::dial(&gateway);
        client.say_hello(seen, opened.session_id, password.clone(), false);
        let xid = client.send(&Request::SetWatches2(SetWatches2 {
            one_shot: SetWatches {
                relative_zxid: seen,
                data: Vec::new(),
                exist: Vec::new(),
                child: Vec::new(),
            },
            persistent: vec![Some("/lasting".to_owned())],
            persistent_recursive: Vec::new(),
        }));
        let resumed = client.greeting().expect("a reply to the first packet");
        assert_eq!(resumed.session_id, opened.session_id, "in round {round}");
        let event = client.receive().event();
        assert_eq!(event, (EventType::NodeDataChanged, "/lasting".to_owned()));
        while client.receive().header.xid != xid {}
    }
}

/// A client that set several watches again received what they had missed watch by watch: zxids went back, and a
/// change that concerned several watches came several times.
#[test]
fn what_several_watches_have_missed_comes_in_the_order_of_the_changes() {
    let cluster = Cluster::new(1);
    let gateway = Gateway::serve(&cluster.node(0), "127.0.0.1:0").unwrap();
    let session = cluster.node(0).session();
    for path in ["/one", "/two"] {
        session.create(path, b"", CreateMode::Persistent).wait().unwrap();
    }
    let mut client = Client::open(&gateway);
    let seen = client.ask(&Request::Exists(read("/one", false))).header.zxid;
    for path in ["/two", "/one", "/two"] {
        session.set(path, b"new").wait().unwrap();
    }
    let paths = ["/one", "/two"].map(|path| Some(path.to_owned()));
    let xid = client.send(&Request::SetWatches2(SetWatches2 {
        one_shot: SetWatches {
            relative_zxid: seen,
            data: Vec::new(),
            exist: Vec::new(),
            child: Vec::new(),
        },
        persistent: paths.to_vec(),
        persistent_recursive: paths.to_vec(),
    }));
    for path in ["/two", "/one", "/two"] {
        let event = client.receive().event();
        assert_eq!(event, (EventType::NodeDataChanged, path.to_owned()));
    }
    assert_eq!(client.receive().header.xid, xid);
}

/// A watch was forgotten when the node had removed it, and not in its turn: the requests before its removal, which
/// still waited for their replies, did not see it any more.
#[test]
fn a_watch_is_there_for_the_requests_before_its_removal() {
    let cluster = Cluster::new(1);
    let gateway = Gateway::serve(&cluster.node(0), "127.0.0.1:0").unwrap();
    let mut client = Client::open(&gateway);
    client.ask(&create("/a", b""));
    for round in 0..20 {
        let mode = AddWatchMode::Persistent.into();
        client.ask(&Request::AddWatch(AddWatch { path: Some("/a".into()), mode }));
        // Nothing is replied to before this write is done.
        client.send(&create(&format!("/b{round}"), b""));
        let watches = || WatchesOf { path: Some("/a".into()), kind: 3 };
        client.send(&Request::CheckWatches(watches()));
        client.send(&Request::RemoveWatches(watches()));
        client.send(&Request::CheckWatches(watches()));
        let codes: Vec<i32> = (0..4).map(|_| client.receive().header.err).collect();
        assert_eq!(codes, [0, 0, 0, ErrorCode::NoWatcher.into()], "in round {round}");
    }
}

/// The write behind the close of a session could be in the same batch. Its event came after the reply to the close,
/// with which a client counts its connection as ended.
#[test]
fn no_event_comes_after_the_reply_to_a_close() {
    let cluster = Cluster::new(1);
    let gateway = Gateway::serve(&cluster.node(0), "127.0.0.1:0").unwrap();
    let mut writer = Client::open(&gateway);
    writer.ask(&create("/a", b""));
    for round in 0..50 {
        let mut client = Client::open(&gateway);
        let mode = AddWatchMode::Persistent.into();
        client.ask(&Request::AddWatch(AddWatch { path: Some("/a".into()), mode }));
        for _ in 0..10 {
            writer.send(&set("/a", b"new"));
        }
        let close = client.send(&Request::CloseSession);
        for _ in 0..10 {
            writer.send(&set("/a", b"new"));
        }
        while client.receive().header.xid != close {}
        assert!(client.read().is_none(), "in round {round}");
        for _ in 0..20 {
            writer.receive();
        }
    }
}

#[test]
fn a_client_has_not_missed_the_change_that_it_saw_last() {
    let (_cluster, gateway) = one();
    let mut client = Client::open(&gateway);
    client.ask(&create("/a", b""));
    let seen = client.ask(&create("/a/b", b"")).header.zxid;
    let xid = client.send(&Request::SetWatches(SetWatches {
        relative_zxid: seen,
        data: vec![Some("/a/b".to_owned())],
        exist: Vec::new(),
        child: vec![Some("/a".to_owned())],
    }));
    assert_eq!(client.receive().header.xid, xid);
    // The watches are set.
    client.send(&set("/a/b", b"new"));
    assert_eq!(client.receive().event(), (EventType::NodeDataChanged, "/a/b".to_owned()));
    client.receive();
    client.send(&create("/a/c", b""));
    assert_eq!(client.receive().event(), (EventType::NodeChildrenChanged, "/a".to_owned()));
}
