//! A semaphore in the form of Curator's or kazoo's.
//!
//! Both have the same algorithm: who wants a lease takes a lock, waits until there are fewer leases than there may
//! be, creates its own, and releases the lock. A lease is an ephemeral znode, and all children of the leases'
//! parent count. They differ in their paths:
//!
//! | | Curator | kazoo |
//! | --- | --- | --- |
//! | the lock | `<path>/locks` | `<path>-__lock__` |
//! | the leases | `<path>/leases/_c_<uuid>-lease-N` | `<path>/<hex>` |
//! | the number | given to each program | the data of `<path>` |
//!
//! Sources: Curator 5.9, `InterProcessSemaphoreV2`; kazoo 2.11, `Semaphore`.

use crate::api::session::Session;
use crate::recipes::Held;
use crate::recipes::contenders::{Contenders, Contending, LEASE, LOCK, Naming, predecessor};
use crate::recipes::creating::created_in_multi;
use crate::recipes::errors::{children_or_none, if_exists, inner};
use crate::recipes::parents::Parents;
use crate::runtime::either::{Either, either};
use crate::runtime::entropy;
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::znode::CreateMode;

/// The lock and the leases of a semaphore at a path.
#[derive(Clone, Debug)]
pub(super) struct Leases {
    lock: Contenders,
    /// The parent of the leases.
    path: String,
    naming: Naming,
}

impl Leases {
    pub(super) fn new(own: &Contenders, naming: Naming) -> Leases {
        let path = own.path();
        let (lock, leases) = match naming {
            Naming::Curator => (path::join(path, "locks"), path::join(path, "leases")),
            Naming::Kazoo => (format!("{path}-__lock__"), path.to_owned()),
        };
        let lock = own.at(lock, &[&LOCK]).with_naming(naming);
        Leases { lock, path: leases, naming }
    }

    /// Whether the number is stored in the cluster, by whoever comes first.
    pub(super) fn have_a_total(&self) -> bool {
        self.naming == Naming::Kazoo
    }

    fn session(&self) -> &Session {
        self.lock.session()
    }

    /// Waits for a lease, where there may be so many.
    pub(super) async fn acquire(&self, permits: u32) -> Result<Held> {
        let turn = self.lock.acquire(&LOCK, b"", predecessor).await?;
        let calls = &self.session().in_turn();
        // A replica that is behind may still show leases that were given back, and its watch then reports that. It
        // shows all leases that exist: they were created under the lock, before this session got it.
        while let Some((held, watch)) = if_exists(calls.children_and_watch(&self.path).await)?
            && !has_room(held.len(), permits)
        {
            if let Either::Other(_) = either(watch.next(), turn.wait_lost()).await {
                return Err(Error::NoNode { path: turn.path().to_owned() });
            }
        }
        self.lease(turn).await
    }

    /// A lease, if there is one now and nobody waits.
    pub(super) async fn try_acquire(&self, permits: u32) -> Result<Option<Held>> {
        let Some(turn) = self.lock.try_acquire(&LOCK, b"", predecessor).await? else {
            return Ok(None);
        };
        let held = children_or_none(self.session().children(&self.path).await)?.len();
        if !has_room(held, permits) {
            turn.release().await?;
            return Ok(None);
        }
        self.lease(turn).await.map(Some)
    }

    /// Creates a lease, if the lock is still held.
    async fn lease(&self, turn: Held) -> Result<Held> {
        let session = self.session();
        let random = entropy::number()?;
        let (name, mode) = match self.naming {
            Naming::Curator => (format!("{random:016x}-lease-"), CreateMode::EphemeralSequential),
            Naming::Kazoo => (format!("{random:016x}"), CreateMode::Ephemeral),
        };
        let path = path::join(&self.path, &name);
        let mut parents = Parents::of(session, &self.path);
        let lease = loop {
            parents.make().await?;
            let creating = turn.ephemeral.multi().create(&path, b"", mode).commit();
            match created_in_multi(session, creating).await {
                Err(Error::Multi { index: 0, .. }) => {
                    return Err(Error::NoNode { path: turn.path().to_owned() });
                }
                Err(Error::Multi { error, .. }) if matches!(*error, Error::NoNode { .. }) => {}
                created => break inner(created)?,
            }
        };
        turn.release().await?;
        Held::new(lease).await
    }

    /// All leases, and those who wait for the lock.
    pub(super) async fn contending(&self) -> Result<Vec<Contending>> {
        let snapshot = self.session().snapshot_of(&self.path).await?;
        let lease = |name: &String| {
            let path = path::join(&self.path, name);
            let (data, stat) = snapshot.get(&path)?;
            Ok(Contending::new(path, LEASE.name, &data, Some(&stat)))
        };
        let leases = children_or_none(snapshot.children(&self.path))?;
        let mut contending = leases.iter().map(lease).collect::<Result<Vec<_>>>()?;
        contending.extend(self.lock.contending().await?);
        Ok(contending)
    }
}

fn has_room(held: usize, permits: u32) -> bool {
    u32::try_from(held).is_ok_and(|held| held < permits)
}
