//! Compare-and-set on a znode's data: a writer replaces only data that it has read. The base of
//! counters and configuration.
//!
//! No lock is held during an update, so a participant that stalls or dies delays nobody: of several
//! concurrent updates, one always succeeds. The others wait for a random time, from an interval
//! that doubles, and try again.
//!
//! Data is identified by the zxid of the write that made it. A version would not be enough: it
//! restarts at 0 when the znode is deleted and created again, and an update that began before that
//! would replace data that it has not seen.
//!
//! Source: ZooKeeper, "Recipes and Solutions"; Curator, `DistributedAtomicValue`.

use std::sync::Arc;
use std::time::Duration;

use crate::api::session::Session;
use crate::api::transaction::Transaction;
use crate::recipes::errors::{if_exists, inner, stat_of_set, unless_overtaken};
use crate::recipes::parents::{create_at, shows_missing};
use crate::runtime::entropy;
use crate::types::counter::CounterForm;
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::znode::{Condition, CreateMode, OpResult, Stat, Zxid};

/// After a conflict, an update waits for a random time below this. The limit doubles with each
/// conflict ...
const FIRST_WAIT: Duration = Duration::from_millis(2);
/// ... this many times.
const DOUBLINGS_MAX: u32 = 7;

/// A znode's data.
#[derive(Clone, Debug)]
pub(super) struct AtomicValue {
    session: Session,
    path: String,
}

/// The data that was read.
#[derive(Clone, Debug)]
pub(super) struct Content {
    pub(super) data: Arc<[u8]>,
    /// The zxid of the write that made it.
    pub(super) zxid: Zxid,
}

impl AtomicValue {
    pub(super) fn new(session: &Session, path: &str) -> Result<AtomicValue> {
        path::validate(path)?;
        Ok(AtomicValue { session: session.for_recipe(), path: path.to_owned() })
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Returns the data as this replica has it; `None` if there is no znode.
    pub(super) async fn read_soon(&self) -> Result<Option<Content>> {
        content(self.session.get(&self.path).await)
    }

    /// Returns the data, including the session's earlier writes.
    pub(super) async fn read(&self) -> Result<Option<Content>> {
        content(self.session.in_turn().get(&self.path).await)
    }

    /// Replaces the data that was read. Fails with [`Error::Unmet`], [`Error::NoNode`] or
    /// [`Error::NodeExists`] if it has changed.
    pub(super) async fn replace(&self, seen: Option<Zxid>, data: &[u8]) -> Result<Zxid> {
        match seen {
            Some(seen) => self.replace_written(seen, data).await,
            None => self.create(data).await,
        }
    }

    async fn replace_written(&self, seen: Zxid, data: &[u8]) -> Result<Zxid> {
        let seen = Condition::Mzxid(seen);
        let multi = self.session.multi().require(&self.path, seen).set(&self.path, data);
        Ok(stat_of_set(inner(multi.commit().await)?)?.mzxid)
    }

    async fn create(&self, data: &[u8]) -> Result<Zxid> {
        let create = || self.session.create(&self.path, data, CreateMode::Persistent);
        Ok(create_at(&self.session, &self.path, create).await?.stat.mzxid)
    }

    /// Sets the data unconditionally.
    pub(super) async fn put(&self, data: &[u8]) -> Result<Zxid> {
        // A replica may know that there is no znode to set.
        let mut missing = shows_missing(&self.session, &self.path);
        loop {
            if std::mem::take(&mut missing) {
                match self.create(data).await {
                    Err(Error::NodeExists { .. }) => {}
                    other => return other,
                }
            }
            match self.session.set(&self.path, data).await {
                Ok(stat) => return Ok(stat.mzxid),
                Err(Error::NoNode { .. }) => missing = true,
                Err(error) => return Err(error),
            }
        }
    }

    /// Replaces the data by the result of `change`, atomically: if another write comes first,
    /// `change` is called again. If it returns nothing to write, nothing is sent.
    ///
    /// Returns the zxid of the write or, without a write, that of the data that was read.
    pub(super) async fn update<T>(
        &self,
        mut change: impl FnMut(Option<&Content>) -> Result<(Option<Vec<u8>>, T)>,
    ) -> Result<(T, Zxid)> {
        for attempt in 0..Transaction::ATTEMPTS_MAX {
            let content = self.read().await?;
            let seen = content.as_ref().map(|content| content.zxid);
            let (data, value) = change(content.as_ref())?;
            let Some(data) = data else { return Ok((value, seen.unwrap_or(0))) };
            match unless_overtaken(self.replace(seen, &data).await)? {
                Some(zxid) => return Ok((value, zxid)),
                None => self.back_off(attempt).await?,
            }
        }
        Err(Error::Conflict { path: self.path.clone(), attempts: Transaction::ATTEMPTS_MAX })
    }

    /// Adds to the number that the data show; where there is no znode, to 0. Returns the sum.
    /// Additions do not conflict.
    ///
    /// Fails with [`Error::InvalidData`] if the data show none, or if the form cannot show the sum.
    pub(super) async fn add(&self, number: i64, form: CounterForm) -> Result<i64> {
        // A replica may know that there is no znode.
        let mut missing = shows_missing(&self.session, &self.path);
        loop {
            if std::mem::take(&mut missing) {
                let too_large = || self.invalid(format!("{number} has no form of {form:?}"));
                match self.create(&form.encode(number).ok_or_else(too_large)?).await {
                    Ok(_) => return Ok(number),
                    Err(Error::NodeExists { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            let multi = self.session.multi().add(&self.path, number, form);
            match if_exists(inner(multi.commit().await))? {
                Some(results) => {
                    let after = results.into_iter().find_map(|result| match result {
                        OpResult::Added { after, .. } => Some(after),
                        _ => None,
                    });
                    // A multi's results have the kinds of its operations, and no sum wraps.
                    let nothing = || Error::Stopped { reason: "nothing was added".to_owned() };
                    return after.ok_or_else(nothing);
                }
                None => missing = true,
            }
        }
    }

    async fn back_off(&self, attempt: u32) -> Result<()> {
        let longest = FIRST_WAIT * (1 << attempt.min(DOUBLINGS_MAX));
        let longest = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
        let time = Duration::from_nanos(entropy::number()? % longest);
        self.session.sleep(time).await
    }

    /// The error for data that this recipe never writes.
    pub(super) fn invalid(&self, reason: impl Into<String>) -> Error {
        Error::InvalidData { path: self.path.clone(), reason: reason.into() }
    }
}

fn content(read: Result<(Arc<[u8]>, Stat)>) -> Result<Option<Content>> {
    Ok(if_exists(read)?.map(|(data, stat)| Content { data, zxid: stat.mzxid }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Cluster;

    fn value(path: &str) -> AtomicValue {
        AtomicValue::new(&Cluster::new(1).node(0).session(), path).unwrap()
    }

    #[test]
    fn only_what_was_read_is_replaced() {
        let value = value("/deep/value");
        let session = value.session().clone();
        let replace =
            |seen, data: &[u8]| session.steps("test", "/", value.replace(seen, data)).wait();
        assert!(matches!(replace(Some(1), b"x"), Err(Error::NoNode { .. })), "there is none");
        let first = replace(None, b"1").unwrap();
        assert!(matches!(replace(None, b"x"), Err(Error::NodeExists { .. })), "there is one");
        let second = replace(Some(first), b"2").unwrap();
        assert!(second > first);
        assert!(matches!(replace(Some(first), b"x"), Err(Error::Unmet { .. })), "it is another");
        // The znode is created again, with the version and the data that it had.
        session.delete("/deep/value").wait().unwrap();
        let third = replace(None, b"1").unwrap();
        session.set("/deep/value", b"2").wait().unwrap();
        assert!(matches!(replace(Some(second), b"x"), Err(Error::Unmet { .. })));
        assert!(matches!(replace(Some(third), b"x"), Err(Error::Unmet { .. })));
        assert_eq!(
            &session.steps("test", "/", value.read()).wait().unwrap().unwrap().data[..],
            b"2"
        );
    }

    #[test]
    fn an_update_runs_again_after_a_concurrent_write() {
        let value = value("/value");
        let session = value.session().clone();
        let mut seen = Vec::new();
        let update = value.update(|content| {
            seen.push(content.map(|content| content.data.to_vec()));
            // Another session is faster each time: it creates the znode, sets it, and deletes it.
            match seen.len() {
                1 => drop(session.create("/value", b"a", CreateMode::Persistent).wait().unwrap()),
                2 => drop(session.set("/value", b"b").wait().unwrap()),
                3 => session.delete("/value").wait().unwrap(),
                _ => {}
            }
            Ok((Some(b"mine".to_vec()), seen.len()))
        });
        let (calls, zxid) = session.steps("test", "/", update).wait().unwrap();
        assert_eq!(calls, 4);
        assert_eq!(seen, [None, Some(b"a".to_vec()), Some(b"b".to_vec()), None]);
        let content = session.steps("test", "/", value.read()).wait().unwrap().unwrap();
        assert_eq!((&content.data[..], content.zxid), (&b"mine"[..], zxid));
    }

    #[test]
    fn an_update_without_data_writes_nothing_and_one_that_fails_neither() {
        let value = value("/value");
        let session = value.session().clone();
        let nothing = || session.steps("test", "/", value.update(|_| Ok((None, ())))).wait();
        assert_eq!(nothing(), Ok(((), 0)), "of nothing");
        let written = session.steps("test", "/", value.put(b"1")).wait().unwrap();
        assert_eq!(nothing(), Ok(((), written)));
        let refuse = |_: Option<&Content>| Err::<(_, ()), _>(value.invalid("no"));
        let refused = session.steps("test", "/", value.update(refuse)).wait();
        assert!(matches!(refused, Err(Error::InvalidData { path, .. }) if path == "/value"));
        assert_eq!(session.steps("test", "/", value.read()).wait().unwrap().unwrap().zxid, written);
        assert!(
            session.steps("test", "/", value.put(b"1")).wait().unwrap() > written,
            "the same data, set again"
        );
    }
}
