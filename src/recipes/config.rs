//! A shared, typed value that instances can follow.
//!
//! Source: ZooKeeper, "Recipes and Solutions", Configuration; Curator, `SharedValue`.

use std::fmt;
use std::marker::PhantomData;

use crate::api::session::Session;
use crate::recipes::atomic_value::{AtomicValue, Content};
use crate::recipes::codec::{Codec, Postcard};
use crate::recipes::updates::{Source, Step, Updates};
use crate::runtime::pending::Pending;
use crate::types::error::Result;
use crate::types::watch::WatchMode;
use crate::types::znode::Zxid;

/// A value and its version.
///
/// ```
/// use quorate::{recipes::Config, testing::Cluster};
///
/// let session = Cluster::new(1).node(0).session();
/// let limit = Config::<u32>::new(&session, "/limit")?;
/// let version = limit.set(&20).wait()?;
/// let read = limit.get().wait()?.expect("it was set");
/// assert_eq!((read.value, read.version), (20, version));
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Versioned<T> {
    /// The value.
    pub value: T,
    /// The zxid of the write that made it. It increases with each write, even if the znode is
    /// deleted and created again in between.
    pub version: Zxid,
}

/// A typed value that all instances share and can follow, such as configuration.
///
/// It is one znode, whose data is the value encoded by the [`Codec`] `C`: [`Postcard`] by default,
/// `Json` with the feature `json`, [`Raw`](crate::recipes::Raw) for bytes, or one of your own. A value may have up to 1 MiB.
///
/// A change is one write to the cluster, done exactly once. There is no lock, so a participant that
/// stalls during an update delays nobody. Reading costs nothing: this instance's replica has the
/// value. Missing parents are created as containers.
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
/// let mut updates = service.watch();
/// assert_eq!(updates.recv().wait()?, ConfigUpdate::Missing);
///
/// operator.set(&Limits { connections: 10, banner: "hello".into() }).wait()?;
/// let ConfigUpdate::Value(first) = updates.recv().wait()? else { panic!() };
/// assert_eq!(first.value.connections, 10);
///
/// operator.update(|limits| Limits { connections: 20, ..limits.unwrap_or_default() }).wait()?;
/// let ConfigUpdate::Value(second) = updates.recv().wait()? else { panic!() };
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
    /// Returns the value at this path, encoded by the default codec. Sends nothing.
    ///
    /// # Errors
    /// [`Error::InvalidPath`](crate::Error::InvalidPath).
    pub fn new(session: &Session, path: &str) -> Result<Config<T>> {
        Config::with_codec(session, path)
    }
}

impl<T, C: Codec<T>> Config<T, C> {
    /// Returns the value at this path, encoded by the codec `C`. Sends nothing.
    ///
    /// # Errors
    /// [`Error::InvalidPath`](crate::Error::InvalidPath).
    pub fn with_codec(session: &Session, path: &str) -> Result<Config<T, C>> {
        Ok(Config { value: AtomicValue::new(session, path)?, types: PhantomData })
    }

    fn session(&self) -> &Session {
        self.value.session()
    }

    /// The path of its znode, to read it in a [`Transaction`](crate::Transaction) or a snapshot.
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

    /// Returns the value as this replica has it, if there is one; after [`Session::sync`], it is current.
    ///
    /// # Errors
    /// [`Error::InvalidData`](crate::Error::InvalidData) if the data cannot be decoded;
    /// [`Error::NoAuth`](crate::Error::NoAuth); the errors of a session that is over.
    pub fn get(&self) -> Pending<'_, Option<Versioned<T>>> {
        self.session().steps("get", self.path(), self.reading())
    }

    async fn reading(&self) -> Result<Option<Versioned<T>>> {
        self.value.read_soon().await?.map(|content| self.decode(&content)).transpose()
    }

    /// Sets the value unconditionally, and returns its version.
    ///
    /// # Errors
    /// [`Error::InvalidData`](crate::Error::InvalidData) if the codec cannot encode it; otherwise
    /// as [`Session::set`], except [`Error::NoNode`](crate::Error::NoNode).
    pub fn set(&self, value: &T) -> Pending<'_, Zxid> {
        let data = self.encode(value);
        let setting = async move { self.value.put(&data?).await };
        self.session().steps("set", self.path(), setting)
    }

    /// Sets the value if the current one has the version `expected`, or if there is none and `expected` is `None`.
    /// Returns the new version.
    ///
    /// # Errors
    /// If the version differs: [`Error::Unmet`](crate::Error::Unmet),
    /// [`Error::NoNode`](crate::Error::NoNode) if there is no value, or
    /// [`Error::NodeExists`](crate::Error::NodeExists) if there is one and none was expected. In
    /// these cases nothing was changed. Otherwise as [`Config::set`].
    pub fn compare_and_set(&self, expected: Option<Zxid>, value: &T) -> Pending<'_, Zxid> {
        let data = self.encode(value);
        let replacing = async move { self.value.replace(expected, &data?).await };
        self.session().steps("compare_and_set", self.path(), replacing)
    }

    /// Sets the value to the result of `change`, atomically, and returns it with its version: if another write comes
    /// first, `change` is called again with the new value.
    ///
    /// # Errors
    /// As [`Config::set`] and [`Config::get`], and [`Error::Conflict`](crate::Error::Conflict)
    /// after [`Transaction::ATTEMPTS_MAX`](crate::Transaction::ATTEMPTS_MAX) attempts, after which
    /// nothing was changed.
    pub fn update<'a>(
        &'a self,
        change: impl FnMut(Option<T>) -> T + Send + 'a,
    ) -> Pending<'a, Versioned<T>>
    where
        T: Send,
    {
        self.session().steps("update", self.path(), self.updating(change))
    }

    async fn updating(&self, mut change: impl FnMut(Option<T>) -> T) -> Result<Versioned<T>> {
        let updated = self.value.update(|content| {
            let present = content.map(|content| self.decode(content)).transpose()?;
            let value = change(present.map(|present| present.value));
            Ok((Some(self.encode(&value)?), value))
        });
        let (value, version) = updated.await?;
        Ok(Versioned { value, version })
    }

    /// Follows the value: the result reports the present one, and each write that makes another one. Versions
    /// only increase, and a write of the same value has a new version. Sends nothing yet, and does not block.
    ///
    /// Data that cannot be decoded is reported as [`ConfigUpdate::Invalid`], and not as an error.
    ///
    /// ```
    /// use quorate::{recipes::{Config, ConfigUpdate}, testing::Cluster};
    ///
    /// let cluster = Cluster::new(3);
    /// let limit = Config::<u32>::new(&cluster.node(0).session(), "/limit")?;
    /// let mut updates = Config::<u32>::new(&cluster.node(1).session(), "/limit")?.watch();
    /// assert_eq!(updates.recv().wait()?, ConfigUpdate::Missing);
    /// let version = limit.set(&10).wait()?;
    /// let ConfigUpdate::Value(limit) = updates.recv().wait()? else { panic!("it was set") };
    /// assert_eq!((limit.value, limit.version), (10, version));
    /// assert_eq!(updates.try_recv().wait()?, None, "each is reported once");
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn watch(&self) -> Updates<ConfigUpdate<T>>
    where
        T: 'static,
        C: 'static,
    {
        let source = Following { config: self.clone(), reported: None };
        Updates::new(self.session(), self.path(), WatchMode::Persistent, source)
    }
}

/// What [`Config::watch`] reports.
///
/// ```
/// use quorate::{recipes::{Config, ConfigUpdate}, testing::Cluster};
///
/// let session = Cluster::new(1).node(0).session();
/// let limit = Config::<u32>::new(&session, "/limit")?;
/// limit.set(&7).wait()?;
/// let mut updates = limit.watch();
/// session.set("/limit", b"\xff").wait()?;
/// assert!(matches!(updates.recv().wait()?, ConfigUpdate::Invalid { .. }));
/// limit.set(&8).wait()?;
/// assert!(matches!(updates.recv().wait()?, ConfigUpdate::Value(limit) if limit.value == 8));
/// session.delete("/limit").wait()?;
/// assert_eq!(updates.recv().wait()?, ConfigUpdate::Missing);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigUpdate<T> {
    /// The value, with a larger version than all before.
    Value(Versioned<T>),
    /// There is no value: its znode was deleted, or does not exist yet.
    Missing,
    /// The data cannot be decoded. Later updates still follow.
    Invalid {
        /// The version of the data.
        version: Zxid,
        /// The codec's reason.
        reason: String,
    },
}

struct Following<T, C> {
    config: Config<T, C>,
    /// The last report: the version of the value, or that there is none.
    reported: Option<Option<Zxid>>,
}

impl<T, C: Codec<T>> Source<ConfigUpdate<T>> for Following<T, C> {
    fn latest(&mut self) -> Step<'_, Option<ConfigUpdate<T>>> {
        Box::pin(async { Ok(self.report(self.config.value.read_soon().await?)) })
    }
}

impl<T, C: Codec<T>> Following<T, C> {
    /// Returns the update, if the data that was read differs from the last report.
    fn report(&mut self, content: Option<Content>) -> Option<ConfigUpdate<T>> {
        let now = Some(content.as_ref().map(|content| content.zxid));
        if now == self.reported {
            return None;
        }
        self.reported = now;
        Some(match content {
            None => ConfigUpdate::Missing,
            Some(content) => match C::decode(&content.data) {
                Ok(value) => {
                    let version = content.zxid;
                    ConfigUpdate::Value(Versioned { value, version })
                }
                Err(reason) => ConfigUpdate::Invalid { version: content.zxid, reason },
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Cluster;
    use crate::types::error::Error;
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
    fn a_value_that_its_codec_refuses_is_not_written() {
        let session = Cluster::new(1).node(0).session();
        let config = Config::<u32, Even>::with_codec(&session, "/even").unwrap();
        let version = config.set(&2).wait().unwrap();
        let odd =
            |result: Error| matches!(result, Error::InvalidData { path, .. } if path == "/even");
        assert!(odd(config.set(&3).wait().unwrap_err()));
        assert!(odd(config.compare_and_set(Some(version), &3).wait().unwrap_err()));
        assert!(odd(config.update(|value| value.unwrap() + 1).wait().unwrap_err()));
        let value = config.get().wait().unwrap().unwrap();
        assert_eq!((value.value, value.version), (2, version));
    }

    #[test]
    fn an_update_of_invalid_data_changes_nothing() {
        let session = Cluster::new(1).node(0).session();
        let config = Config::<u32, Even>::with_codec(&session, "/even").unwrap();
        session.create("/even", b"two", CreateMode::Persistent).wait().unwrap();
        assert!(matches!(config.get().wait(), Err(Error::InvalidData { .. })));
        let mut asked = false;
        let updated = config.update(|_| {
            asked = true;
            4
        });
        assert!(matches!(updated.wait(), Err(Error::InvalidData { .. })) && !asked);
        // A plain `set` replaces invalid data.
        config.set(&4).wait().unwrap();
        assert_eq!(config.get().wait().unwrap().unwrap().value, 4);
    }

    #[test]
    fn each_write_is_reported_once_even_with_the_same_value() {
        let session = Cluster::new(1).node(0).session();
        let config = Config::<u32, Even>::with_codec(&session, "/even").unwrap();
        let mut watch = config.watch();
        assert_eq!(watch.try_recv().wait(), Ok(Some(ConfigUpdate::Missing)));
        assert_eq!(watch.try_recv().wait(), Ok(None));
        let mut last = 0;
        for data in ["2", "2", "x", "x", "2"] {
            session.create_or_set("/even", data, CreateMode::Persistent).wait().unwrap();
            let version = match watch.try_recv().wait().unwrap().expect("it was written") {
                ConfigUpdate::Value(value) => value.version,
                ConfigUpdate::Invalid { version, .. } => version,
                ConfigUpdate::Missing => panic!("it is there"),
            };
            assert!(version > last);
            last = version;
            assert_eq!(watch.try_recv().wait(), Ok(None));
        }
        // Deleted and created again between two reads: it is another znode, with another version.
        session.delete("/even").wait().unwrap();
        session.create("/even", b"2", CreateMode::Persistent).wait().unwrap();
        let again = watch.try_recv().wait().unwrap();
        assert!(matches!(again, Some(ConfigUpdate::Value(value)) if value.version > last));
    }
}
