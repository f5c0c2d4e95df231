//! Clients of an instance that has no quorum.

use super::*;
use crate::gateway::turns::SWEEP;
use crate::gateway::wire::request::{Auth, MultiOp, PathOnly, SetWatches, SetWatches2};
use crate::gateway::wire::response::{
    ChildrenReply, ClientInfo, DataReply, MultiReply, MultiResult,
};
use crate::types::acl::Acl as Entry;
use crate::types::znode::CreateMode;

pub(super) fn word(gateway: &Gateway, word: &str) -> String {
    let mut stream = dial(gateway);
    stream.write_all(word.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Advances the clock until the gateway of a node reports this mode.
pub(super) fn wait_until(cluster: &Cluster, gateway: &Gateway, mode: &str) {
    let is = |_| {
        cluster.advance(SWEEP * 3 / 5);
        word(gateway, "isro") == mode
    };
    assert!((0..1000).any(is), "it is never {mode}");
}

fn serve(cluster: &Cluster, node: usize) -> Gateway {
    let builder = Gateway::builder().read_only_mode(true);
    builder.serve(&cluster.node(node), "127.0.0.1:0").unwrap()
}

fn read_only(gateway: &Gateway, seen: i64, session: i64, password: Bytes) -> Option<Client> {
    let mut client = Client::dial(gateway);
    let response = client.hello(seen, session, password.clone(), true)?;
    assert_eq!((response.read_only, response.session_id), (Some(true), session));
    assert!(response.timeout > 0);
    let Credential(answered) = response.password;
    assert_eq!(answered, Some(if session == 0 { Bytes::from_static(&[0; 16]) } else { password }));
    Some(client)
}

#[test]
fn reads_are_served_without_a_quorum_and_sessions_go_on_with_one() {
    let cluster = Cluster::new(3);
    let gateway = serve(&cluster, 0);
    let session = cluster.node(0).session();
    session.create("/a", b"1", CreateMode::Persistent).wait().unwrap();
    session.create("/a/b", b"", CreateMode::Persistent).wait().unwrap();
    session.add_auth("digest", "alice:hers").wait().unwrap();
    session
        .create_with_acl("/hers", b"2", CreateMode::Persistent, &Entry::creator_all())
        .wait()
        .unwrap();

    let mut writer = Client::dial(&gateway);
    let opened = writer.hello(0, 0, Bytes::new(), true).unwrap();
    assert_eq!((opened.read_only, word(&gateway, "isro")), (Some(false), "rw".to_owned()));
    assert_eq!(writer.code(&ephemeral("/own")), ErrorCode::Ok);
    let watched = writer.ask(&Request::GetData(read("/a", true)));
    let (seen, before) = (watched.header.zxid, watched.body::<DataReply>());

    cluster.isolate(0);
    wait_until(&cluster, &gateway, "ro");
    assert!(writer.read().is_none(), "its session cannot be served here");
    assert!(word(&gateway, "srvr").contains("Mode: read-only\n"));
    assert!(Client::dial(&gateway).hello(0, 0, Bytes::new(), false).is_none());
    assert!(read_only(&gateway, i64::MAX, 0, Bytes::new()).is_none(), "it has seen more");

    let mut client = read_only(&gateway, 0, 0, Bytes::new()).unwrap();
    for refused in [
        create("/new", b""),
        // Refused before the arguments are checked.
        create("no path", b""),
        set("/a", b"2"),
        Request::Delete(request::Delete { path: Some("/none".into()), version: -1 }),
        Request::Multi(request::MultiRequest { ops: Vec::new() }),
        Request::Sync(PathOnly { path: Some("/".into()) }),
    ] {
        assert_eq!(client.code(&refused), ErrorCode::NotReadOnly, "{refused:?}");
    }
    client.ping();
    let data = client.ask(&Request::GetData(read("/a", true)));
    assert!(data.header.zxid >= seen);
    assert_eq!(data.body::<DataReply>(), before);
    let children = client.ask(&Request::GetChildren(read("/a", false))).body::<ChildrenReply>();
    assert_eq!(children.children, ["b"]);
    let count = Request::GetAllChildrenNumber(PathOnly { path: Some("/a".into()) });
    assert_eq!(client.ask(&count).body::<i32>(), 1);
    let reads = [read("/a/b", false), read("/none", false), read("/hers", false)];
    let ops = reads.map(MultiOp::GetData).to_vec();
    let several =
        client.ask(&Request::MultiRead(request::MultiRequest { ops })).body::<MultiReply>();
    assert!(matches!(several.results[..], [Ok(MultiResult::GetData(_)), Err(-101), Err(-102)]));
    // It may read another user's znode once it has authenticated as that user.
    let hers = Request::GetData(read("/hers", false));
    let auth = Credential(Some(Bytes::from_static(b"alice:hers")));
    client.send(&Request::Auth(Auth { kind: 0, scheme: Some("digest".into()), auth }));
    assert_eq!(client.receive().header.err, 0);
    assert_eq!(client.ask(&hers).body::<DataReply>().data.as_deref(), Some(&b"2"[..]));
    assert_eq!(client.ask(&Request::WhoAmI).body::<Vec<ClientInfo>>().len(), 2);

    // A session of the cluster is neither closed nor harmed.
    let Credential(password) = opened.password.clone();
    let password = password.unwrap();
    let mut waits = read_only(&gateway, seen, opened.session_id, password.clone()).unwrap();
    let ephemerals = Request::GetEphemerals(PathOnly { path: None });
    assert_eq!(waits.ask(&ephemerals).body::<ChildrenReply>().children, ["/own"]);
    assert_eq!(waits.code(&Request::CloseSession), ErrorCode::NotReadOnly);
    let watches = SetWatches2 {
        one_shot: SetWatches {
            relative_zxid: seen,
            data: vec![Some("/a".into()), Some("/gone".into())],
            exist: Vec::new(),
            child: Vec::new(),
        },
        persistent: vec![Some("/a/b".into())],
        persistent_recursive: Vec::new(),
    };
    let xid = waits.send(&Request::SetWatches2(watches.clone()));
    assert_eq!(waits.receive().event(), (EventType::NodeDeleted, "/gone".to_owned()));
    assert_eq!(waits.receive().header.xid, xid);
    let any = request::WatchesOf { path: Some("/a".into()), kind: 3 };
    assert_eq!(waits.code(&Request::CheckWatches(any.clone())), ErrorCode::Ok);
    assert_eq!(waits.code(&Request::RemoveWatches(any.clone())), ErrorCode::Ok);
    assert_eq!(waits.code(&Request::RemoveWatches(any)), ErrorCode::NoWatcher);
    // A client without a session of the cluster can close its connection in order.
    let mut leaves = read_only(&gateway, 0, 0, Bytes::new()).unwrap();
    assert_eq!(leaves.code(&Request::CloseSession), ErrorCode::Ok);
    assert!(leaves.read().is_none());

    cluster.node(1).session().set("/a", b"2").wait().unwrap();
    cluster.heal();
    wait_until(&cluster, &gateway, "rw");
    assert!(client.read().is_none() && waits.read().is_none());
    let mut client = Client::dial(&gateway);
    let resumed = client.hello(seen, opened.session_id, password, true).unwrap();
    assert_eq!((resumed.read_only, resumed.session_id), (Some(false), opened.session_id));
    client.send(&Request::SetWatches2(watches));
    let mut events = [client.receive().event(), client.receive().event()];
    events.sort_by(|(_, one), (_, other)| one.cmp(other));
    let expected = [(EventType::NodeDataChanged, "/a"), (EventType::NodeDeleted, "/gone")];
    assert_eq!(events, expected.map(|(kind, path)| (kind, path.to_owned())));
    assert_eq!(client.receive().header.err, 0);
    assert_eq!(client.code(&set("/a", b"3")), ErrorCode::Ok);
}

/// After the quorum was back, the gateway served reads from the changed tree, and sent the client a zxid
/// after the change. So the client's watch, set again from that zxid, missed the change.
#[test]
fn a_read_only_client_reads_the_state_as_of_its_connection() {
    let cluster = Cluster::new(3);
    let gateway = serve(&cluster, 0);
    let session = cluster.node(1).session();
    session.create("/a", b"1", CreateMode::Persistent).wait().unwrap();
    cluster.node(0).session().sync().wait().unwrap();
    cluster.isolate(0);
    wait_until(&cluster, &gateway, "ro");
    let mut client = read_only(&gateway, 0, 0, Bytes::new()).unwrap();
    let before = client.ask(&Request::GetData(read("/a", true)));
    session.set("/a", b"2").wait().unwrap();
    cluster.heal();
    // Reads until the connection is closed.
    let zxid = before.header.zxid;
    let before = before.body::<DataReply>();
    for _ in 0..1000 {
        let Some(reply) = client.try_ask(&Request::GetData(read("/a", false))) else { return };
        assert_eq!(reply.header.zxid, zxid);
        assert_eq!(reply.body::<DataReply>(), before);
        cluster.advance(SWEEP / 5);
    }
    panic!("the connection is not closed when there is a quorum again");
}

/// All answers of a multiRead were made before their total length was checked.
#[test]
fn several_reads_have_a_bound_without_a_quorum_too() {
    let cluster = Cluster::new(3);
    let gateway = serve(&cluster, 0);
    let session = cluster.node(0).session();
    session.create("/large", vec![7; 900_000], CreateMode::Persistent).wait().unwrap();
    cluster.isolate(0);
    wait_until(&cluster, &gateway, "ro");
    let mut client = read_only(&gateway, 0, 0, Bytes::new()).unwrap();
    let several = |count| {
        let ops = std::iter::repeat_n(MultiOp::GetData(read("/large", false)), count).collect();
        Request::MultiRead(request::MultiRequest { ops })
    };
    assert_eq!(client.ask(&several(1)).body::<MultiReply>().results.len(), 1);
    client.send(&several(30_000));
    assert!(client.read().is_none(), "the connection is closed");
}
