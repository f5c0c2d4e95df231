//! Searches over this instance's replica: the znodes whose paths contain a text, and the ephemerals of a session.
//!
//! Both read an immutable snapshot, so they delay no writes. The work and the response are bounded: a search that
//! reaches a bound says which one.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::routes::json;
use super::session::{ANSWER_WITHIN, AdminSession};
use crate::api::coordinator::Coordinator;
use crate::api::snapshot::Snapshot;
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::znode::SessionId;

/// The most paths in a response, and by default.
pub(super) const FOUND_MAX: u64 = 1000;
pub(super) const FOUND: u64 = 200;
/// The most znodes that a search reads.
const EXAMINED_MAX: u64 = 500_000;
/// How long a search may take.
const WITHIN: Duration = Duration::from_secs(1);
/// The longest text that is searched for, in bytes.
pub(super) const TEXT_BYTES_MAX: usize = 256;

/// What is searched for: the paths at and below `below` that contain `text`, in any case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Search {
    pub(super) text: String,
    pub(super) below: String,
    pub(super) limit: u64,
}

/// This replica's tree, as far as the endpoint's session may read it.
fn snapshot(admin: &AdminSession, coordinator: &Coordinator) -> Result<Snapshot> {
    if !coordinator.shared().has_replica {
        // A client would have to copy the whole tree from its member.
        return Err(Error::NeedsReplica { operation: "a search".to_owned() });
    }
    admin.with(|session| session.snapshot().timeout(ANSWER_WITHIN).wait())
}

impl Search {
    /// Reads the znodes in the order of their paths, until it has found enough or has read enough.
    pub(super) fn run(&self, admin: &AdminSession, coordinator: &Coordinator) -> Result<Value> {
        let snapshot = snapshot(admin, coordinator)?;
        let clock = &coordinator.shared().clock;
        let until = clock.now().saturating_add(WITHIN);
        let text = self.text.to_lowercase();
        let (mut found, mut examined, mut cut) = (Vec::new(), 0_u64, None);
        for (path, znode) in snapshot.examine(&self.below)? {
            if examined >= EXAMINED_MAX || (examined.is_multiple_of(1024) && clock.now() >= until) {
                cut = Some("work");
                break;
            }
            examined += 1;
            let Some(znode) = znode.filter(|_| path.to_lowercase().contains(&text)) else {
                continue;
            };
            if found.len() as u64 >= self.limit {
                cut = Some("paths");
                break;
            }
            found.push(json!({ "path": path, "stat": json(znode.stat()) }));
        }
        Ok(json!({ "found": found, "examined": examined, "cut": cut, "zxid": snapshot.zxid() }))
    }
}

/// The ephemerals of a session that a search could find, and whether there are more than are shown.
///
/// # Errors
/// [`Error::SessionExpired`] if this replica has no such session.
pub(super) fn ephemerals(
    admin: &AdminSession,
    coordinator: &Coordinator,
    id: SessionId,
) -> Result<Value> {
    let most = usize::try_from(FOUND_MAX).unwrap_or(usize::MAX);
    let snapshot = snapshot(admin, coordinator)?;
    let of = coordinator.shared().look(move |engine| {
        let record = engine.node()?.machine().session(id)?;
        let paths: Vec<_> = record.ephemerals.iter().take(most + 1).cloned().collect();
        Some((paths, record.ephemerals.size()))
    });
    let (mut paths, count) = of.flatten().ok_or(Error::SessionExpired { session: id })?;
    let more = paths.len() > most;
    paths.truncate(most);
    let readable = |path: &str| matches!(snapshot.exists(path), Ok(Some(_)));
    // The names of a znode's children are for those who may read it. Most ephemerals share a parent.
    let mut parents: BTreeMap<String, bool> = BTreeMap::new();
    paths.retain(|path| {
        let parent = path::parent(path).unwrap_or("/");
        let is_listed = *parents.entry(parent.to_owned()).or_insert_with(|| {
            let mut above = std::iter::successors(Some(parent), |path| path::parent(path));
            above.all(readable)
        });
        is_listed && readable(path)
    });
    let paths: Vec<&str> = paths.iter().map(|path| &**path).collect();
    Ok(json!({ "session": id, "count": count, "ephemerals": paths, "more": more }))
}
