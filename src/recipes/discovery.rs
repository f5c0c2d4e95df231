//! Finding the instances of a service, and choosing one.
//!
//! Source: Curator, `ServiceProvider`, `ServiceCache`, `DownInstancePolicy`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::api::session::Session;
use crate::api::snapshot::Snapshot;
use crate::recipes::errors::children_or_none;
use crate::recipes::registry::{Instance, Registry, decode, name_in};
use crate::recipes::updates::{Source, Step, Updates};
use crate::runtime::entropy;
use crate::runtime::pending::Pending;
use crate::types::error::Result;
use crate::types::path;
use crate::types::watch::WatchMode;

/// How long an instance is left out after [`Chooser::noted_failure`], by default.
const USUAL_TIME_OUT: Duration = Duration::from_secs(30);

impl Registry {
    /// Returns the names of the services that have instances, sorted.
    ///
    /// # Errors
    /// [`Error::NoAuth`](crate::Error::NoAuth); the errors of a session that is over.
    pub fn names(&self) -> Pending<'_, Vec<String>> {
        self.session().steps("names", self.path(), self.reading_names())
    }

    async fn reading_names(&self) -> Result<Vec<String>> {
        self.names_in(&self.session.snapshot_of(&self.path).await?)
    }

    fn names_in(&self, snapshot: &Snapshot) -> Result<Vec<String>> {
        let mut names = children_or_none(snapshot.children(&self.path))?;
        // The container of a service without instances stays for a while.
        names.retain(|name| {
            let stat = snapshot.exists(&path::join(&self.path, name));
            stat.is_ok_and(|stat| stat.is_some_and(|stat| stat.num_children > 0))
        });
        Ok(names)
    }

    /// Returns the instances of a service, all as of one zxid, sorted by id; empty if there is no such service.
    ///
    /// # Errors
    /// [`Error::InvalidPath`](crate::Error::InvalidPath) if the name is not valid for a znode;
    /// [`Error::NoAuth`](crate::Error::NoAuth); the errors of a session that is over.
    pub fn instances<'a>(&'a self, service: &'a str) -> Pending<'a, Vec<Instance>> {
        self.session().steps("instances", self.path(), self.reading(service))
    }

    async fn reading(&self, service: &str) -> Result<Vec<Instance>> {
        let path = name_in(&self.path, service)?;
        instances(&self.session.snapshot_of(&path).await?, &path)
    }

    /// Follows the instances of a service: the result reports the present ones, and each change, all as of one
    /// zxid. Sends nothing yet, and does not block.
    ///
    /// ```
    /// use quorate::{recipes::{Instance, Registry}, testing::Cluster};
    ///
    /// let cluster = Cluster::new(3);
    /// let mut updates = Registry::new(&cluster.node(1).session(), "/services")?.watch("billing")?;
    /// assert!(updates.recv().wait()?.is_empty());
    /// let session = cluster.node(0).open_session()?;
    /// let registry = Registry::new(&session, "/services")?;
    /// let _kept = registry.register("billing", &Instance::new("a", "10.0.0.7", 8080)).wait()?;
    /// assert_eq!(updates.recv().wait()?.len(), 1);
    /// cluster.expire(&session);
    /// assert!(updates.recv().wait()?.is_empty());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidPath`](crate::Error::InvalidPath) if the name is not valid for a znode.
    pub fn watch(&self, service: &str) -> Result<Updates<Vec<Instance>>> {
        let path = name_in(&self.path, service)?;
        let source =
            Following { session: self.session.clone(), path: path.clone(), reported: None };
        Ok(Updates::new(&self.session, &path, WatchMode::PersistentRecursive, source))
    }

    /// Returns a chooser among the instances of a service. Does not block.
    ///
    /// # Errors
    /// [`Error::InvalidPath`](crate::Error::InvalidPath) if the name is not valid for a znode.
    pub fn chooser(&self, service: &str, strategy: Strategy) -> Result<Chooser> {
        let path = name_in(&self.path, service)?;
        let session = self.session.clone();
        Ok(Chooser { session, path, strategy, time_out: USUAL_TIME_OUT, state: Arc::default() })
    }
}

fn instances(snapshot: &Snapshot, path: &str) -> Result<Vec<Instance>> {
    let ids = children_or_none(snapshot.children(path))?;
    let instance = |id: &String| {
        let (data, _) = snapshot.get(&path::join(path, id)).ok()?;
        decode(&data).ok().filter(|instance| instance.id == *id)
    };
    Ok(ids.iter().filter_map(instance).collect())
}

struct Following {
    session: Session,
    path: String,
    reported: Option<Vec<Instance>>,
}

impl Source<Vec<Instance>> for Following {
    fn latest(&mut self) -> Step<'_, Option<Vec<Instance>>> {
        Box::pin(async {
            let now = instances(&self.session.snapshot_of(&self.path).await?, &self.path)?;
            if self.reported.as_ref() == Some(&now) {
                return Ok(None);
            }
            self.reported = Some(now.clone());
            Ok(Some(now))
        })
    }
}

/// How a [`Chooser`] chooses.
///
/// ```
/// use quorate::{recipes::{Registry, Strategy}, testing::Cluster};
///
/// let session = Cluster::new(1).node(0).session();
/// let chooser = Registry::new(&session, "/services")?.chooser("billing", Strategy::Sticky)?;
/// assert!(chooser.choose().wait()?.is_none(), "there are none");
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Strategy {
    /// A random instance, each with the same probability.
    Random,
    /// One instance after the other, in the order of their ids.
    RoundRobin,
    /// A random instance at first, and then the same one for as long as it exists and has not
    /// failed.
    Sticky,
    /// The instance whose last failure is the longest ago; among those that never failed, a random
    /// one.
    LeastRecentlyFailed,
}

#[derive(Debug, Default)]
struct ChooserState {
    last: Option<String>,
    /// When each instance last failed, by this node's clock; only existing instances.
    failed: BTreeMap<String, Duration>,
}

/// Chooses among the instances of a service, and leaves out for a while those that have failed.
///
/// Choosers do not share failures with each other; clones of one chooser do. Only existing
/// instances are remembered.
///
/// ```
/// use quorate::{recipes::{Instance, Registry, Strategy}, testing::Cluster};
///
/// let session = Cluster::new(1).node(0).session();
/// let registry = Registry::new(&session, "/services")?;
/// let _one = registry.register("billing", &Instance::new("one", "10.0.0.7", 8080)).wait()?;
/// let _two = registry.register("billing", &Instance::new("two", "10.0.0.8", 8080)).wait()?;
/// let chooser = registry.chooser("billing", Strategy::RoundRobin)?;
/// assert_eq!(chooser.choose().wait()?.expect("there are two").id, "one");
/// chooser.noted_failure("two").wait()?;
/// assert_eq!(chooser.choose().wait()?.expect("one is left").id, "one");
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Chooser {
    session: Session,
    path: String,
    strategy: Strategy,
    time_out: Duration,
    state: Arc<Mutex<ChooserState>>,
}

impl Chooser {
    fn session(&self) -> &Session {
        &self.session
    }

    fn path(&self) -> &str {
        &self.path
    }

    /// Sets how long an instance is left out after a failure: 30 seconds by default.
    #[must_use]
    pub fn time_out(mut self, time_out: Duration) -> Chooser {
        self.time_out = time_out;
        self
    }

    fn state(&self) -> MutexGuard<'_, ChooserState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Chooses one of the instances that this replica has now; `None` if there is none. If all have failed recently,
    /// it is the one whose failure is the longest ago.
    ///
    /// # Errors
    /// As [`Registry::instances`], and [`Error::System`](crate::Error::System).
    pub fn choose(&self) -> Pending<'_, Option<Instance>> {
        self.session().steps("choose", self.path(), self.choosing())
    }

    async fn choosing(&self) -> Result<Option<Instance>> {
        let snapshot = self.session.snapshot_of(&self.path).await?;
        self.choose_of(instances(&snapshot, &self.path)?)
    }

    fn choose_of(&self, mut instances: Vec<Instance>) -> Result<Option<Instance>> {
        let now = self.session.shared().clock.now();
        let mut state = self.state();
        // Sorted by id.
        let is_there =
            |id: &str| instances.binary_search_by(|instance| instance.id[..].cmp(id)).is_ok();
        state.failed.retain(|id, _| is_there(id));
        let failed = |instance: &Instance| state.failed.get(&instance.id).copied();
        let is_out = |instance: &Instance| {
            failed(instance).is_some_and(|at| now < at.saturating_add(self.time_out))
        };
        if instances.iter().all(is_out) {
            let chosen = instances.iter().min_by_key(|instance| failed(instance)).cloned();
            return Ok(chosen);
        }
        instances.retain(|instance| !is_out(instance));
        let index = match self.strategy {
            Strategy::Random => any(instances.len())?,
            Strategy::RoundRobin => {
                let last = state.last.as_deref();
                let after = |instance: &Instance| last.is_none_or(|last| instance.id[..] > *last);
                instances.iter().position(after).unwrap_or(0)
            }
            Strategy::Sticky => {
                let same = |instance: &Instance| state.last.as_ref() == Some(&instance.id);
                match instances.iter().position(same) {
                    Some(index) => index,
                    None => any(instances.len())?,
                }
            }
            Strategy::LeastRecentlyFailed => {
                // `None` sorts before any time.
                instances.sort_by_key(failed);
                let first = instances.first().and_then(failed);
                any(instances.iter().take_while(|instance| failed(instance) == first).count())?
            }
        };
        let chosen = instances.swap_remove(index);
        state.last = Some(chosen.id.clone());
        Ok(Some(chosen))
    }

    /// Records that the instance with this id has failed, so that it is left out for a while. Does nothing if there
    /// is no such instance.
    pub fn noted_failure<'a>(&'a self, id: &'a str) -> Pending<'a, ()> {
        let now = self.session.shared().clock.now();
        self.session.exists(&path::join(&self.path, id)).and_then(move |stat| {
            if stat.is_some() {
                self.state().failed.insert(id.to_owned(), now);
            }
            Ok(())
        })
    }
}

/// A random index below `count`, which is not 0. For counts this small, the modulo's bias does not
/// matter.
fn any(count: usize) -> Result<usize> {
    let number = entropy::number()? % (count.max(1) as u64);
    // Less than `count`.
    Ok(number as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Cluster;
    use crate::types::error::Error;
    use crate::types::znode::CreateMode;

    fn chooser(session: &Session, strategy: Strategy) -> Chooser {
        Registry::new(session, "/services").unwrap().chooser("s", strategy).unwrap()
    }

    fn chosen(chooser: &Chooser) -> Option<String> {
        chooser.choose().wait().unwrap().map(|instance| instance.id)
    }

    #[test]
    fn invalid_instances_are_not_shown() {
        let session = Cluster::new(1).node(0).session();
        let registry = Registry::new(&session, "/services").unwrap();
        let one = registry.register("s", &Instance::new("one", "host", 1)).wait().unwrap();
        let (data, _) = session.get(one.path()).wait().unwrap();
        // A wrong name, invalid data, a service without instances, a service that does not exist.
        session.create("/services/s/other", &data[..], CreateMode::Persistent).wait().unwrap();
        session.create("/services/s/text", b"hello", CreateMode::Persistent).wait().unwrap();
        session.create("/services/empty", b"", CreateMode::Persistent).wait().unwrap();
        let instances = registry.instances("s").wait().unwrap();
        assert_eq!(instances.iter().map(|one| &one.id[..]).collect::<Vec<_>>(), ["one"]);
        assert_eq!(registry.names().wait().unwrap(), ["s"]);
        assert_eq!(registry.instances("empty").wait().unwrap(), []);
        assert_eq!(registry.instances("none").wait().unwrap(), []);
        assert!(matches!(registry.instances("a/b").wait(), Err(Error::InvalidPath { .. })));
    }

    #[test]
    fn round_robin_continues_after_an_instance_that_is_gone() {
        let session = Cluster::new(1).node(0).session();
        let registry = Registry::new(&session, "/services").unwrap();
        let register =
            |id: &str| registry.register("s", &Instance::new(id, "host", 1)).wait().unwrap();
        let turns = chooser(&session, Strategy::RoundRobin);
        assert_eq!(chosen(&turns), None);
        let (_a, b, _c) = (register("a"), register("b"), register("c"));
        assert_eq!([chosen(&turns), chosen(&turns)], [Some("a".into()), Some("b".into())]);
        b.release().wait().unwrap();
        assert_eq!([chosen(&turns), chosen(&turns)], [Some("c".into()), Some("a".into())]);
        let other = turns.clone();
        assert_eq!(chosen(&other), Some("c".into()), "clones share the turn");
    }

    #[test]
    fn failures_of_instances_that_are_gone_are_forgotten() {
        let session = Cluster::new(1).node(0).session();
        let registry = Registry::new(&session, "/services").unwrap();
        let chooser = chooser(&session, Strategy::LeastRecentlyFailed);
        chooser.noted_failure("nobody").wait().unwrap();
        assert!(chooser.state().failed.is_empty());
        let one = registry.register("s", &Instance::new("one", "host", 1)).wait().unwrap();
        let _two = registry.register("s", &Instance::new("two", "host", 1)).wait().unwrap();
        chooser.noted_failure("one").wait().unwrap();
        assert_eq!(chosen(&chooser), Some("two".into()));
        // All have failed: the one whose failure is the longest ago is chosen.
        chooser.noted_failure("two").wait().unwrap();
        chooser.state().failed.insert("two".to_owned(), Duration::MAX);
        assert_eq!(chosen(&chooser), Some("one".into()));
        one.release().wait().unwrap();
        assert_eq!(chosen(&chooser), Some("two".into()), "better than none");
        assert_eq!(chooser.state().failed.keys().collect::<Vec<_>>(), ["two"]);
    }

    #[test]
    fn an_index_is_in_range() {
        for count in [0, 1, 2, 7] {
            assert!(any(count).unwrap() < count.max(1));
        }
    }
}
