//! Requests to holders to release.
//!
//! A request is the data of the holder's znode, or the end of that data. Waiters for a lock do not
//! watch the data: they watch the znode's children, of which an ephemeral znode has none, and so
//! notice only its deletion. The data of a semaphore's holder starts with the mark that it holds.
//!
//! Sources: ZooKeeper, "Recipes and Solutions", Recoverable Shared Locks; Curator, `Revoker`.

use crate::runtime::pending::Pending;
use crate::runtime::shared::NodeShared;
use std::sync::Arc;
use std::sync::{Mutex, PoisonError};

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::api::session::Session;
use crate::api::watch::Watch;
use crate::recipes::contenders::{Contenders, ListedContender};
use crate::recipes::errors::if_exists;
use crate::types::error::Result;
use crate::types::watch::{EventKind, WatchEvent, WatchMode};

/// The end of a holder's data after a request to release: Curator's word, so that its holders are asked, too.
pub(crate) const REVOKE: &[u8] = b"__REVOKE__";

/// Asks the first contenders, as many as `holders` returns, and returns how many existed.
pub(super) async fn ask(
    contenders: &Contenders,
    holders: impl Fn(&[ListedContender]) -> usize,
) -> Result<usize> {
    loop {
        let listed = contenders.list().await?;
        let holders = &listed[..holders(&listed)];
        let asked: Vec<_> = holders
            .iter()
            .map(|contender| contenders.session().set(&contender.path, REVOKE))
            .collect();
        let mut count = 0;
        for answer in asked {
            // `None` if this holder has released in the meantime.
            count += usize::from(if_exists(answer.await)?.is_some());
        }
        if count > 0 || holders.is_empty() {
            return Ok(count);
        }
        // All have released, so there may be new holders.
    }
}

/// Asks one contender, if it holds, and returns whether it was asked.
pub(super) async fn ask_one(
    contenders: &Contenders,
    holder: &str,
    holders: impl Fn(&[ListedContender]) -> usize,
) -> Result<bool> {
    // This replica may not know yet which contender holds.
    contenders.session().sync().await?;
    let listed = contenders.list().await?;
    match listed[..holders(&listed)].iter().any(|contender| contender.path == holder) {
        true => set(contenders.session(), holder, REVOKE).await,
        false => Ok(false),
    }
}

/// Sets the data of a holder's znode; `false` if it is gone.
pub(super) async fn set(session: &Session, holder: &str, data: &[u8]) -> Result<bool> {
    Ok(if_exists(session.set(holder, data).await)?.is_some())
}

/// Receives requests to release: see [`LockGuard::revocations`](super::LockGuard::revocations) and
/// [`Permits::revocations`](super::Permits::revocations).
///
/// ```
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// let guard = cluster.node(0).session().lock("/lock")?.acquire().wait()?;
/// let revocations = guard.revocations().wait()?;
/// let other = cluster.node(1).session().lock("/lock")?;
/// assert_eq!(other.revoke().wait()?, 1);
/// // In a `select!`: recv(revocations.events()).
/// if revocations.wait_asked().wait()? {
///     guard.release().wait()?;
/// }
/// assert!(other.acquire().wait()?.is_held());
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Debug)]
pub struct Revocations {
    watch: Watch,
    shared: Arc<NodeShared>,
    path: String,
    /// Whether a waiter has received the event of the loss.
    lost: Mutex<bool>,
    /// Reports a request that was made before the watch was set.
    earlier: Option<(Sender<WatchEvent>, Receiver<WatchEvent>)>,
}

impl Revocations {
    pub(super) async fn of(session: &Session, path: &str) -> Result<Revocations> {
        let calls = &session.in_turn();
        let watch = calls.watch(path, WatchMode::Persistent).await?;
        let (data, stat) = calls.get(path).await?;
        // The watch reports later requests, too, so some requests are reported twice.
        let asked = data.ends_with(REVOKE);
        let earlier = asked.then(|| bounded(1));
        if let Some((sender, _)) = &earlier {
            let (kind, path) = (EventKind::DataChanged, path.to_owned());
            // The channel has room for it.
            let (zxid, position, net, znode, before) = (stat.mzxid, 0, false, None, None);
            let event = WatchEvent { kind, path, zxid, position, net, znode, before };
            let _ = sender.try_send(event);
        }
        let (shared, path) = (Arc::clone(session.shared()), path.to_owned());
        Ok(Revocations { watch, shared, path, lost: Mutex::new(false), earlier })
    }

    /// A channel that gets a message for each request, for `select!`. If a request was made before
    /// [`LockGuard::revocations`](super::LockGuard::revocations) was called, its message is the
    /// only one. Otherwise the channel also reports the loss, by a message of kind
    /// [`EventKind::Deleted`] or by closing.
    pub fn events(&self) -> &Receiver<WatchEvent> {
        match &self.earlier {
            Some((_, earlier)) => earlier,
            None => self.watch.events(),
        }
    }

    /// Waits until a request arrives; returns `false` if the lock or the permits are lost before. Of several waiters,
    /// one gets the request, and all notice the loss.
    pub fn wait_asked(&self) -> Pending<'_, bool> {
        let asked = async { Ok(self.asked().await) };
        Pending::steps(&self.shared, "wait_asked", &self.path, asked).unlimited()
    }

    pub(super) async fn asked(&self) -> bool {
        if self.was_asked() {
            return true;
        }
        self.watch
            .until(|is_over| {
                // Locked while the event is taken, so that a waiter that finds no event knows what
                // the last one was.
                let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
                if *lost {
                    return Some(false);
                }
                match self.watch.events().try_recv() {
                    Ok(event) if is_request(&event) => Some(true),
                    Err(_) if !is_over => None,
                    Ok(_) | Err(_) => {
                        *lost = true;
                        Some(false)
                    }
                }
            })
            .await
    }

    fn was_asked(&self) -> bool {
        self.earlier.as_ref().is_some_and(|(_, earlier)| earlier.try_recv().is_ok())
    }
}

/// Events that are not requests are the deletion and the end of the watch.
fn is_request(event: &WatchEvent) -> bool {
    matches!(event.kind, EventKind::DataChanged | EventKind::Gap)
}
