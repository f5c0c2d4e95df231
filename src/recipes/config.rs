//! A typed value that all instances share and follow.
//!
//! Source: ZooKeeper, "Recipes and Solutions", Configuration; Curator, `SharedValue`.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use crate::api::session::Session;
use crate::api::watch::Watch;
use crate::planted::{Bug, planted};
use crate::recipes::atomic_value::{AtomicValue, Content};
use crate::recipes::blocking;
use crate::recipes::codec::{Codec, Postcard};
use crate::types::error::{Error, Result};
use crate::types::watch::{EventKind, WatchMode};
use crate::types::znode::Zxid;

/// A value, and the write that made it.
///
/// ```
/// use quorate::{recipes::Config, testing::Cluster};
///
/// let session = Cluster::new(1).node(0).session();
/// let limit = Config::<u32>::new(&session, "/limit")?;
/// let version = limit.set(&20)?;
/// let read = limit.get()?.expect("it was set");
/// assert_eq!((read.value, read.version), (20, version));
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Versioned<T> {
    /// The value.
    pub value: T,
    /// The zxid of the write that made it so: it grows with each, also when the znode is deleted and
    /// created again in between.
    pub version: Zxid,
}

/// A typed value that all instances share and follow: configuration.
///
/// It is one znode, whose data is the value as the [`Codec`] `C` writes it: [`Postcard`] unless told
/// otherwise, [`Raw`](crate::recipes::Raw) for bytes, or one of your own. A value may have 1 MiB.
///
/// A write is one write of the cluster, and done exactly once. Nobody holds anything while it updates
/// the value, so nobody is held up by another that stalls. Reading is free: this instance has the
/// value. Missing parents are made as containers.
///
/// ```
/// use quorate::{recipes::{Config, ConfigUpdate}, testing::Cluster};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
/// struct Limits {
///     connections: u32,
///     banner: String,
/// }
///
/// let cluster = Cluster::new(3);
/// let operator = Config::<Limits>::new(&cluster.node(0).session(), "/config/limits")?;
/// let service = Config::<Limits>::new(&cluster.node(2).session(), "/config/limits")?;
/// let mut updates = service.watch()?;
/// assert_eq!(updates.recv()?, ConfigUpdate::Missing);
///
/// operator.set(&Limits { connections: 10, banner: "hello".into() })?;
/// let ConfigUpdate::Value(first) = updates.recv()? else { panic!() };
/// assert_eq!(first.value.connections, 10);
///
/// operator.update(|limits| Limits { connections: 20, ..limits.unwrap_or_default() })?;
/// let ConfigUpdate::Value(second) = updates.recv()? else { panic!() };
/// assert_eq!((second.value.connections, &second.value.banner[..]), (20, "hello"));
/// assert!(second.version > first.version);
/// # Ok::<(), quorate::Error>(())
/// ```
pub struct Config<T, C = Postcard> {
    value: AtomicValue,
    types: PhantomData<fn() -> (T, C)>,
}

impl<T, C> Clone for Config<T, C> {
    fn clone(&self) -> Config<T, C> {
        Config { value: self.value.clone(), types: PhantomData }
    }
}

impl<T, C> fmt::Debug for Config<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config").field("path", &self.value.path()).finish_non_exhaustive()
    }
}

impl<T> Config<T>
where
    Postcard: Codec<T>,
{
    /// The value at this path.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn new(session: &Session, path: &str) -> Result<Config<T>> {
        Config::with_codec(session, path)
    }
}

impl<T, C: Codec<T>> Config<T, C> {
    /// The value at this path, in the format of a codec.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn with_codec(session: &Session, path: &str) -> Result<Config<T, C>> {
        Ok(Config { value: AtomicValue::new(session, path)?, types: PhantomData })
    }

    /// The path of the znode.
    pub fn path(&self) -> &str {
        self.value.path()
    }

    fn decode(&self, content: &Content) -> Result<Versioned<T>> {
        let value = C::decode(&content.data).map_err(|reason| self.value.invalid(reason))?;
        Ok(Versioned { value, version: content.zxid })
    }

    fn encode(&self, value: &T) -> Result<Vec<u8>> {
        C::encode(value).map_err(|reason| self.value.invalid(reason))
    }

    /// The value as this replica has it, if there is one; after [`Session::sync`], the present one.
    /// Does not block on a member; a client waits for the answer of its member.
    ///
    /// # Errors
    /// [`Error::InvalidData`] if the data is none of this type's; [`Error::NoAuth`]; those of a
    /// session that is over.
    pub fn get(&self) -> Result<Option<Versioned<T>>> {
        self.value.read_now()?.map(|content| self.decode(&content)).transpose()
    }

    /// As [`Config::get`], without blocking the thread.
    pub async fn get_async(&self) -> Result<Option<Versioned<T>>> {
        self.value.read_soon().await?.map(|content| self.decode(&content)).transpose()
    }

    fn wait<R>(&self, operation: &str, future: impl Future<Output = Result<R>>) -> Result<R> {
        blocking::request(self.value.session(), operation, self.path(), future)
    }

    /// Sets the value, whatever it was, and gives its version. Blocks for the request timeout at
    /// most.
    ///
    /// # Errors
    /// [`Error::InvalidData`] if the codec cannot write it; otherwise as [`Session::set`], but for
    /// [`Error::NoNode`].
    pub fn set(&self, value: &T) -> Result<Zxid> {
        self.wait("set", self.set_async(value))
    }

    /// As [`Config::set`], without blocking the thread.
    pub async fn set_async(&self, value: &T) -> Result<Zxid> {
        self.value.put(&self.encode(value)?).await
    }

    /// Sets the value if the present one has this version, `None` standing for none, and gives the
    /// new version.
    ///
    /// # Errors
    /// If the version is another one, [`Error::Unmet`], [`Error::NoNode`] where there is no value, or
    /// [`Error::NodeExists`] where there is one and none was expected: nothing was changed then.
    /// Otherwise as [`Config::set`].
    pub fn compare_and_set(&self, expected: Option<Zxid>, value: &T) -> Result<Zxid> {
        self.wait("compare and set", self.compare_and_set_async(expected, value))
    }

    /// As [`Config::compare_and_set`], without blocking the thread.
    pub async fn compare_and_set_async(&self, expected: Option<Zxid>, value: &T) -> Result<Zxid> {
        self.value.replace(expected, &self.encode(value)?).await
    }

    /// Sets the value to what `change` makes of the present one, as if nobody else wrote meanwhile:
    /// it is asked again, with the value that is there by then, if somebody did.
    ///
    /// # Errors
    /// As [`Config::set`] and [`Config::get`], and [`Error::Conflict`] after
    /// [`TRANSACTION_ATTEMPTS_MAX`](crate::TRANSACTION_ATTEMPTS_MAX) attempts; nothing was changed
    /// then.
    pub fn update(&self, change: impl FnMut(Option<T>) -> T) -> Result<Versioned<T>> {
        self.wait("update", self.update_async(change))
    }

    /// As [`Config::update`], without blocking the thread.
    pub async fn update_async(
        &self,
        mut change: impl FnMut(Option<T>) -> T,
    ) -> Result<Versioned<T>> {
        let updated = self.value.update(|content| {
            let present = content.map(|content| self.decode(content)).transpose()?;
            let value = change(present.map(|present| present.value));
            Ok((Some(self.encode(&value)?), value))
        });
        let (value, version) = updated.await?;
        Ok(Versioned { value, version })
    }

    /// Follows the value, beginning with the present one. Blocks until the session's earlier calls
    /// have their answers.
    ///
    /// # Errors
    /// As [`Session::watch`].
    pub fn watch(&self) -> Result<ConfigWatch<T, C>> {
        self.wait("watch", self.watch_async())
    }

    /// As [`Config::watch`], without blocking the thread.
    pub async fn watch_async(&self) -> Result<ConfigWatch<T, C>> {
        let session = self.value.session();
        let watch = session.nonblocking().watch(self.path(), WatchMode::Persistent).await?;
        Ok(ConfigWatch { config: self.clone(), watch, reported: Reported::Nothing })
    }
}

/// What a [`ConfigWatch`] tells.
///
/// ```
/// use quorate::{recipes::{Config, ConfigUpdate}, testing::Cluster};
///
/// let session = Cluster::new(1).node(0).session();
/// let limit = Config::<u32>::new(&session, "/limit")?;
/// limit.set(&7)?;
/// let mut updates = limit.watch()?;
/// session.set("/limit", b"\xff")?;
/// assert!(matches!(updates.recv()?, ConfigUpdate::Invalid { .. }));
/// limit.set(&8)?;
/// assert!(matches!(updates.recv()?, ConfigUpdate::Value(limit) if limit.value == 8));
/// session.delete("/limit")?;
/// assert_eq!(updates.recv()?, ConfigUpdate::Missing);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigUpdate<T> {
    /// The value, with a larger version than all before.
    Value(Versioned<T>),
    /// There is none: its znode was deleted, or is not there yet.
    Missing,
    /// The data is none of this type's. What comes next is told all the same.
    Invalid {
        /// The version of the data.
        version: Zxid,
        /// What is wrong with it.
        reason: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reported {
    Nothing,
    Missing,
    Version(Zxid),
}

/// Follows a [`Config`]: each call tells of the latest value, once.
///
/// Versions only grow. A reader that is slow, or that was cut off and comes back, is told the
/// latest value and not those between; the last one is never missed. Nothing waits in memory for a
/// reader. It ends with its session; dropping it ends it too.
///
/// ```
/// use quorate::{recipes::{Config, ConfigUpdate}, testing::Cluster};
///
/// let cluster = Cluster::new(3);
/// let limit = Config::<u32>::new(&cluster.node(0).session(), "/limit")?;
/// let mut updates = Config::<u32>::new(&cluster.node(1).session(), "/limit")?.watch()?;
/// assert_eq!(updates.recv()?, ConfigUpdate::Missing);
/// let version = limit.set(&10)?;
/// let ConfigUpdate::Value(limit) = updates.recv()? else { panic!("it was set") };
/// assert_eq!((limit.value, limit.version), (10, version));
/// assert_eq!(updates.try_recv()?, None, "each is told once");
/// # Ok::<(), quorate::Error>(())
/// ```
pub struct ConfigWatch<T, C = Postcard> {
    config: Config<T, C>,
    watch: Watch,
    reported: Reported,
}

impl<T, C> fmt::Debug for ConfigWatch<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.config.value.path();
        f.debug_struct("ConfigWatch").field("path", &path).finish_non_exhaustive()
    }
}

impl<T, C: Codec<T>> ConfigWatch<T, C> {
    /// What is there now, if it was not told yet. Does not block on a member; a client waits for the
    /// answer of its member.
    ///
    /// # Errors
    /// As [`Config::get`], but for [`Error::InvalidData`], which is an update.
    pub fn try_recv(&mut self) -> Result<Option<ConfigUpdate<T>>> {
        let created = self.drain();
        let content = self.config.value.read_now()?;
        Ok(self.report(content, created))
    }

    /// The same without blocking the thread.
    pub(crate) async fn latest(&mut self) -> Result<Option<ConfigUpdate<T>>> {
        let created = self.drain();
        let content = self.config.value.read_soon().await?;
        Ok(self.report(content, created))
    }

    /// What is read after these events is not older than they. Whether any is a creation.
    fn drain(&self) -> bool {
        let events = self.watch.events().try_iter();
        events.fold(false, |created, event| created | (event.kind == EventKind::Created))
    }

    /// The update, if what was read is another than was told last.
    fn report(&mut self, content: Option<Content>, created: bool) -> Option<ConfigUpdate<T>> {
        let now =
            content.as_ref().map_or(Reported::Missing, |content| Reported::Version(content.zxid));
        if now == self.reported || (created && planted(Bug::ConfigMissed)) {
            return None;
        }
        self.reported = now;
        Some(match content {
            None => ConfigUpdate::Missing,
            Some(content) => match C::decode(&content.data) {
                Ok(value) => ConfigUpdate::Value(Versioned { value, version: content.zxid }),
                Err(reason) => ConfigUpdate::Invalid { version: content.zxid, reason },
            },
        })
    }

    /// A watch whose channel says when to look: for `select!` beside other channels. After a
    /// message from it, and once at first, take what [`ConfigWatch::try_recv`] gives until that is
    /// nothing; nothing is lost with what is taken from the channel. It closes when the session is
    /// over, which `try_recv` then tells. Blocks as [`Session::watch`].
    ///
    /// # Errors
    /// As [`Session::watch`].
    pub fn signal(&self) -> Result<Watch> {
        self.config.value.session().watch(self.config.path(), WatchMode::Persistent)
    }

    /// Waits for the next update without blocking the thread. Dropping the future loses nothing.
    ///
    /// # Errors
    /// As [`ConfigWatch::try_recv`]; with the errors of a session that is over, and with
    /// [`Error::NoWatch`] if somebody removed its watch, it has ended.
    pub async fn next(&mut self) -> Result<ConfigUpdate<T>> {
        loop {
            if let Some(update) = self.latest().await? {
                return Ok(update);
            }
            if self.watch.next().await.is_none() {
                self.config.value.session().check_alive()?;
                return Err(Error::NoWatch { path: self.config.path().to_owned() });
            }
        }
    }

    /// Blocks until the next update. Fails as [`ConfigWatch::next`].
    pub fn recv(&mut self) -> Result<ConfigUpdate<T>> {
        let session = self.config.value.session().clone();
        blocking::forever(&session, self.next())
    }

    /// Blocks until the next update, at most for `timeout`; `None` if there is none by then. Fails as
    /// [`ConfigWatch::next`].
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<Option<ConfigUpdate<T>>> {
        let session = self.config.value.session().clone();
        blocking::within(&session, timeout, self.next())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Cluster;
    use crate::types::znode::CreateMode;

    /// Even numbers, as text.
    struct Even;

    impl Codec<u32> for Even {
        fn encode(value: &u32) -> Result<Vec<u8>, String> {
            match value % 2 {
                0 => Ok(value.to_string().into_bytes()),
                _ => Err("it is odd".to_owned()),
            }
        }

        fn decode(data: &[u8]) -> Result<u32, String> {
            let text = std::str::from_utf8(data).map_err(|error| error.to_string())?;
            text.parse().map_err(|_| format!("{text:?} is no number"))
        }
    }

    #[test]
    fn what_its_codec_refuses_is_not_written() {
        let session = Cluster::new(1).node(0).session();
        let config = Config::<u32, Even>::with_codec(&session, "/even").unwrap();
        let version = config.set(&2).unwrap();
        let odd =
            |result: Error| matches!(result, Error::InvalidData { path, .. } if path == "/even");
        assert!(odd(config.set(&3).unwrap_err()));
        assert!(odd(config.compare_and_set(Some(version), &3).unwrap_err()));
        assert!(odd(config.update(|value| value.unwrap() + 1).unwrap_err()));
        let value = config.get().unwrap().unwrap();
        assert_eq!((value.value, value.version), (2, version));
    }

    #[test]
    fn an_update_of_what_cannot_be_read_leaves_it() {
        let session = Cluster::new(1).node(0).session();
        let config = Config::<u32, Even>::with_codec(&session, "/even").unwrap();
        session.create("/even", b"two", CreateMode::Persistent).unwrap();
        assert!(matches!(config.get(), Err(Error::InvalidData { .. })));
        let mut asked = false;
        let updated = config.update(|_| {
            asked = true;
            4
        });
        assert!(matches!(updated, Err(Error::InvalidData { .. })) && !asked);
        // Whoever knows better replaces it whole.
        config.set(&4).unwrap();
        assert_eq!(config.get().unwrap().unwrap().value, 4);
    }

    #[test]
    fn each_write_is_told_once_though_it_is_of_the_same_value() {
        let session = Cluster::new(1).node(0).session();
        let config = Config::<u32, Even>::with_codec(&session, "/even").unwrap();
        let mut watch = config.watch().unwrap();
        assert_eq!(watch.try_recv(), Ok(Some(ConfigUpdate::Missing)));
        assert_eq!(watch.try_recv(), Ok(None));
        let mut last = 0;
        for data in ["2", "2", "x", "x", "2"] {
            session.create_or_set("/even", data, CreateMode::Persistent).unwrap();
            let version = match watch.try_recv().unwrap().expect("it was written") {
                ConfigUpdate::Value(value) => value.version,
                ConfigUpdate::Invalid { version, .. } => version,
                ConfigUpdate::Missing => panic!("it is there"),
            };
            assert!(version > last);
            last = version;
            assert_eq!(watch.try_recv(), Ok(None));
        }
        // Gone and there again between two looks: the znode is another, and so is the version.
        session.delete("/even").unwrap();
        session.create("/even", b"2", CreateMode::Persistent).unwrap();
        let again = watch.try_recv().unwrap();
        assert!(matches!(again, Some(ConfigUpdate::Value(value)) if value.version > last));
    }
}
