//! The form of public values in serde: see [`guide::serde_form`](crate::guide::serde_form).
//!
//! Most of it is derived at the definition of each type. Not here: the form in the log (`log_form`).

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::de::{Error as _, Unexpected};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::types::acl::{Id, LETTERS, Permissions};
use crate::types::znode::SessionId;

/// A duration as a number of whole milliseconds.
pub(crate) trait Millis: Sized {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error>;
    fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error>;
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Millis for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(millis(*self))
    }

    fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

impl Millis for Option<Duration> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Serialize::serialize(&self.map(millis), serializer)
    }

    fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        let millis: Option<u64> = Deserialize::deserialize(deserializer)?;
        Ok(millis.map(Duration::from_millis))
    }
}

/// A duration as a number of whole microseconds, for durations that are mostly shorter than a millisecond.
pub(crate) fn micros<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX))
}

/// A random number of 64 bits, in hexadecimal: many JSON readers do not support such integers.
pub(crate) fn hex<S: Serializer>(number: &u64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&format_args!("{number:016x}"))
}

pub(crate) fn hex_if_known<S: Serializer>(
    number: &Option<u64>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    Serialize::serialize(&number.map(|number| format!("{number:016x}")), serializer)
}

pub(crate) fn each_in_hex<S: Serializer>(
    numbers: &[u64],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(numbers.iter().map(|number| format!("{number:016x}")))
}

/// A znode's data in an event, in base64.
pub(crate) fn base64<S: Serializer>(
    data: &Option<Arc<[u8]>>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    Serialize::serialize(&data.as_ref().map(|data| BASE64.encode(data)), serializer)
}

/// An id that an access list may contain.
pub(crate) fn id_of_acl<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Id, D::Error> {
    let id = Id::deserialize(deserializer)?;
    id.check().map_err(D::Error::custom)?;
    Ok(id)
}

fn parsed<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    expected: &str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<T, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse(&text).ok_or_else(|| D::Error::invalid_value(Unexpected::Str(&text), &expected))
}

impl Serialize for SessionId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SessionId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SessionId, D::Error> {
        parsed(deserializer, "0x and 16 lower-case hexadecimal digits", |text| {
            let number = u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()?;
            Some(SessionId(number)).filter(|id| id.to_string() == text)
        })
    }
}

impl Serialize for Permissions {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Permissions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Permissions, D::Error> {
        parsed(deserializer, "some of the letters cdrwa", |text| {
            text.chars().try_fold(Permissions::NONE, |all, letter| {
                let (permission, _) = LETTERS.iter().find(|(_, known)| *known == letter)?;
                Some(all | *permission)
            })
        })
    }
}

impl Serialize for Id {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.scheme.contains(':') {
            return Err(S::Error::custom("a scheme with a colon has no text form"));
        }
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Id {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Id, D::Error> {
        parsed(deserializer, "scheme:id", |text| {
            let (scheme, id) = text.split_once(':')?;
            Some(Id::new(scheme, id))
        })
    }
}
