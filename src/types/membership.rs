//! The members of a cluster, and the values from which it is founded.

use std::fmt;

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::types::znode::Zxid;

/// The number of a member, never 0.
pub(crate) type NodeId = u64;

/// A node's id for people: in hexadecimal, with the address if it is known.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) node: NodeId,
    pub(crate) address: Option<String>,
}

impl Named {
    /// A node whose address is not known here.
    pub(crate) fn of(node: NodeId) -> Named {
        Named { node, address: None }
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Some(address) => write!(f, "{address} ({:016x})", self.node),
            None => write!(f, "{:016x}", self.node),
        }
    }
}

/// A member of the cluster. Its id never changes and is never reused; everything else may change.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    /// Its id in Raft, computed from `uid` and the incarnation of its data directory.
    pub(crate) node: NodeId,
    /// Identifies the instance. It stays the same when a damaged directory is replaced.
    pub(crate) uid: u64,
    /// `host:port`, where peers reach it.
    pub(crate) address: String,
    /// Voters are spread over different zones; empty if not set.
    pub(crate) zone: String,
    /// A voter of the highest leads before long, if it is fit to.
    pub(crate) leader_priority: i32,
}

/// The longest name that a user gives an instance, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// Whether an instance may have this name. It is shown on terminals.
pub(crate) fn is_name(name: &str) -> bool {
    name.len() <= NAME_BYTES_MAX && !name.contains(char::is_control)
}

/// As log lines show it.
impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Member { node, uid, address, zone, leader_priority } = self;
        write!(f, "{address} ({node:016x}) of {uid:016x}")?;
        if !zone.is_empty() {
            write!(f, " in {zone}")?;
        }
        if *leader_priority == 0 { Ok(()) } else { write!(f, " of priority {leader_priority}") }
    }
}

impl Member {
    /// A member without a zone, whose directory was never replaced.
    pub(crate) fn new(node: NodeId, address: impl Into<String>) -> Member {
        let (address, zone) = (address.into(), String::new());
        Member { node, uid: node, address, zone, leader_priority: 0 }
    }
}

/// The id of the member with this uid and this incarnation of its directory. Never 0, and different for
/// each incarnation.
pub(crate) fn node_id(uid: u64, incarnation: u64) -> NodeId {
    let incarnation = if planted!(NodeIdTwice) { 0 } else { incarnation };
    let bytes = [uid.to_le_bytes(), incarnation.to_le_bytes()].concat();
    xxh3_64(&bytes).max(1)
}

/// The initial state of a cluster, from which all its members start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Genesis {
    /// The id of the cluster: random, never 0.
    pub(crate) cluster: u64,
    /// In the order of their ids.
    pub(crate) members: Vec<Member>,
}

/// The position of a proposal in the total order of all proposals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Ballot {
    pub(crate) round: u64,
    pub(crate) proposer: NodeId,
}

/// A node's promise to start from this genesis, if all its members pledge the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pledge {
    pub(crate) ballot: Ballot,
    pub(crate) genesis: Genesis,
}

/// The promise of a node without a cluster. It is on the disk before it is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Promise {
    /// The node ignores all earlier proposals.
    pub(crate) ballot: Ballot,
    /// The pledge, made in that ballot or an earlier one.
    pub(crate) pledge: Option<Pledge>,
}

/// A member and its role.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seat {
    pub(crate) member: Member,
    /// Whether it is a voter; otherwise it is a learner.
    pub(crate) votes: bool,
}

/// The members in the replicated state: the data of `/zookeeper/config`.
///
/// The format is that of ZooKeeper's dynamic configuration: a line for each server, and the version
/// (the zxid of the change, in hexadecimal) in the last one.
///
/// ```text
/// server.00000000000000a1=10.0.0.1:7400:participant;uid=00000000000000a1;zone=east
/// version=1c
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Roster {
    /// In the order of their ids.
    pub(crate) seats: Vec<Seat>,
}

/// The most replicas of a cluster; further instances have to be clients.
pub(crate) const MEMBERS_MAX: usize = 64;
/// The longest address together with the longest zone.
pub(crate) const ADDRESS_BYTES_MAX: usize = 260;
pub(crate) const ZONE_BYTES_MAX: usize = 64;

impl Roster {
    pub(crate) fn new(mut seats: Vec<Seat>) -> Roster {
        seats.sort_unstable_by_key(|seat| seat.member.node);
        seats.dedup_by_key(|seat| seat.member.node);
        Roster { seats }
    }

    pub(crate) fn get(&self, node: NodeId) -> Option<&Seat> {
        let place = self.seats.binary_search_by_key(&node, |seat| seat.member.node).ok()?;
        self.seats.get(place)
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = &Member> {
        self.seats.iter().map(|seat| &seat.member)
    }

    pub(crate) fn text(&self, zxid: Zxid) -> String {
        let mut text = String::new();
        for Seat { member, votes } in &self.seats {
            let Member { node, uid, address, zone, leader_priority } = member;
            let part = if *votes { "participant" } else { "observer" };
            text.push_str(&format!(
                "server.{node:016x}={address}:{part};uid={uid:016x};zone={zone}"
            ));
            if *leader_priority != 0 {
                text.push_str(&format!(";leader_priority={leader_priority}"));
            }
            text.push('\n');
        }
        text.push_str(&format!("version={zxid:x}"));
        text
    }

    /// Parses what [`Roster::text`] has written; `None` for anything else. Empty text means no
    /// members.
    pub(crate) fn parse(text: &[u8]) -> Option<Roster> {
        let text = std::str::from_utf8(text).ok()?;
        let mut seats = Vec::new();
        for line in text.lines() {
            if line.starts_with("version=") {
                continue;
            }
            let (node, rest) = line.strip_prefix("server.")?.split_once('=')?;
            let mut parts = rest.split(';');
            let (address, part) = parts.next()?.rsplit_once(':')?;
            let uid = parts.next()?.strip_prefix("uid=")?;
            let zone = parts.next()?.strip_prefix("zone=")?;
            let leader_priority = match parts.next() {
                Some(part) => part.strip_prefix("leader_priority=")?.parse().ok()?,
                None => 0,
            };
            let votes = match part {
                "participant" => true,
                "observer" => false,
                _ => return None,
            };
            let member = Member {
                node: u64::from_str_radix(node, 16).ok()?,
                uid: u64::from_str_radix(uid, 16).ok()?,
                address: address.to_owned(),
                zone: zone.to_owned(),
                leader_priority,
            };
            seats.push(Seat { member, votes });
        }
        (seats.len() <= MEMBERS_MAX).then(|| Roster::new(seats))
    }
}

impl Member {
    /// Whether it is at this address, as far as is known.
    pub(crate) fn is_at(&self, address: &str) -> bool {
        !address.is_empty() && self.address == address
    }

    /// Whether it can be written as text, and is within the limits.
    pub(crate) fn is_valid(&self) -> bool {
        self.may_be_listed() && !self.address.is_empty()
    }

    /// Whether the roster may contain this member. Its address may be empty, if another member has
    /// moved to it.
    pub(crate) fn may_be_listed(&self) -> bool {
        let plain = |text: &str| !text.contains([';', '\n', '\r', '\0']);
        self.node != 0
            && self.address.len() <= ADDRESS_BYTES_MAX
            && self.zone.len() <= ZONE_BYTES_MAX
            && plain(&self.address)
            && plain(&self.zone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roster() -> Roster {
        let member = |node, zone: &str| Member {
            uid: node + 1,
            zone: zone.to_owned(),
            leader_priority: if zone.is_empty() { 0 } else { -7 },
            ..Member::new(node, format!("[::1]:{node}"))
        };
        let seat = |node, zone, votes| Seat { member: member(node, zone), votes };
        Roster::new(vec![seat(300, "", false), seat(2, "east", true)])
    }

    #[test]
    fn a_roster_is_read_as_it_was_written() {
        let text = roster().text(28);
        assert_eq!(
            text,
            "server.0000000000000002=[::1]:2:participant;uid=0000000000000003;zone=east;leader_priority=-7\n\
             server.000000000000012c=[::1]:300:observer;uid=000000000000012d;zone=\n\
             version=1c"
        );
        assert_eq!(Roster::parse(text.as_bytes()), Some(roster()));
        assert_eq!(Roster::parse(b""), Some(Roster::default()));
        assert_eq!(roster().get(300).map(|seat| seat.votes), Some(false));
        assert_eq!(roster().get(3), None);
    }

    #[test]
    fn an_invalid_roster_is_none() {
        for text in [
            "server",
            "server.1",
            "server.1=a:1",
            "server.1=a:1:participant",
            "server.x=a:1:participant;uid=1;zone=",
            "server.1=a:1:voter;uid=1;zone=",
            "server.1=a:1:participant;uid=1;zone=;leader_priority=x",
            "server.1=a:1:participant;uid=;zone=",
            "\u{e9}",
        ] {
            assert_eq!(Roster::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Roster::parse(&[0xFF]), None);
    }
}
