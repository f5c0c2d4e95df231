//! Watches of every kind, held for a while. What they tell is compared event by
//! event as it comes.

use super::shared_path;
use super::znodes::authenticate;
use crate::simulation::client::Client;
use crate::watch::WatchMode;

pub(crate) async fn run(client: Client) {
    while !client.kernel.is_stopping() {
        client.think().await;
        let Ok((handle, _opened)) = client.open(None) else { return };
        authenticate(&client, &handle).await;
        let mut watches = Vec::new();
        while !client.kernel.is_stopping() && !handle.is_over() {
            client.think().await;
            let path = shared_path(&client.kernel, &client.random);
            let watch = match client.random.below(6) {
                0 => handle.get_and_watch(&path).await,
                1 => handle.exists_and_watch(&path).await,
                2 => handle.children_and_watch(&path).await,
                3 => handle.watch(&path, WatchMode::Persistent).await,
                4 => handle.watch(&path, WatchMode::PersistentRecursive).await,
                _ => handle.watch("/", WatchMode::PersistentRecursive).await,
            };
            watches.extend(watch);
            if client.random.percent(30) {
                watches.retain(|watch| !watch.has_fired());
            }
            while watches.len() > 12 {
                watches.swap_remove(client.random.index(watches.len()));
            }
            // So that something changes where this client watches, by its own hand too.
            if client.random.percent(20) {
                let _ = handle.set(&path, b"seen", None).await;
            }
        }
    }
}
