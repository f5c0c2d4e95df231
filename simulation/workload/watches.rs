//! Watches of every kind, from now on or from a past zxid, kept for a while and sometimes removed.
//! Their events are compared one by one as they arrive.

use std::rc::Rc;

use super::shared_path;
use super::znodes::authenticate;
use crate::simulation::client::{Client, Handle};
use crate::types::watch::{WatchMode, WatcherType};
use crate::types::znode::Zxid;

pub(crate) async fn run(client: Client) {
    while !client.kernel.is_stopping() {
        client.think().await;
        let Ok((handle, _opened)) = client.open(None) else { return };
        authenticate(&client, &handle).await;
        let mut watches = Vec::new();
        while !client.kernel.is_stopping() && !handle.is_over() {
            client.think().await;
            let path = match client.random.below(6) {
                0 => "/".to_owned(),
                _ => shared_path(&client.kernel, &client.random),
            };
            let mode =
                *client.random.pick(&[WatchMode::Persistent, WatchMode::PersistentRecursive]);
            let watch = match client.random.below(9) {
                0 => handle.get_and_watch(&path).await,
                1 => handle.exists_and_watch(&path).await,
                2 => handle.children_and_watch(&path).await,
                3..5 => handle.watch(&path, mode).await,
                5 if client.random.percent(50) => handle.watch_with_data(&path, mode).await,
                5 => handle.watch_with_before(&path, mode).await,
                _ => handle.watch_from(&path, mode, past(&client, &handle)).await,
            };
            watches.extend(watch.map(|watch| (path.clone(), watch)));
            if client.random.percent(15) {
                remove(&client, &handle, watches.last().map_or(&path, |(path, _)| path)).await;
            }
            if client.random.percent(30) {
                watches.retain(|(_, watch)| !watch.has_fired());
            }
            while watches.len() > 12 {
                watches.swap_remove(client.random.index(watches.len()));
            }
            // The client's own writes also change what it watches.
            if client.random.percent(20) {
                let _ = handle.set(&path, b"seen", None).await;
            }
        }
    }
}

async fn remove(client: &Client, handle: &Rc<Handle>, path: &str) {
    let which = *client.random.pick(&[
        WatcherType::Any,
        WatcherType::Any,
        WatcherType::Data,
        WatcherType::Children,
        WatcherType::Persistent,
        WatcherType::PersistentRecursive,
    ]);
    let _ = handle.remove_watches(path, which).await;
}

/// A zxid that some client may have seen, so that this replica may be behind it, or one that does
/// not exist yet.
fn past(client: &Client, handle: &Rc<Handle>) -> Zxid {
    let checks = client.kernel.checks.borrow();
    let oracle = &checks.oracle;
    let answered = oracle.first_after(checks.order.floor().zxid);
    let ago = |changes: usize| {
        let place = answered.saturating_sub(changes);
        oracle.changes().get(place).map_or(0, |change| change.zxid)
    };
    // At most as many changes as a channel holds.
    match client.random.below(10) {
        0 => oracle.zxid() + 1_000_000,
        1 => handle.ticket().floor.max(ago(150)),
        2..5 => oracle.zxid(),
        _ => ago(client.random.index(150) + 1),
    }
}
