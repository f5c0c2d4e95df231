//! Creates, sets, deletes, reads and multis on paths that clients share.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use super::shared_path;
use crate::error::Result;
use crate::multi::Multi;
use crate::simulation::client::{Answering, Client, Handle};
use crate::znode::{Condition, CreateMode, OpResult};

pub(crate) async fn run(client: Client) {
    while !client.kernel.is_stopping() {
        client.think().await;
        let Ok((handle, opened)) = client.open(None) else { return };
        if client.random.percent(50) && opened.await.is_err() {
            client.think().await;
            continue;
        }
        while !client.kernel.is_stopping() && !handle.is_over() {
            client.think().await;
            // Often one thing at a time, sometimes several that are under way together.
            let together = if client.random.percent(80) { 1 } else { client.random.within(2..8) };
            let asked = (0..together).map(|_| ask(&client, &handle)).collect();
            all(asked).await;
            if client.random.percent(30) && !handle.is_over() {
                let path = || shared_path(&client.kernel, &client.random);
                handle.look(&path());
                handle.look_together(&[path(), path()]);
            }
        }
        if client.random.percent(50) {
            handle.close().await;
        }
    }
}

type Asked = Pin<Box<dyn Future<Output = ()>>>;

/// Waits for all, and polls them in order, so that none is seen answered before an earlier one
/// that was answered in the same step.
async fn all(mut asked: Vec<Asked>) {
    std::future::poll_fn(|context| {
        asked.retain_mut(|one| one.as_mut().poll(context).is_pending());
        if asked.is_empty() { Poll::Ready(()) } else { Poll::Pending }
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
    // Mostly little: what is large is copied often.
    let length = client.random.index(most.min(40) + 1);
    let length = if client.random.percent(5) { client.random.index(most + 1) } else { length };
    vec![client.random.next() as u8; length]
}

/// Asks for something at once, and gives what waits for the answer.
fn ask(client: &Client, handle: &Rc<Handle>) -> Asked {
    let random = &client.random;
    let path = shared_path(&client.kernel, random);
    let data = some_data(client);
    let version = random.below(4);
    match random.below(20) {
        0..5 => {
            let create = handle.create(&path, &data, some_mode(client));
            Box::pin(async { drop(create.await) })
        }
        5..8 => {
            let set = handle.set(&path, &data, None);
            Box::pin(async { drop(set.await) })
        }
        8 => {
            let set = handle.set(&path, &data, Some(version));
            Box::pin(async { drop(set.await) })
        }
        9..11 => Box::pin(thin_out(Rc::clone(handle), path)),
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
            let get = handle.get(&path);
            Box::pin(async { drop(get.await) })
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
            // Behind it in the queue, so that it shows what the sync has brought.
            let get = handle.get(&path);
            Box::pin(all(vec![
                Box::pin(async { drop(sync.await) }),
                Box::pin(async { drop(get.await) }),
            ]))
        }
    }
}

/// Deletes a znode, or one below it: there are never many.
fn thin_out(handle: Rc<Handle>, path: String) -> impl Future<Output = ()> {
    let below = handle.session().children(&path).ok();
    let below = below.and_then(|children| children.last().cloned());
    let path = below.map_or(path.clone(), |child| crate::path::join(&path, &child));
    let delete = handle.delete(&path, None);
    async { drop(delete.await) }
}

/// Takes a snapshot, and looks at it then and later: it stays as it is.
fn keep_snapshot(client: Client, handle: Rc<Handle>, path: String) -> impl Future<Output = ()> {
    let snapshot = handle.snapshot();
    async move {
        let Ok(snapshot) = snapshot.await else { return };
        handle.check_snapshot(&path, &snapshot);
        client.think().await;
        handle.check_snapshot(&path, &snapshot);
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

fn some_multi(client: &Client, handle: &Rc<Handle>) -> Answering<Result<Vec<OpResult>>> {
    let random = &client.random;
    handle.multi(|mut multi: Multi<'_>| {
        for _ in 0..random.within(1..5) {
            let path = shared_path(&client.kernel, random);
            let data = some_data(client);
            let version = random.below(3);
            multi = match random.below(8) {
                0..3 => multi.create(&path, &data, some_mode(client)),
                3..5 => multi.set(&path, &data),
                5 => multi.set_if(&path, &data, version),
                6 if version == 0 => multi.delete_recursive(&path),
                6 => multi.delete(&path),
                _ => multi.require(&path, some_condition(client)),
            };
        }
        multi
    })
}
