//! Random requests come back as they were, and any bytes are read without a panic.

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

use crate::gateway::wire::fuzz;
use crate::gateway::wire::jute::{Credential, Unreadable};
use crate::gateway::wire::request::{
    Acl, AddWatch, Auth, Check, Create, CreateTtl, Decoded, Delete, MultiOp, MultiRequest,
    PathOnly, Read, Reconfig, Request, RequestHeader, Sasl, SetAcl, SetData, SetWatches,
    SetWatches2, WatchesOf, decode,
};

fn some_text() -> impl Strategy<Value = Option<String>> {
    proptest::option::of("\\PC{0,12}")
}

fn some_data() -> impl Strategy<Value = Option<Bytes>> {
    let bytes = proptest::collection::vec(any::<u8>(), 0..20);
    proptest::option::of(bytes.prop_map(Bytes::from))
}

fn some_acl() -> impl Strategy<Value = Option<Vec<Acl>>> {
    let acl = (any::<i32>(), some_text(), some_text());
    let acl = acl.prop_map(|(perms, scheme, id)| Acl { perms, scheme, id });
    proptest::option::of(proptest::collection::vec(acl, 0..4))
}

fn some_paths() -> impl Strategy<Value = Vec<Option<String>>> {
    proptest::collection::vec(some_text(), 0..5)
}

fn some_create() -> impl Strategy<Value = Create> {
    (some_text(), some_data(), some_acl(), any::<i32>())
        .prop_map(|(path, data, acl, flags)| Create { path, data, acl, flags })
}

fn some_create_ttl() -> impl Strategy<Value = CreateTtl> {
    (some_create(), any::<i64>()).prop_map(|(create, ttl)| CreateTtl { create, ttl })
}

fn some_set_data() -> impl Strategy<Value = SetData> {
    (some_text(), some_data(), any::<i32>()).prop_map(|(path, data, version)| SetData {
        path,
        data,
        version,
    })
}

fn some_read() -> impl Strategy<Value = Read> {
    (some_text(), any::<bool>()).prop_map(|(path, watch)| Read { path, watch })
}

/// A create that a multi may have.
fn some_create_in_multi() -> impl Strategy<Value = Create> {
    (some_create(), 0..5).prop_map(|(create, flags)| {
        let acl = Some(create.acl.unwrap_or_default());
        Create { acl, flags, ..create }
    })
}

fn some_multi() -> impl Strategy<Value = MultiRequest> {
    let versioned = || (some_text(), any::<i32>());
    let write = prop_oneof![
        some_create_in_multi().prop_map(MultiOp::Create),
        some_create_in_multi().prop_map(MultiOp::Create2),
        some_create_in_multi().prop_map(MultiOp::CreateContainer),
        some_create_ttl().prop_map(MultiOp::CreateTtl),
        versioned().prop_map(|(path, version)| MultiOp::Delete(Delete { path, version })),
        versioned().prop_map(|(path, version)| MultiOp::Check(Check { path, version })),
        some_set_data().prop_map(MultiOp::SetData),
    ];
    let read = prop_oneof![
        some_read().prop_map(MultiOp::GetChildren),
        some_read().prop_map(MultiOp::GetData),
    ];
    let ops =
        prop_oneof![proptest::collection::vec(write, 0..6), proptest::collection::vec(read, 0..6)];
    ops.prop_map(|ops| MultiRequest { ops })
}

fn some_request() -> impl Strategy<Value = Request> {
    let numbered = || (some_text(), any::<i32>());
    let path = || some_text().prop_map(|path| PathOnly { path });
    let watches = || numbered().prop_map(|(path, kind)| WatchesOf { path, kind });
    let token = || some_data().prop_map(Credential);
    let writes = prop_oneof![
        some_create().prop_map(Request::Create),
        some_create().prop_map(Request::Create2),
        some_create().prop_map(Request::CreateContainer),
        some_create_ttl().prop_map(Request::CreateTtl),
        some_set_data().prop_map(Request::SetData),
        numbered().prop_map(|(path, version)| Request::Delete(Delete { path, version })),
        numbered().prop_map(|(path, version)| Request::Check(Check { path, version })),
        (some_text(), some_acl(), any::<i32>())
            .prop_map(|(path, acl, version)| Request::SetAcl(SetAcl { path, acl, version })),
        some_multi().prop_map(Request::Multi),
        (some_text(), some_text(), some_text(), any::<i64>()).prop_map(
            |(joining, leaving, members, config_id)| {
                Request::Reconfig(Reconfig { joining, leaving, members, config_id })
            }
        ),
    ];
    let reads = prop_oneof![
        some_read().prop_map(Request::Exists),
        some_read().prop_map(Request::GetData),
        some_read().prop_map(Request::GetChildren),
        some_read().prop_map(Request::GetChildren2),
        path().prop_map(Request::GetAcl),
        path().prop_map(Request::DeleteContainer),
        path().prop_map(Request::Sync),
        path().prop_map(Request::GetEphemerals),
        path().prop_map(Request::GetAllChildrenNumber),
        some_multi().prop_map(Request::MultiRead),
    ];
    let one_shot = || {
        (any::<i64>(), some_paths(), some_paths(), some_paths()).prop_map(
            |(relative_zxid, data, exist, child)| SetWatches { relative_zxid, data, exist, child },
        )
    };
    let others =
        prop_oneof![
            one_shot().prop_map(Request::SetWatches),
            (one_shot(), some_paths(), some_paths()).prop_map(
                |(one_shot, persistent, persistent_recursive)| {
                    Request::SetWatches2(SetWatches2 { one_shot, persistent, persistent_recursive })
                }
            ),
            numbered().prop_map(|(path, mode)| Request::AddWatch(AddWatch { path, mode })),
            watches().prop_map(Request::CheckWatches),
            watches().prop_map(Request::RemoveWatches),
            (any::<i32>(), some_text(), token())
                .prop_map(|(kind, scheme, auth)| Request::Auth(Auth { kind, scheme, auth })),
            token().prop_map(|token| Request::Sasl(Sasl { token })),
            Just(Request::Ping),
            Just(Request::WhoAmI),
            Just(Request::CreateSession),
            Just(Request::CloseSession),
        ];
    prop_oneof![writes, reads, others]
}

proptest! {
    #[test]
    fn requests_come_back_as_they_were(request in some_request(), xid: i32) {
        let mut bytes = BytesMut::new();
        request.encode(xid, &mut bytes);
        let bytes = bytes.freeze();
        let header = RequestHeader { xid, op: request.op().into() };
        prop_assert_eq!(decode(bytes.clone()), Ok((header.clone(), Decoded::Request(request.clone()))));
        // One byte less is not a request.
        let shorter = decode(bytes.slice(..bytes.len() - 1));
        let unreadable = Ok((header, Decoded::Unreadable(request.op())));
        prop_assert_eq!(shorter, if bytes.len() == 8 { Err(Unreadable) } else { unreadable });
    }

    #[test]
    fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        fuzz(&bytes);
    }
}
