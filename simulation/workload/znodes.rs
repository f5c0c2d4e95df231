//! Creates, sets, deletes, reads and multis on paths that clients share.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use super::shared_path;
use crate::api::multi::Multi;
use crate::simulation::client::{CheckedReply, Client, Handle};
use crate::types::acl::{Acl, Id, Permissions};
use crate::types::error::Result;
use crate::types::path;
use crate::types::quota::Quota;
use crate::types::znode::{Condition, CreateMode, OpResult, SessionId};

pub(crate) async fn run(client: Client) {
    while !client.kernel.is_stopping() {
        client.think().await;
        let Ok((handle, opened)) = client.open(None) else { return };
        if client.random.percent(50) && opened.await.is_err() {
            client.think().await;
            continue;
        }
        if client.random.percent(40) {
            read(&client, &handle).await;
        }
        authenticate(&client, &handle).await;
        while !client.kernel.is_stopping() && !handle.is_over() {
            client.think().await;
            // Usually one request at a time, sometimes several at once.
            let together = if client.random.percent(80) { 1 } else { client.random.within(2..8) };
            let outstanding = (0..together).map(|_| send_request(&client, &handle)).collect();
            await_all(outstanding).await;
            if client.random.percent(30) && !handle.is_over() {
                read(&client, &handle).await;
            }
        }
        if client.random.percent(50) {
            handle.close().await;
        }
    }
}

/// Reads at once if the session can be read at once, and otherwise by requests.
async fn read(client: &Client, handle: &Rc<Handle>) {
    let path = || some_path(client);
    match handle.session().reads_at_once() {
        true => {
            handle.read_now(&path());
            handle.multi_read_now(&[path(), path()]);
        }
        false => handle.read_by_request(&path()).await,
    }
}

/// One of the paths that clients share, or the znode that shows its usage.
fn some_path(client: &Client) -> String {
    let path = shared_path(&client.kernel, &client.random);
    match client.random.percent(20) {
        true => Quota::stats_path(&path),
        false => path,
    }
}

/// Authenticates some of the sessions.
pub(super) async fn authenticate(client: &Client, handle: &Rc<Handle>) {
    if client.random.percent(60) {
        let user = if client.random.percent(50) { "alice" } else { "bob" };
        handle.add_auth(user).await;
    }
}

/// Alice has all permissions, so that every znode can be deleted by somebody.
fn some_acl(client: &Client) -> Vec<Acl> {
    let some = Permissions::from_bits(client.random.below(32) as u8).unwrap_or(Permissions::ALL);
    let alice = Acl::new(Permissions::ALL, Id::digest("alice", "1"));
    match client.random.below(5) {
        0 => Acl::open(),
        1 => vec![Acl::new(some, Id::anyone()), alice],
        2 => vec![alice, Acl::new(some, Id::digest("bob", "1"))],
        3 => vec![Acl::new(Permissions::READ, Id::auth()), alice],
        _ => vec![Acl::new(some, Id::anyone()), Acl::new(Permissions::WRITE, Id::anyone()), alice],
    }
}

/// Sets a quota on one of the shared directories or on the root.
fn some_quota(client: &Client, handle: &Rc<Handle>) -> CheckedReply<Result<Vec<OpResult>>> {
    let random = &client.random;
    let number = random.index(client.kernel.plan.paths.div_ceil(4) + 1);
    let of = number.checked_sub(1).map_or("/".to_owned(), |number| format!("/d{number}"));
    let (limits, stats) = (Quota::limits_path(&of), Quota::stats_path(&of));
    let (znodes, bytes) = (random.within(2..30), random.within(0..400));
    let quota = match random.below(3) {
        0 => Quota::new().znodes(znodes).bytes(bytes),
        1 => Quota::new().znodes_hard(znodes.max(8)).bytes(bytes),
        // The root's limit is large, so that few writes elsewhere are refused.
        _ => Quota::new().znodes(znodes).bytes_hard(if number == 0 { 1 << 20 } else { bytes }),
    };
    let quota = if number == 0 { Quota::new().znodes(znodes) } else { quota };
    let choice = random.below(5);
    handle.multi(|multi| match choice {
        0 => multi.set(&limits, quota.to_string()),
        1 => multi.delete(&limits).delete(&stats),
        2 => multi.create(&Quota::base_path(&of), b"", CreateMode::Persistent),
        _ => multi.create(&limits, quota.to_string(), CreateMode::Persistent).create(
            &stats,
            b"",
            CreateMode::Persistent,
        ),
    })
}

type Outstanding = Pin<Box<dyn Future<Output = ()>>>;

/// Waits for all of them. Polls them in order, so that an earlier reply of the same step is seen
/// first.
async fn await_all(mut outstanding: Vec<Outstanding>) {
    std::future::poll_fn(|context| {
        outstanding.retain_mut(|one| one.as_mut().poll(context).is_pending());
        if outstanding.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

fn some_mode(client: &Client) -> CreateMode {
    let ttl = Duration::from_millis(client.random.within(1..20_000));
    *client.random.pick(&[
        CreateMode::Persistent,
        CreateMode::Persistent,
        CreateMode::Persistent,
        CreateMode::Ephemeral,
        CreateMode::PersistentSequential,
        CreateMode::EphemeralSequential,
        CreateMode::Container,
        CreateMode::PersistentWithTtl(ttl),
        CreateMode::PersistentSequentialWithTtl(ttl),
    ])
}

fn some_data(client: &Client) -> Vec<u8> {
    let most = client.kernel.plan.data_bytes;
    // Most data is small, because the model copies large data often.
    let length = client.random.index(most.min(40) + 1);
    let length = if client.random.percent(5) { client.random.index(most + 1) } else { length };
    vec![client.random.next() as u8; length]
}

/// Sends a request at once. The returned future waits for its reply and checks it.
fn send_request(client: &Client, handle: &Rc<Handle>) -> Outstanding {
    let random = &client.random;
    let path = shared_path(&client.kernel, random);
    let data = some_data(client);
    let version = random.below(4);
    match random.below(20) {
        0 if version == 0 => {
            let create = handle.create_with_acl(&path, some_mode(client), &some_acl(client));
            Box::pin(async { drop(create.await) })
        }
        0..5 => {
            let create = handle.create(&path, &data, some_mode(client));
            Box::pin(async { drop(create.await) })
        }
        6 if version == 0 => {
            let quota = some_quota(client, handle);
            Box::pin(async { drop(quota.await) })
        }
        7 if version == 0 => {
            let put = handle.create_or_set(&path, &data, some_mode(client));
            Box::pin(async { drop(put.await) })
        }
        7 if version == 2 => {
            let invented = handle.invented(&path, &data);
            Box::pin(async { drop(invented.await) })
        }
        7 if version == 1 => Box::pin(take_over(client, Rc::clone(handle), &path, &data)),
        5 if version == 0 => {
            let set = handle.set_acl(&path, &some_acl(client), None);
            Box::pin(async { drop(set.await) })
        }
        5..8 => {
            let set = handle.set(&path, &data, None);
            Box::pin(async { drop(set.await) })
        }
        8 => {
            let set = handle.set(&path, &data, Some(version));
            Box::pin(async { drop(set.await) })
        }
        9..11 => Box::pin(delete_one(Rc::clone(handle), path)),
        11 if version == 0 => {
            let delete = handle.delete_recursive(&path);
            Box::pin(async { drop(delete.await) })
        }
        11 => {
            let delete = handle.delete(&path, Some(version));
            Box::pin(async { drop(delete.await) })
        }
        12..14 => {
            let multi = some_multi(client, handle);
            Box::pin(async { drop(multi.await) })
        }
        14 => {
            let get = handle.get(&some_path(client));
            Box::pin(async { drop(get.await) })
        }
        15 if version == 1 => {
            let acl = handle.acl(&path);
            Box::pin(async { drop(acl.await) })
        }
        15 => {
            let exists = handle.exists(&path);
            Box::pin(async { drop(exists.await) })
        }
        16 if version == 0 => {
            let ephemerals = handle.ephemerals();
            Box::pin(async { drop(ephemerals.await) })
        }
        16 if version == 1 => Box::pin(keep_snapshot(client.clone(), Rc::clone(handle), path)),
        16 => {
            let children = handle.children(&path);
            Box::pin(async { drop(children.await) })
        }
        _ => {
            let sync = handle.sync();
            // Queued behind the sync, so that it shows what the sync has brought.
            let get = handle.get(&path);
            Box::pin(await_all(vec![
                Box::pin(async { drop(sync.await) }),
                Box::pin(async { drop(get.await) }),
            ]))
        }
    }
}

/// Takes over an ephemeral of a directory, with the right owner or a wrong one.
fn take_over(
    client: &Client,
    handle: Rc<Handle>,
    path: &str,
    data: &[u8],
) -> impl Future<Output = ()> + use<> {
    let children = children_now(&handle, path).unwrap_or_default();
    let stat =
        |name: &String| handle.session().exists(&path::join(path, name)).wait().ok().flatten();
    let owned = children.iter().find_map(|name| Some((name, stat(name)?.ephemeral_owner?)));
    let (path, owner) = match owned {
        Some((name, owner)) => (path::join(path, name), owner),
        None => (path.to_owned(), handle.session().id()),
    };
    let number = owner.number() ^ u64::from(client.random.percent(20));
    let taken = handle.take_over(&path, data, SessionId::from_number(number));
    async { drop(taken.await) }
}

/// The children, if they can be read at once. Otherwise the read would have to wait, and the request that
/// depends on it would lose its turn.
fn children_now(handle: &Handle, path: &str) -> Option<Vec<String>> {
    let session = handle.session();
    session.reads_at_once().then(|| session.children(path).wait().ok()).flatten()
}

/// Deletes a znode or one of its children, which keeps the tree small.
fn delete_one(handle: Rc<Handle>, path: String) -> impl Future<Output = ()> {
    let below = children_now(&handle, &path);
    let below = below.and_then(|children| children.last().cloned());
    let path = below.map_or(path.clone(), |child| path::join(&path, &child));
    let delete = handle.delete(&path, None);
    async { drop(delete.await) }
}

/// Takes a snapshot and checks it twice: it must not change. Then takes later ones.
fn keep_snapshot(client: Client, handle: Rc<Handle>, path: String) -> impl Future<Output = ()> {
    let snapshot = handle.snapshot();
    async move {
        let Ok(snapshot) = snapshot.await else { return };
        handle.check_snapshot(&path, &snapshot);
        client.think().await;
        handle.check_snapshot(&path, &snapshot);
        handle.check_present(&path).await;
        if client.random.below(30) > 0 {
            handle.check_present(&path).await;
        }
    }
}

fn some_condition(client: &Client) -> Condition {
    let number = client.random.below(4);
    match client.random.below(6) {
        0 => Condition::Exists,
        1 => Condition::Absent,
        2 => Condition::Version(number),
        3 => Condition::Cversion(number),
        4 => Condition::Aversion(number % 2),
        _ => {
            let zxid = client.kernel.checks.borrow().order.floor().zxid;
            let zxid = zxid.saturating_sub(client.random.below(20));
            *client.random.pick(&[
                Condition::Czxid(zxid),
                Condition::Mzxid(zxid),
                Condition::Pzxid(zxid),
            ])
        }
    }
}

fn some_multi(client: &Client, handle: &Rc<Handle>) -> CheckedReply<Result<Vec<OpResult>>> {
    let random = &client.random;
    handle.multi(|mut multi: Multi<'_>| {
        for _ in 0..random.within(1..5) {
            let path = shared_path(&client.kernel, random);
            let data = some_data(client);
            let version = random.below(3);
            multi = match random.below(9) {
                0..3 => multi.create(&path, &data, some_mode(client)),
                3..5 => multi.set(&path, &data),
                5 => multi.set_if(&path, &data, version),
                6 if version == 0 => multi.delete_recursive(&path),
                6 if version == 1 => multi.create_or_set(&path, &data, some_mode(client)),
                6 => multi.delete(&path),
                7 if version == 0 => multi.set_acl_if(&path, &some_acl(client), version),
                7 if version == 1 => multi.invented(&path, &data),
                _ => multi.require(&path, some_condition(client)),
            };
        }
        multi
    })
}
