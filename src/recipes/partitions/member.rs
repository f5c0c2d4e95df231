//! A member, and what its znode holds.

use std::time::Duration;

use crate::recipes::codec::{Codec, Postcard};

/// A member that takes part in [`Partitions`](super::Partitions): its name, its weight and its zone. A string converts
/// into a member of weight 1 without a zone.
///
/// ```
/// use quorate::recipes::PartitionMember;
///
/// let member = PartitionMember::new("10.0.0.1:80").weight(3).zone("eu-1");
/// assert_eq!(member.name(), "10.0.0.1:80");
/// assert_eq!(PartitionMember::from("a"), PartitionMember::new("a").weight(1).zone(""));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionMember {
    pub(super) name: String,
    pub(super) weight: u32,
    pub(super) zone: String,
    pub(super) is_silent: bool,
}

impl PartitionMember {
    /// A member of weight 1, without a zone. The name is unique among the living members. A name by which others
    /// reach the member, as an address is, lets them send to the owner of a key.
    pub fn new(name: impl Into<String>) -> PartitionMember {
        PartitionMember { name: name.into(), weight: 1, zone: String::new(), is_silent: false }
    }

    /// A member of weight 2 has twice as many partitions as one of weight 1; one of weight 0 has none.
    #[must_use]
    pub fn weight(self, weight: u32) -> PartitionMember {
        PartitionMember { weight, ..self }
    }

    /// A partition that leaves its owner goes to a member in the same zone, if one has room.
    #[must_use]
    pub fn zone(self, zone: impl Into<String>) -> PartitionMember {
        PartitionMember { zone: zone.into(), ..self }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is there and does not go on with its part: see
    /// [`Partitions::with_max_silence`](super::Partitions::with_max_silence). It owns nothing then, and nothing is
    /// planned for it.
    pub fn is_silent(&self) -> bool {
        self.is_silent
    }
}

impl<T: Into<String>> From<T> for PartitionMember {
    fn from(name: T) -> PartitionMember {
        PartitionMember::new(name)
    }
}

/// A member as its znode has it.
#[derive(Clone, Debug)]
pub(super) struct StoredMember {
    pub(super) member: PartitionMember,
    pub(super) drain_limit: Duration,
}

impl StoredMember {
    pub(super) fn silent(&self, is_silent: bool) -> StoredMember {
        let member = PartitionMember { is_silent, ..self.member.clone() };
        StoredMember { member, ..*self }
    }

    /// The data of the znode, which has the member's name.
    pub(super) fn encoded(&self) -> Vec<u8> {
        let PartitionMember { weight, zone, is_silent, .. } = &self.member;
        let drain = u64::try_from(self.drain_limit.as_millis()).unwrap_or(u64::MAX);
        // Numbers and a string have a form.
        Postcard::encode(&(*weight, zone.clone(), drain, *is_silent)).unwrap_or_default()
    }

    pub(super) fn decoded(name: &str, data: &[u8]) -> Result<StoredMember, String> {
        let (weight, zone, drain, is_silent) = Postcard::decode(data)?;
        let member = PartitionMember { name: name.to_owned(), weight, zone, is_silent };
        Ok(StoredMember { member, drain_limit: Duration::from_millis(drain) })
    }
}

/// Whether the data of a member's znode say that it is silent.
#[cfg(any(test, feature = "simulator"))]
pub(crate) fn is_silent(data: &[u8]) -> bool {
    StoredMember::decoded("", data).is_ok_and(|stored| stored.member.is_silent())
}
