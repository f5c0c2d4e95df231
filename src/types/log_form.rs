//! The form that public values have in the log, in snapshots and in messages.
//!
//! It is separate from the form that serde shows to users, so that each can change without
//! the other. A field of a stored type that holds such a value has `#[serde(with = "LogForm")]`. The
//! compiler compares each form here with its type. `tests/golden` has the bytes, and `version` the
//! rules for changing them.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::types::acl::{Acl, Id, Permissions};
use crate::types::counter::CounterForm;
use crate::types::reason::{Reason, ReasonKind};
use crate::types::right::{Connection, Right};
use crate::types::watch::{EventKind, EventZnode, WatchEvent, WatcherType};
use crate::types::znode::{Condition, CreateMode, Created, OpResult, SessionId, Stat, Zxid};

/// A value with a separate form in the log.
pub(crate) trait LogForm: Sized {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error>;
    fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error>;
}

/// A value, to be serialized in that form.
pub(crate) struct Written<'a, T>(pub(crate) &'a T);

impl<T: LogForm> Serialize for Written<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// A value that was deserialized from that form.
struct FromLog<T>(T);

impl<'de, T: LogForm> Deserialize<'de> for FromLog<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<FromLog<T>, D::Error> {
        T::deserialize(deserializer).map(FromLog)
    }
}

impl<T: LogForm> LogForm for Option<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Serialize::serialize(&self.as_ref().map(Written), serializer)
    }

    fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
        let value: Option<FromLog<T>> = Deserialize::deserialize(deserializer)?;
        Ok(value.map(|value| value.0))
    }
}

impl<T: LogForm> LogForm for Box<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        T::serialize(self, serializer)
    }

    fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Box<T>, D::Error> {
        T::deserialize(deserializer).map(Box::new)
    }
}

/// Copied as a whole, not byte by byte.
impl LogForm for Arc<[u8]> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self)
    }

    fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<[u8]>, D::Error> {
        deserializer.deserialize_bytes(Copied)
    }
}

/// Copied once: serde's own form makes a `Box` first.
impl LogForm for Arc<str> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self)
    }

    fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
        deserializer.deserialize_str(CopiedText)
    }
}

struct Copied;

impl Visitor<'_> for Copied {
    type Value = Arc<[u8]>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("bytes")
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Arc<[u8]>, E> {
        Ok(Arc::from(bytes))
    }
}

struct CopiedText;

impl Visitor<'_> for CopiedText {
    type Value = Arc<str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Arc<str>, E> {
        Ok(Arc::from(text))
    }
}

impl<T: LogForm> LogForm for Vec<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(Written))
    }

    fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
        let values: Vec<FromLog<T>> = Deserialize::deserialize(deserializer)?;
        Ok(values.into_iter().map(|value| value.0).collect())
    }
}

macro_rules! log_forms {
    ($($value:ident: $form:ident,)*) => {
        $(impl LogForm for $value {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                $form::serialize(self, serializer)
            }

            fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<$value, D::Error> {
                $form::deserialize(deserializer)
            }
        })*
    };
}

log_forms! {
    Acl: AclForm,
    Condition: ConditionForm,
    Connection: ConnectionForm,
    CounterForm: CounterFormForm,
    CreateMode: CreateModeForm,
    Created: CreatedForm,
    EventKind: EventKindForm,
    EventZnode: EventZnodeForm,
    Id: IdForm,
    OpResult: OpResultForm,
    Permissions: PermissionsForm,
    Reason: ReasonForm,
    ReasonKind: ReasonKindForm,
    Right: RightForm,
    SessionId: SessionIdForm,
    Stat: StatForm,
    WatchEvent: WatchEventForm,
    WatcherType: WatcherTypeForm,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "SessionId")]
struct SessionIdForm(u64);

#[derive(Serialize, Deserialize)]
#[serde(remote = "Connection")]
struct ConnectionForm {
    address: SocketAddr,
    subject: Option<String>,
    #[serde(with = "LogForm")]
    right: Right,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Right")]
enum RightForm {
    Client,
    Operator,
    Member,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Reason")]
struct ReasonForm {
    #[serde(with = "LogForm")]
    kind: ReasonKind,
    text: String,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "ReasonKind")]
enum ReasonKindForm {
    Stopped,
    Damaged,
    Founding,
    Joining,
    Refused,
    Unreachable,
    VotersMissing,
    Election,
    NoLeader,
    NoMember,
    CatchingUp,
    Unplaced,
    VotersSilent,
    DisksFull,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "CreateMode")]
enum CreateModeForm {
    Persistent,
    PersistentSequential,
    Ephemeral,
    EphemeralSequential,
    Container,
    PersistentWithTtl(Duration),
    PersistentSequentialWithTtl(Duration),
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Stat")]
struct StatForm {
    czxid: Zxid,
    mzxid: Zxid,
    pzxid: Zxid,
    ctime: u64,
    mtime: u64,
    version: u64,
    cversion: u64,
    aversion: u64,
    #[serde(with = "LogForm")]
    ephemeral_owner: Option<SessionId>,
    is_container: bool,
    ttl: Option<Duration>,
    data_length: u32,
    num_children: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Created")]
struct CreatedForm {
    path: String,
    #[serde(with = "LogForm")]
    stat: Stat,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "OpResult")]
enum OpResultForm {
    Created(#[serde(with = "LogForm")] Created),
    Set(#[serde(with = "LogForm")] Stat),
    Deleted,
    Checked,
    AclSet(#[serde(with = "LogForm")] Stat),
    Taken {
        path: String,
        data: Vec<u8>,
        #[serde(with = "LogForm")]
        claim: Option<Created>,
    },
    Added {
        after: i64,
        #[serde(with = "LogForm")]
        stat: Stat,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "CounterForm")]
enum CounterFormForm {
    Long,
    Int,
    Text,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Condition")]
enum ConditionForm {
    Exists,
    Absent,
    Version(u64),
    Czxid(Zxid),
    Mzxid(Zxid),
    Pzxid(Zxid),
    Cversion(u64),
    Aversion(u64),
    Usage { znodes: u64, bytes: u64 },
}

/// May have any bits: they are checked when a request is applied.
#[derive(Serialize, Deserialize)]
#[serde(remote = "Permissions")]
struct PermissionsForm(u8);

#[derive(Serialize, Deserialize)]
#[serde(remote = "Id")]
struct IdForm {
    scheme: String,
    id: String,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Acl")]
struct AclForm {
    #[serde(with = "LogForm")]
    permissions: Permissions,
    #[serde(with = "LogForm")]
    id: Id,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "WatcherType")]
enum WatcherTypeForm {
    Children,
    Data,
    Any,
    Persistent,
    PersistentRecursive,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "EventKind")]
enum EventKindForm {
    Created,
    Deleted,
    DataChanged,
    ChildrenChanged,
    Gap,
    DataWatchRemoved,
    ChildWatchRemoved,
    PersistentWatchRemoved,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "WatchEvent")]
struct WatchEventForm {
    #[serde(with = "LogForm")]
    kind: EventKind,
    path: String,
    zxid: Zxid,
    position: u32,
    net: bool,
    #[serde(with = "LogForm")]
    znode: Option<Box<EventZnode>>,
    #[serde(with = "LogForm")]
    before: Option<Box<EventZnode>>,
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "EventZnode")]
struct EventZnodeForm {
    #[serde(with = "LogForm")]
    data: Option<Arc<[u8]>>,
    #[serde(with = "LogForm")]
    stat: Stat,
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use super::*;
    use crate::golden::Golden;

    fn sample<T: LogForm + PartialEq + Debug>(golden: &mut Golden, values: impl AsRef<[T]>) {
        for value in values.as_ref() {
            let bytes = postcard::to_stdvec(&Written(value)).unwrap();
            golden.sample(&format!("{value:?}"), &bytes);
            assert_eq!(postcard::from_bytes::<FromLog<T>>(&bytes).unwrap().0, *value);
        }
    }

    /// Every variant, since no samples of other formats have all of them.
    #[test]
    fn golden_values() {
        let mut golden = Golden::new("values");
        let second = Duration::from_millis(1500);
        sample(
            &mut golden,
            [
                CreateMode::Persistent,
                CreateMode::PersistentSequential,
                CreateMode::Ephemeral,
                CreateMode::EphemeralSequential,
                CreateMode::Container,
                CreateMode::PersistentWithTtl(second),
                CreateMode::PersistentSequentialWithTtl(second),
            ],
        );
        let stat = Stat {
            czxid: 1,
            mzxid: 2,
            pzxid: 3,
            ctime: 4,
            mtime: 5,
            version: 6,
            cversion: 7,
            aversion: 8,
            ephemeral_owner: Some(SessionId(300)),
            is_container: true,
            ttl: Some(second),
            data_length: 10,
            num_children: 11,
        };
        let created = Created { path: "/a".to_owned(), stat };
        let of = |subject, right| Connection::new("10.0.0.1:400".parse().unwrap(), subject, right);
        sample(
            &mut golden,
            [
                of(None, Right::Client),
                of(Some("CN=a"), Right::Operator),
                of(Some("CN=a"), Right::Member),
            ],
        );
        sample(
            &mut golden,
            [
                OpResult::Created(created),
                OpResult::Set(stat),
                OpResult::Deleted,
                OpResult::Checked,
                OpResult::AclSet(Stat::default()),
                OpResult::Taken { path: "/a".into(), data: vec![7], claim: None },
                OpResult::Added { after: -8, stat: Stat::default() },
            ],
        );
        sample(&mut golden, [CounterForm::Long, CounterForm::Int, CounterForm::Text]);
        sample(
            &mut golden,
            [
                Condition::Exists,
                Condition::Absent,
                Condition::Version(1),
                Condition::Czxid(2),
                Condition::Mzxid(3),
                Condition::Pzxid(4),
                Condition::Cversion(5),
                Condition::Aversion(6),
                Condition::Usage { znodes: 7, bytes: 8 },
            ],
        );
        sample(
            &mut golden,
            [
                ReasonKind::Stopped,
                ReasonKind::Damaged,
                ReasonKind::Founding,
                ReasonKind::Joining,
                ReasonKind::Refused,
                ReasonKind::Unreachable,
                ReasonKind::VotersMissing,
                ReasonKind::Election,
                ReasonKind::NoLeader,
                ReasonKind::NoMember,
                ReasonKind::CatchingUp,
                ReasonKind::Unplaced,
                ReasonKind::VotersSilent,
                ReasonKind::DisksFull,
            ]
            .map(|kind| Reason::new(kind, "why")),
        );
        let acl = Acl::new(Permissions::ALL, Id::new("ip", "10.0.0.1"));
        sample(&mut golden, [Some(vec![acl.clone(), acl]), None]);
        sample(
            &mut golden,
            [
                WatcherType::Children,
                WatcherType::Data,
                WatcherType::Any,
                WatcherType::Persistent,
                WatcherType::PersistentRecursive,
            ],
        );
        sample(
            &mut golden,
            [
                EventKind::Created,
                EventKind::Deleted,
                EventKind::DataChanged,
                EventKind::ChildrenChanged,
                EventKind::Gap,
                EventKind::DataWatchRemoved,
                EventKind::ChildWatchRemoved,
                EventKind::PersistentWatchRemoved,
            ],
        );
        golden.check();
    }
}
