//! Packets written by hand from the protocol, in both directions, and malformed packets.

mod frames;
mod random;

use bytes::{Bytes, BytesMut};

use super::codes::{
    AddWatchMode, CreateFlags, ErrorCode, EventType, OpCode, ReservedXid, WatcherType,
};
use super::frame::JUTE_MAXBUFFER;
use super::handshake::{ConnectRequest, ConnectResponse};
use super::jute::{Credential, Jute, Unreadable};
use super::request::{
    Acl, AddWatch, Auth, Check, Create, CreateTtl, Decoded, Delete, MultiOp, MultiRequest,
    PathOnly, Read, Reconfig, Request, RequestHeader, Sasl, SetAcl, SetData, SetWatches,
    SetWatches2, WatchesOf, decode,
};
use super::response::{
    AclReply, Children2Reply, ChildrenReply, ClientInfo, Create2Reply, DataReply, MultiReply,
    MultiResult, PathReply, ReplyHeader, Stat, WatcherEvent, append_reply,
};

/// Makes bytes from hexadecimal digits; text between quotes stands for itself.
fn packet(text: &str) -> Bytes {
    let mut bytes = Vec::new();
    for (number, part) in text.split('\'').enumerate() {
        if number % 2 == 1 {
            bytes.extend_from_slice(part.as_bytes());
            continue;
        }
        let digits: Vec<u8> =
            part.bytes().filter(u8::is_ascii_hexdigit).map(|digit| hex(digit) as u8).collect();
        bytes.extend(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]));
    }
    bytes.into()
}

fn hex(digit: u8) -> u32 {
    char::from(digit).to_digit(16).unwrap()
}

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn data(bytes: &'static [u8]) -> Option<Bytes> {
    Some(Bytes::from_static(bytes))
}

fn world() -> Acl {
    Acl { perms: 31, scheme: text("world"), id: text("anyone") }
}

fn stat() -> Stat {
    Stat {
        czxid: 1,
        mzxid: 2,
        ctime: 3,
        mtime: 4,
        version: 5,
        cversion: 6,
        aversion: 7,
        ephemeral_owner: 8,
        data_length: 9,
        num_children: 10,
        pzxid: 11,
    }
}

const WORLD: &str = "0000001f 00000005 'world' 00000006 'anyone'";
const STAT: &str = "0000000000000001 0000000000000002 0000000000000003 0000000000000004 \
    00000005 00000006 00000007 0000000000000008 00000009 0000000a 000000000000000b";

/// What a request with this body decodes to.
fn decoded(op: OpCode, body: &str) -> Decoded {
    let header = RequestHeader { xid: 1, op: op.into() };
    let mut bytes = BytesMut::new();
    header.write(&mut bytes);
    bytes.extend_from_slice(&packet(body));
    let (again, decoded) = decode(bytes.freeze()).unwrap();
    assert_eq!(again, header);
    decoded
}

fn unreadable(op: OpCode, body: &str) {
    assert_eq!(decoded(op, body), Decoded::Unreadable(op), "{body}");
}

#[track_caller]
fn request_is(golden: &str, xid: i32, request: Request) {
    let golden = packet(golden);
    let op = request.op().into();
    let (header, decoded) = decode(golden.clone()).unwrap();
    assert_eq!(header, RequestHeader { xid, op });
    assert_eq!(decoded, Decoded::Request(request.clone()));
    let mut encoded = BytesMut::new();
    request.encode(xid, &mut encoded);
    assert_eq!(encoded, golden);
}

#[track_caller]
fn record_is<T: Jute + PartialEq + std::fmt::Debug>(golden: &str, record: T) {
    let mut golden = packet(golden);
    let mut encoded = BytesMut::new();
    record.write(&mut encoded);
    assert_eq!(encoded, golden);
    assert_eq!(T::read(&mut golden), Ok(record));
    assert!(golden.is_empty());
}

#[test]
fn a_new_session_as_the_java_client_asks_for_it() {
    let request = ConnectRequest {
        protocol_version: 0,
        last_zxid_seen: 0,
        timeout: 30_000,
        session_id: 0,
        password: Credential(data(&[0; 16])),
        read_only: Some(false),
    };
    record_is(
        "00000000 0000000000000000 00007530 0000000000000000 \
         00000010 00000000000000000000000000000000 00",
        request.clone(),
    );
    let password = Bytes::from_static(b"0123456789abcdef");
    let response = ConnectResponse::accepted(&request, 4000, 0x0100_000b, password, false);
    record_is("00000000 00000fa0 000000000100000b 00000010 '0123456789abcdef' 00", response);
}

#[test]
fn the_read_only_byte_is_answered_only_if_it_came() {
    let without = "00000000 0000000000000007 00007530 0000000000000005 00000002 'pw'";
    let old = ConnectRequest::read(&mut packet(without)).unwrap();
    assert_eq!(old.read_only, None);
    assert_eq!((old.last_zxid_seen, old.session_id), (7, 5));
    record_is(without, old.clone());
    record_is(
        "00000000 00000000 0000000000000000 00000010 00000000000000000000000000000000",
        ConnectResponse::refused(&old),
    );
    // Any other byte is true, and what follows it is ignored.
    let new = ConnectRequest::read(&mut packet(&format!("{without} 07 ffff"))).unwrap();
    assert_eq!(new.read_only, Some(true));
    let mut refusal = BytesMut::new();
    ConnectResponse::refused(&new).write(&mut refusal);
    assert_eq!(refusal.len(), 37);
    assert_eq!(refusal[36], 0, "the byte is the server's mode");
}

#[test]
fn passwords_may_have_any_length_within_the_packet() {
    let request = |password: &str| {
        let text = format!("00000001 ffffffffffffffff ffffffff 0000000000000000 {password}");
        ConnectRequest::read(&mut packet(&text)).map(|request| request.password.0)
    };
    assert_eq!(request("ffffffff"), Ok(None));
    assert_eq!(request("00000000"), Ok(data(b"")));
    assert_eq!(request("00000003 'abc'"), Ok(data(b"abc")));
    assert_eq!(request("fffffffe"), Err(Unreadable));
    assert_eq!(request("00000004 'abc'"), Err(Unreadable));
    assert_eq!(request("000000"), Err(Unreadable));
}

#[test]
fn requests_of_one_path() {
    let exists = Read { path: text("/a"), watch: true };
    request_is("00000001 00000003 00000002 '/a' 01", 1, Request::Exists(exists));
    let config = Read { path: text("/zookeeper/config"), watch: false };
    request_is("00000002 00000004 00000011 '/zookeeper/config' 00", 2, Request::GetData(config));
    let root = Read { path: text("/"), watch: false };
    request_is("00000003 00000008 00000001 '/' 00", 3, Request::GetChildren(root.clone()));
    request_is("00000003 0000000c 00000001 '/' 00", 3, Request::GetChildren2(root));
    let path = |path| PathOnly { path };
    request_is("00000004 00000006 00000002 '/a'", 4, Request::GetAcl(path(text("/a"))));
    request_is("00000004 00000009 ffffffff", 4, Request::Sync(path(None)));
    request_is("00000004 00000067 00000000", 4, Request::GetEphemerals(path(text(""))));
    let all = Request::GetAllChildrenNumber(path(text("/a")));
    request_is("00000004 00000068 00000002 '/a'", 4, all);
    let container = Request::DeleteContainer(path(text("/c")));
    request_is("00000004 00000014 00000002 '/c'", 4, container);
    let delete = Delete { path: text("/a"), version: -1 };
    request_is("00000005 00000002 00000002 '/a' ffffffff", 5, Request::Delete(delete));
    let check = Check { path: text("/a"), version: 3 };
    request_is("00000005 0000000d 00000002 '/a' 00000003", 5, Request::Check(check));
}

#[test]
fn requests_that_write() {
    let create = Create { path: text("/a"), data: data(b"v1"), acl: Some(vec![world()]), flags: 3 };
    let body = format!("00000002 '/a' 00000002 'v1' 00000001 {WORLD} 00000003");
    request_is(&format!("00000007 00000001 {body}"), 7, Request::Create(create.clone()));
    request_is(&format!("00000007 0000000f {body}"), 7, Request::Create2(create.clone()));
    request_is(&format!("00000007 00000013 {body}"), 7, Request::CreateContainer(create));
    let bare = Create { path: None, data: None, acl: None, flags: -1 };
    request_is("00000007 00000001 ffffffff ffffffff ffffffff ffffffff", 7, Request::Create(bare));
    let create = Create { path: text("/t"), data: data(b""), acl: Some(vec![]), flags: 5 };
    let ttl = CreateTtl { create, ttl: 258 };
    request_is(
        "00000007 00000015 00000002 '/t' 00000000 00000000 00000005 0000000000000102",
        7,
        Request::CreateTtl(ttl),
    );
    let set = SetData { path: text("/a"), data: None, version: 2 };
    request_is("00000008 00000005 00000002 '/a' ffffffff 00000002", 8, Request::SetData(set));
    let nobody = Acl { perms: -1, scheme: None, id: None };
    let set = SetAcl { path: text("/a"), acl: Some(vec![world(), nobody]), version: -1 };
    request_is(
        &format!(
            "00000009 00000007 00000002 '/a' 00000002 {WORLD} ffffffff ffffffff ffffffff ffffffff"
        ),
        9,
        Request::SetAcl(set),
    );
    let reconfig =
        Reconfig { joining: text("j"), leaving: text("2"), members: None, config_id: -1 };
    request_is(
        "00000009 00000010 00000001 'j' 00000001 '2' ffffffff ffffffffffffffff",
        9,
        Request::Reconfig(reconfig),
    );
}

#[test]
fn requests_about_watches() {
    let set = SetWatches {
        relative_zxid: 9,
        data: vec![text("/d"), None],
        exist: vec![],
        child: vec![text("")],
    };
    request_is(
        "fffffff8 00000065 0000000000000009 00000002 00000002 '/d' ffffffff 00000000 \
         00000001 00000000",
        ReservedXid::SetWatches.into(),
        Request::SetWatches(set),
    );
    let set = SetWatches2 {
        one_shot: SetWatches {
            relative_zxid: 9,
            data: vec![],
            exist: vec![text("/e")],
            child: vec![],
        },
        persistent: vec![text("/p")],
        persistent_recursive: vec![text("/r")],
    };
    request_is(
        "fffffff8 00000069 0000000000000009 00000000 00000001 00000002 '/e' 00000000 \
         00000001 00000002 '/p' 00000001 00000002 '/r'",
        -8,
        Request::SetWatches2(set),
    );
    let add = AddWatch { path: text("/a"), mode: AddWatchMode::PersistentRecursive.into() };
    request_is("00000001 0000006a 00000002 '/a' 00000001", 1, Request::AddWatch(add));
    // An unknown type is left for the server to refuse.
    let watches = |kind| WatchesOf { path: text("/a"), kind };
    let check = Request::CheckWatches(watches(9));
    request_is("00000001 00000011 00000002 '/a' 00000009", 1, check);
    let remove = Request::RemoveWatches(watches(WatcherType::Any.into()));
    request_is("00000001 00000012 00000002 '/a' 00000003", 1, remove);
}

#[test]
fn requests_about_the_connection() {
    let auth = Auth { kind: 0, scheme: text("digest"), auth: Credential(data(b"u:pw")) };
    assert!(!format!("{auth:?}").contains("117"), "a password, as bytes: {auth:?}");
    assert!(!format!("{auth:?}").contains("pw"), "{auth:?}");
    request_is(
        "fffffffc 00000064 00000000 00000006 'digest' 00000004 'u:pw'",
        ReservedXid::Auth.into(),
        Request::Auth(auth),
    );
    let sasl = Sasl { token: Credential(None) };
    request_is("00000001 00000066 ffffffff", 1, Request::Sasl(sasl));
    request_is("fffffffe 0000000b", ReservedXid::Ping.into(), Request::Ping);
    request_is("00000001 0000006b", 1, Request::WhoAmI);
    request_is("00000001 fffffff6", 1, Request::CreateSession);
    request_is("00000001 fffffff5", 1, Request::CloseSession);
}

#[test]
fn a_multi_is_its_operations_between_headers() {
    let create = Create { path: text("/a"), data: None, acl: Some(vec![world()]), flags: 0 };
    let ops = vec![
        MultiOp::Create(create),
        MultiOp::Delete(Delete { path: text("/b"), version: -1 }),
        MultiOp::SetData(SetData { path: text("/c"), data: data(b"x"), version: 1 }),
        MultiOp::Check(Check { path: text("/d"), version: 2 }),
    ];
    request_is(
        &format!(
            "00000001 0000000e \
             00000001 00 ffffffff 00000002 '/a' ffffffff 00000001 {WORLD} 00000000 \
             00000002 00 ffffffff 00000002 '/b' ffffffff \
             00000005 00 ffffffff 00000002 '/c' 00000001 'x' 00000001 \
             0000000d 00 ffffffff 00000002 '/d' 00000002 \
             ffffffff 01 ffffffff"
        ),
        1,
        Request::Multi(MultiRequest { ops }),
    );
    let path = Read { path: text("/a"), watch: false };
    let ops = vec![MultiOp::GetData(path.clone()), MultiOp::GetChildren(path)];
    request_is(
        "00000001 00000016 00000004 00 ffffffff 00000002 '/a' 00 \
         00000008 00 ffffffff 00000002 '/a' 00 ffffffff 01 ffffffff",
        1,
        Request::MultiRead(MultiRequest { ops }),
    );
    request_is(
        "00000001 0000000e ffffffff 01 ffffffff",
        1,
        Request::Multi(MultiRequest { ops: vec![] }),
    );
}

#[test]
fn a_multi_that_cannot_be_read() {
    let check = "0000000d 00 ffffffff 00000002 '/d' 00000002";
    let read = "00000004 00 ffffffff 00000002 '/a' 00";
    let end = "ffffffff 01 ffffffff";
    // Either kind alone can be read, in either request; not both together.
    for op in [OpCode::Multi, OpCode::MultiRead] {
        for kind in [check, read] {
            let whole = decoded(op, &format!("{kind} {kind} {end}"));
            assert!(matches!(whole, Decoded::Request(_)), "{whole:?}");
        }
        unreadable(op, &format!("{check} {read} {end}"));
        unreadable(op, &format!("{read} {check} {end}"));
    }
    // The end counts, whatever type and error its header names; without an end there is no multi.
    let whole = decoded(OpCode::Multi, &format!("{check} 00000063 02 00000000"));
    assert!(matches!(whole, Decoded::Request(Request::Multi(multi)) if multi.ops.len() == 1));
    unreadable(OpCode::Multi, check);
    unreadable(OpCode::Multi, "");
    // Operations that a multi does not have: exists, an invalid end, an unknown one.
    unreadable(OpCode::Multi, &format!("00000003 00 ffffffff 00000002 '/a' 00 {end}"));
    unreadable(OpCode::Multi, &format!("0000000b 00 ffffffff {end}"));
    unreadable(OpCode::Multi, "ffffffff 00 ffffffff");
    unreadable(OpCode::Multi, &format!("000003e7 00 ffffffff {end}"));
}

#[test]
fn the_result_of_a_create_in_a_multi_depends_on_its_flags() {
    let end = "ffffffff 01 ffffffff";
    let with_acl = |op: OpCode, flags: i32, acl: &str, more: &str| {
        let op = i32::from(op);
        let body = format!("00000002 '/a' ffffffff {acl} {flags:08x} {more}");
        match decoded(OpCode::Multi, &format!("{op:08x} 00 ffffffff {body} {end}")) {
            Decoded::Request(Request::Multi(multi)) => Some(multi.ops[0].result()),
            _ => None,
        }
    };
    let result = |op, flags, more: &str| with_acl(op, flags, "00000000", more);
    let by_path = Some(OpCode::Create);
    let with_stat = Some(OpCode::Create2);
    for flags in 0..4 {
        assert_eq!(result(OpCode::Create, flags, ""), by_path, "{flags}");
        assert_eq!(result(OpCode::Create2, flags, ""), with_stat, "{flags}");
        assert_eq!(result(OpCode::CreateContainer, flags, ""), with_stat, "{flags}");
    }
    for op in [OpCode::Create, OpCode::Create2, OpCode::CreateContainer] {
        assert_eq!(result(op, 4, ""), with_stat, "{op:?}");
        for flags in [5, 6, 7, -1] {
            assert_eq!(result(op, flags, ""), None, "{op:?} {flags}");
        }
        assert_eq!(with_acl(op, 0, "ffffffff", ""), None, "{op:?}, null ACL");
    }
    let ttl = "0000000000000001";
    for (flags, expected) in
        [(0, by_path), (3, by_path), (4, with_stat), (5, with_stat), (6, with_stat), (7, by_path)]
    {
        assert_eq!(result(OpCode::CreateTtl, flags, ttl), expected, "{flags}");
        assert_eq!(with_acl(OpCode::CreateTtl, flags, "ffffffff", ttl), expected, "{flags}");
    }
}

#[test]
fn bodies_that_cannot_be_read_name_their_op() {
    unreadable(OpCode::GetData, "");
    unreadable(OpCode::GetData, "00000002 '/a'");
    unreadable(OpCode::GetData, "00000003 '/a'");
    unreadable(OpCode::GetData, "fffffffe 00");
    unreadable(OpCode::GetData, "7fffffff '/a' 00");
    unreadable(OpCode::Delete, "00000002 '/a' 000000");
    unreadable(OpCode::SetData, "00000002 '/a' fffffffe 00000000");
    unreadable(OpCode::SetAcl, "00000002 '/a' 7fffffff 00000000");
    unreadable(OpCode::SetAcl, "00000002 '/a' 00000001 00000000");
    unreadable(OpCode::CreateTtl, "00000002 '/t' 00000000 00000000 00000005");
    unreadable(OpCode::SetWatches, "0000000000000000 ffffffff 00000000 00000000");
    unreadable(
        OpCode::SetWatches2,
        "0000000000000000 00000000 00000000 00000000 00000000 ffffffff",
    );
}

#[test]
fn a_list_longer_than_its_packet_is_refused_before_memory_is_taken() {
    // Each entry takes at least 4 bytes: 4 of them fit into 16, 5 do not.
    let lists = |count: &str| {
        let padding = "ffffffff ffffffff ffffffff ffffffff";
        <Vec<Option<String>>>::read(&mut packet(&format!("{count} {padding}")))
    };
    assert_eq!(lists("00000004"), Ok(vec![None; 4]));
    for count in ["00000005", "10000000", "7fffffff"] {
        assert_eq!(lists(count), Err(Unreadable), "{count}");
    }
    assert_eq!(<Acl as Jute>::LEAST, 12);
}

#[test]
fn values_that_java_accepts_are_accepted() {
    // A negative count is an empty list, unless it is null.
    let acl =
        |count: &str| match decoded(OpCode::SetAcl, &format!("00000002 '/a' {count} 00000000")) {
            Decoded::Request(Request::SetAcl(set)) => set.acl,
            other => panic!("{other:?}"),
        };
    assert_eq!(acl("fffffffb"), Some(vec![]));
    assert_eq!(acl("ffffffff"), None);
    // Any byte but zero is true; bytes after a body are ignored.
    let read = Request::GetData(Read { path: text("/a"), watch: true });
    let expected = Decoded::Request(read);
    assert_eq!(decoded(OpCode::GetData, "00000002 '/a' ff 0102"), expected);
    assert_eq!(decoded(OpCode::CloseSession, "0102"), Decoded::Request(Request::CloseSession));
    assert_eq!(decoded(OpCode::Ping, "00"), Decoded::Request(Request::Ping));
    // Invalid UTF-8 becomes U+FFFD.
    let path = Request::Sync(PathOnly { path: text("/\u{fffd}b") });
    assert_eq!(decoded(OpCode::Sync, "00000003 2f ff 62"), Decoded::Request(path));
}

#[test]
fn unknown_ops_are_visible_and_any_xid_is_fine() {
    for op in [0, -1, 10, 23, 99, 108, -9, -12, i32::MAX, i32::MIN] {
        for xid in [0, -1, -2, 7, i32::MIN] {
            let frame = packet(&format!("{xid:08x} {op:08x} ff"));
            assert_eq!(decode(frame), Ok((RequestHeader { xid, op }, Decoded::UnknownOp)));
        }
    }
    // An incomplete header cannot be answered.
    for length in 0..8 {
        assert_eq!(decode(Bytes::from(vec![0; length])), Err(Unreadable));
    }
}

#[test]
fn a_second_connect_request_is_op_zero() {
    let request = "00000000 0000000000000000 00007530 0000000000000000 00000000";
    let (header, decoded) = decode(packet(request)).unwrap();
    assert_eq!((header, decoded), (RequestHeader { xid: 0, op: 0 }, Decoded::UnknownOp));
}

#[test]
fn replies_by_hand() {
    record_is("00000004 'path'", PathReply { path: text("path") });
    record_is("ffffffff", PathReply { path: None });
    record_is(STAT, stat());
    let created = Create2Reply { path: "/a".to_owned(), stat: stat() };
    record_is(&format!("00000002 '/a' {STAT}"), created);
    record_is(&format!("ffffffff {STAT}"), DataReply { data: None, stat: stat() });
    record_is(&format!("00000000 {STAT}"), DataReply { data: data(b""), stat: stat() });
    record_is(&format!("00000001 'v' {STAT}"), DataReply { data: data(b"v"), stat: stat() });
    let children = vec!["a".to_owned(), "bc".to_owned()];
    let names = "00000002 00000001 'a' 00000002 'bc'";
    record_is(names, ChildrenReply { children: children.clone() });
    record_is(&format!("{names} {STAT}"), Children2Reply { children, stat: stat() });
    let acl = AclReply { acl: vec![world()], stat: stat() };
    record_is(&format!("00000001 {WORLD} {STAT}"), acl);
    record_is("00000007", 7);
    record_is("00000000", 0);
    record_is("ffffffff", Credential(None));
    let client = ClientInfo { scheme: "digest".to_owned(), user: "me".to_owned() };
    let who = vec![client];
    record_is("00000001 00000006 'digest' 00000002 'me'", who);
}

#[test]
fn the_results_of_a_multi() {
    let header = "00000000";
    let children = vec!["a".to_owned()];
    let results = vec![
        MultiResult::Create(PathReply { path: text("/a") }),
        MultiResult::Create2(Create2Reply { path: "/b".to_owned(), stat: stat() }),
        MultiResult::SetData(stat()),
        MultiResult::Delete,
        MultiResult::Check,
        MultiResult::GetChildren(ChildrenReply { children }),
        MultiResult::GetData(DataReply { data: data(b"v"), stat: stat() }),
    ];
    let results = results.into_iter().map(Ok).collect();
    record_is(
        &format!(
            "00000001 00 {header} 00000002 '/a' \
             0000000f 00 {header} 00000002 '/b' {STAT} \
             00000005 00 {header} {STAT} \
             00000002 00 {header} \
             0000000d 00 {header} \
             00000008 00 {header} 00000001 00000001 'a' \
             00000004 00 {header} 00000001 'v' {STAT} \
             ffffffff 01 ffffffff"
        ),
        MultiReply { results },
    );
    // A multi that failed at its second operation.
    let errors = [ErrorCode::Ok, ErrorCode::NoNode, ErrorCode::RuntimeInconsistency];
    let results = errors.map(|code| Err(code.into())).to_vec();
    record_is(
        "ffffffff 00 00000000 00000000 ffffffff 00 ffffff9b ffffff9b \
         ffffffff 00 fffffffe fffffffe ffffffff 01 ffffffff",
        MultiReply { results },
    );
    let unknown = "00000003 00 00000000 ffffffff 01 ffffffff";
    assert_eq!(MultiReply::read(&mut packet(unknown)), Err(Unreadable));
    assert_eq!(MultiReply::read(&mut packet("00000002 00 00000000")), Err(Unreadable));
}

#[test]
fn replies_and_events_in_frames() {
    let mut out = BytesMut::new();
    let pong = ReplyHeader { xid: ReservedXid::Ping.into(), zxid: 5, err: 0 };
    append_reply(&mut out, JUTE_MAXBUFFER, &pong, &()).unwrap();
    assert_eq!(out, packet("00000010 fffffffe 0000000000000005 00000000"));
    out.clear();
    let no_node = ReplyHeader { xid: 3, zxid: 6, err: ErrorCode::NoNode.into() };
    append_reply(&mut out, JUTE_MAXBUFFER, &no_node, &()).unwrap();
    let event =
        WatcherEvent { kind: EventType::NodeDataChanged.into(), state: 3, path: "/a".to_owned() };
    append_reply(&mut out, JUTE_MAXBUFFER, &ReplyHeader::of_event(7), &event).unwrap();
    let both = "00000010 00000003 0000000000000006 ffffff9b \
                0000001e ffffffff 0000000000000007 00000000 00000003 00000003 00000002 '/a'";
    assert_eq!(out, packet(both));
}

/// The numbers as ZooKeeper 3.9.5 has them, in its order where it has one.
#[test]
fn the_numbers_are_zookeepers() {
    #[track_caller]
    fn are<T>(all: &[T], expected: &[i32])
    where
        T: Copy + Into<i32> + TryFrom<i32, Error = i32> + PartialEq + std::fmt::Debug,
    {
        let numbers: Vec<i32> = all.iter().map(|&one| one.into()).collect();
        assert_eq!(numbers, expected);
        for &one in all {
            assert_eq!(T::try_from(one.into()), Ok(one));
        }
        for number in (-300..300).filter(|number| !expected.contains(number)) {
            assert_eq!(T::try_from(number), Err(number));
        }
    }
    let mut ops: Vec<i32> = (1..=9).chain(11..=22).chain(100..=107).collect();
    ops.extend([-10, -11]);
    are(OpCode::ALL, &ops);
    are(
        ErrorCode::ALL,
        &[
            0, -1, -2, -3, -4, -5, -6, -7, -8, -12, -13, -14, -100, -101, -102, -103, -108, -110,
            -111, -112, -113, -114, -115, -118, -119, -120, -121, -122, -123, -124, -125, -127,
        ],
    );
    are(EventType::ALL, &[-1, 1, 2, 3, 4, 5, 6, 7]);
    are(CreateFlags::ALL, &[0, 1, 2, 3, 4, 5, 6]);
    are(AddWatchMode::ALL, &[0, 1]);
    are(WatcherType::ALL, &[1, 2, 3, 4, 5]);
    are(ReservedXid::ALL, &[-1, -2, -4, -8]);
}

#[test]
fn permissions_have_the_same_bits_here_and_there() {
    use crate::types::acl::Permissions;
    let pairs = [
        (1, Permissions::READ),
        (2, Permissions::WRITE),
        (4, Permissions::CREATE),
        (8, Permissions::DELETE),
        (16, Permissions::ADMIN),
    ];
    for (there, here) in pairs {
        assert_eq!(there, i32::from(here.0));
    }
}
