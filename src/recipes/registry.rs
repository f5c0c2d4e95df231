//! Registers instances of services; `discovery` finds them.
//!
//! Below the registry's path, each service has a container, and each instance an ephemeral znode in
//! it, named by its id.
//!
//! Source: Curator, `ServiceDiscovery`.

#[cfg(feature = "json")]
mod json;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

#[cfg(feature = "json")]
use self::json::InJson;
use crate::api::multi::Multi;
use crate::api::part::Part;
use crate::api::session::Session;
#[cfg(feature = "json")]
use crate::recipes::codec::Json;
use crate::recipes::codec::{Codec, Postcard};
use crate::recipes::errors::inner;
use crate::recipes::former_run::create_or_take_over;
use crate::recipes::held::{Held, guard};
use crate::recipes::parents::create_below;
use crate::runtime::pending::Pending;
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::znode::CreateMode;

/// An instance of a service, with the data that others need to reach it.
///
/// ```
/// use quorate::recipes::Instance;
///
/// let instance = Instance::new("a", "10.0.0.7", 8080).with("zone", "north");
/// assert_eq!(instance.metadata["zone"], "north");
/// ```
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[non_exhaustive]
pub struct Instance {
    /// Its id, unique within its service: a znode's name.
    pub id: String,
    /// Its host name or address.
    pub address: String,
    /// Its port.
    pub port: u16,
    /// Any further properties.
    pub metadata: BTreeMap<String, String>,
}

impl Instance {
    /// An instance without metadata.
    pub fn new(id: impl Into<String>, address: impl Into<String>, port: u16) -> Instance {
        Instance { id: id.into(), address: address.into(), port, metadata: BTreeMap::new() }
    }

    /// Adds a property.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Instance {
        self.metadata.insert(name.into(), value.into());
        self
    }
}

/// A registration's data. More variants may be appended.
#[derive(Serialize, Deserialize)]
enum RegistrationRecord {
    Instance(#[serde(with = "InstanceForm")] Instance),
}

/// The form of an instance in the data.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Instance")]
struct InstanceForm {
    id: String,
    address: String,
    port: u16,
    #[serde(default)]
    metadata: BTreeMap<String, String>,
}

/// The form in which a registry writes its instances.
#[derive(Clone, Copy, Debug)]
enum InstanceEncoding {
    Postcard,
    #[cfg(feature = "json")]
    Json,
}

impl InstanceEncoding {
    fn encode(self, path: &str, instance: &Instance) -> Result<Vec<u8>> {
        let data = match self {
            InstanceEncoding::Postcard => {
                Postcard::encode(&RegistrationRecord::Instance(instance.clone()))
            }
            #[cfg(feature = "json")]
            InstanceEncoding::Json => Json::encode(&InJson::new(path, instance)),
        };
        data.map_err(|reason| Error::InvalidData { path: path.to_owned(), reason })
    }
}

/// Decodes an instance that a registry has written, in either form.
pub(super) fn decode(data: &[u8]) -> Result<Instance, String> {
    #[cfg(feature = "json")]
    if let Some(b'{') = data.trim_ascii_start().first() {
        return Json::decode(data).and_then(InJson::instance);
    }
    let RegistrationRecord::Instance(instance) = Postcard::decode(data)?;
    Ok(instance)
}

/// Returns the path of the child with this name, for example that of a service.
pub(super) fn name_in(parent: &str, name: &str) -> Result<String> {
    let path = path::join(parent, name);
    if name.contains('/') {
        let reason = "a name cannot have a '/'".into();
        return Err(Error::InvalidPath { path, reason });
    }
    path::validate(&path)?;
    Ok(path)
}

/// A registry of services and their instances.
///
/// An instance is registered for as long as its [`Registration`] and its session exist, so nobody
/// has to report its death. The service's znode and its parents are created as containers.
///
/// All that it finds comes from this instance's replica, at once and without a quorum, once the session is
/// open. So an instance that was registered or has ended a moment ago may not show yet;
/// after [`Session::sync`] it does. An instance whose session is over, as far as the replica knows,
/// is not shown. Znodes whose data is not an instance are skipped.
///
/// ```
/// use quorate::{recipes::{Instance, Registry}, testing::Cluster};
///
/// let cluster = Cluster::new(3);
/// let registry = Registry::new(&cluster.node(0).session(), "/services")?;
/// let registration = registry.register("billing", &Instance::new("a", "10.0.0.7", 8080)).wait()?;
///
/// let there = cluster.node(1).session();
/// there.sync().wait()?;
/// let services = Registry::new(&there, "/services")?;
/// assert_eq!(services.instances("billing").wait()?[0].port, 8080);
///
/// registration.release().wait()?;
/// there.sync().wait()?;
/// assert!(services.instances("billing").wait()?.is_empty());
/// # Ok::<(), quorate::Error>(())
/// ```
///
/// When the session is lost, its registrations are lost, too. To restore them automatically,
/// register in the closure of [`Coordinator::supervise`](crate::Coordinator::supervise).
#[derive(Clone, Debug)]
pub struct Registry {
    pub(super) session: Session,
    pub(super) path: String,
    form: InstanceEncoding,
}

impl Registry {
    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// Returns the registry at this path. Sends nothing.
    ///
    /// # Errors
    /// [`Error::InvalidPath`].
    pub fn new(session: &Session, path: &str) -> Result<Registry> {
        path::validate(path)?;
        Ok(Registry {
            session: session.for_recipe(),
            path: path.to_owned(),
            form: InstanceEncoding::Postcard,
        })
    }

    /// Returns the same registry, which writes instances as the JSON objects of Curator's service discovery, for
    /// people and for readers in other languages. With the feature `json`.
    ///
    /// Every registry reads both forms if its build has the feature `json`, too;
    /// a build without it skips JSON instances. Curator's `ServiceDiscovery` at the same path sees the instances
    /// registered here, with the metadata as their payload, a `Map`; and a registry sees Curator's, unless they are
    /// not enabled or have no address or port. Other programs may register an instance by writing a JSON
    /// object with `id`, `address`, `port` and, if they like, `metadata`.
    ///
    /// ```
    /// use quorate::{recipes::{Instance, Registry}, testing::Cluster};
    ///
    /// let session = Cluster::new(1).node(0).session();
    /// let registry = Registry::new(&session, "/services")?.in_json();
    /// let registration = registry.register("billing", &Instance::new("a", "10.0.0.7", 8080)).wait()?;
    /// let (data, _) = session.get(registration.path()).wait()?;
    /// assert_eq!(&data[..], br#"{"name":"billing","id":"a","address":"10.0.0.7","port":8080,"sslPort":null,"payload":null,"registrationTimeUTC":0,"serviceType":"DYNAMIC","uriSpec":null,"enabled":true}"#);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    #[cfg(feature = "json")]
    #[cfg_attr(docsrs, doc(cfg(feature = "json")))]
    #[must_use]
    pub fn in_json(mut self) -> Registry {
        self.form = InstanceEncoding::Json;
        self
    }

    /// Registers an instance of a service.
    ///
    /// If a former run of this very instance is still registered under this id, because its session has
    /// not expired yet, the registration is taken over in one write, and nobody sees it missing. A member
    /// of the cluster is the same instance as long as it has its data directory. A
    /// [client](crate::Builder::client), and a member that has lost its directory, is another instance
    /// after each start.
    ///
    /// # Errors
    /// [`Error::NodeExists`] if another instance has this id, or a living session of this one does;
    /// [`Error::NoNode`] if somebody deletes it at once;
    /// [`Error::InvalidPath`] if a name is not valid for a znode; otherwise as [`Session::create`].
    pub fn register<'a>(
        &'a self,
        service: &'a str,
        instance: &'a Instance,
    ) -> Pending<'a, Registration> {
        self.session().steps("register", self.path(), self.registering(service, instance))
    }

    async fn registering(&self, service: &str, instance: &Instance) -> Result<Registration> {
        let parent = name_in(&self.path, service)?;
        let path = name_in(&parent, &instance.id)?;
        let data = self.form.encode(&path, instance)?;
        let mode = CreateMode::Ephemeral;
        let create = || create_or_take_over(&self.session, &path, &data, mode);
        let ephemeral = create_below(&self.session, &parent, create).await?;
        Ok(Registration { held: Held::new(ephemeral).await?, form: self.form })
    }
}

/// A registered instance, which dereferences to [`Held`]. Releasing it deregisters the instance; so does dropping
/// it, without waiting for the reply.
///
/// The registration ends with its session. After that, open a new session and register the instance
/// again.
///
/// ```
/// use quorate::{recipes::{Instance, Registry}, testing::Cluster};
///
/// let cluster = Cluster::new(3);
/// let session = cluster.node(0).session();
/// let registry = Registry::new(&session, "/services")?;
/// let registration = registry.register("billing", &Instance::new("a", "10.0.0.7", 8080)).wait()?;
/// assert!(registration.is_held());
/// cluster.expire(&session);
/// assert!(!registration.is_held());
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Debug)]
pub struct Registration {
    held: Held,
    form: InstanceEncoding,
}

guard!(Registration, held: Held);

impl Registration {
    /// Replaces the instance's data.
    ///
    /// # Errors
    /// [`Error::NoNode`] or [`Error::Unmet`] if the registration was deleted;
    /// [`Error::InvalidPath`] if the instance has another id; otherwise as [`Session::set`].
    pub fn update<'a>(&'a self, instance: &'a Instance) -> Pending<'a, ()> {
        self.session().steps("update", self.path(), self.updating(instance))
    }

    /// [`Registration::update`] as a part of another write, which has no effect once the registration is lost: see
    /// [`Part`].
    pub fn update_part(&self, instance: &Instance) -> Part {
        Part::of(self.update_multi(instance))
    }

    async fn updating(&self, instance: &Instance) -> Result<()> {
        inner(self.update_multi(instance)?.commit().await).map(drop)
    }

    fn update_multi(&self, instance: &Instance) -> Result<Multi<'_>> {
        let path = self.path();
        if path::name(path) != instance.id {
            let reason = format!("the instance has the id {:?}", instance.id).into();
            return Err(Error::InvalidPath { path: path.to_owned(), reason });
        }
        let data = self.form.encode(path, instance)?;
        Ok(self.ephemeral.multi().set(path, data))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_single_path_component() {
        for name in ["a", "a.b", "...", "\u{e9}", "a b"] {
            assert_eq!(name_in("/s", name), Ok(format!("/s/{name}")));
        }
        assert_eq!(name_in("/", "a"), Ok("/a".to_owned()));
        for name in ["", ".", "..", "a/b", "/a", "a/", "\0", "\u{1f}"] {
            let refused = name_in("/s", name);
            assert!(matches!(refused, Err(Error::InvalidPath { .. })), "{name:?}: {refused:?}");
        }
    }

    #[test]
    fn an_instance_is_read_whole_or_not_at_all() {
        let instance = Instance::new("one", "10.0.0.7", u16::MAX).with("zone", "a").with("", "");
        let data = InstanceEncoding::Postcard.encode("/s/one", &instance).unwrap();
        assert_eq!(decode(&data), Ok(instance));
        for len in 0..data.len() {
            assert!(decode(&data[..len]).is_err(), "the first {len} bytes");
        }
        assert!(decode(&[&data[..], b"x"].concat()).is_err(), "and one more");
        // A variant of the record that this version does not know.
        assert!(decode(&[&[1], &data[1..]].concat()).is_err());
    }

    #[cfg(feature = "json")]
    #[test]
    fn both_forms_are_read() {
        let instance = Instance::new("one", "10.0.0.7", u16::MAX).with("zone", "a");
        for form in [InstanceEncoding::Postcard, InstanceEncoding::Json] {
            assert_eq!(decode(&form.encode("/s/one", &instance).unwrap()), Ok(instance.clone()));
        }
        // Of Curator: by its serializer, and as Jackson writes a payload of a class.
        let curators = br#"{"name":"s","id":"one","address":"10.0.0.7","port":null,"sslPort":65535,"payload":{"@class":"com.example.Data","zone":"a","weight":3},"registrationTimeUTC":1700000000000,"serviceType":"DYNAMIC","uriSpec":{"parts":[{"value":"scheme","variable":true}]}}"#;
        assert_eq!(decode(curators), Ok(instance.clone().with("weight", "3")));
        let text = br#"{"id":"one","address":"host","port":1,"payload":"eu","enabled":true}"#;
        assert_eq!(decode(text), Ok(Instance::new("one", "host", 1).with("payload", "eu")));
        let by_hand = br#" { "id": "one", "address": "host", "port": 1, "since": "today" }"#;
        assert_eq!(decode(by_hand), Ok(Instance::new("one", "host", 1)));
        for wrong in [
            "{",
            "{}",
            "[]",
            r#"{"id":"one","address":"host","port":65536}"#,
            r#"{"id":"one","address":"host","port":null}"#,
            r#"{"id":"one","address":"host","port":1,"enabled":false}"#,
        ] {
            assert!(decode(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn metadata_has_one_value_for_a_name() {
        let instance = Instance::new("one", "host", 1).with("zone", "a").with("zone", "b");
        assert_eq!(
            instance.metadata.into_iter().collect::<Vec<_>>(),
            [("zone".into(), "b".into())]
        );
    }
}
