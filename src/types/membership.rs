//! Who the members of a cluster are, and what it is founded from.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use crate::planted::{Bug, planted};
use crate::types::znode::Zxid;

/// The number of a member, never 0.
pub(crate) type NodeId = u64;

/// A member of the cluster. Its id never changes and is never given to another; all else may.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    /// Drawn from `uid` and the incarnation of its data directory: the member's id in Raft.
    pub(crate) node: NodeId,
    /// Stays with an instance whose directory was damaged and begun anew.
    pub(crate) uid: u64,
    /// `host:port`, where peers reach it.
    pub(crate) address: String,
    /// Voters are spread over different ones of these; empty: not told.
    pub(crate) zone: String,
}

impl Member {
    /// One of no zone, whose directory was never begun anew.
    pub(crate) fn new(node: NodeId, address: impl Into<String>) -> Member {
        Member { node, uid: node, address: address.into(), zone: String::new() }
    }
}

/// The id of the member whose instance and data directory drew these: never 0, and another one for
/// each directory that is begun anew.
pub(crate) fn node_id(uid: u64, incarnation: u64) -> NodeId {
    let incarnation = if planted(Bug::NodeIdTwice) { 0 } else { incarnation };
    let bytes = [uid.to_le_bytes(), incarnation.to_le_bytes()].concat();
    xxh3_64(&bytes).max(1)
}

/// A cluster as it is founded: all of its members start from this, and nothing else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Genesis {
    /// Drawn at random; never 0.
    pub(crate) cluster: u64,
    /// In the order of their ids.
    pub(crate) members: Vec<Member>,
}

/// The place of a proposal among all that there ever are, in the order of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Ballot {
    pub(crate) round: u64,
    pub(crate) proposer: NodeId,
}

/// That a node will start from this genesis, if all of its members pledge the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pledge {
    pub(crate) ballot: Ballot,
    pub(crate) genesis: Genesis,
}

/// What a node without a cluster keeps to, whatever happens: it is on its disk before it is told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Promise {
    /// It takes no part in any earlier proposal.
    pub(crate) ballot: Ballot,
    /// Of that ballot or an earlier one.
    pub(crate) pledge: Option<Pledge>,
}

/// A member and its part in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seat {
    pub(crate) member: Member,
    /// Whether it votes; else it is a learner.
    pub(crate) votes: bool,
}

/// The members as the replicated state has them: the data of `/zookeeper/config`.
///
/// Its form is that of ZooKeeper's dynamic configuration: a line for each server, and the version
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

/// No cluster has more replicas: whoever comes on top of them is a client.
pub(crate) const MEMBERS_MAX: usize = 64;
/// The most that an address and the name of a zone may take.
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
            let Member { node, uid, address, zone } = member;
            let part = if *votes { "participant" } else { "observer" };
            text.push_str(&format!(
                "server.{node:016x}={address}:{part};uid={uid:016x};zone={zone}\n"
            ));
        }
        text.push_str(&format!("version={zxid:x}"));
        text
    }

    /// What [`Roster::text`] made; `None` for anything else. No text at all is no members.
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
            };
            seats.push(Seat { member, votes });
        }
        (seats.len() <= MEMBERS_MAX).then(|| Roster::new(seats))
    }
}

impl Member {
    /// Whether it is reached there, as far as that is known.
    pub(crate) fn is_at(&self, address: &str) -> bool {
        !address.is_empty() && self.address == address
    }

    /// Whether it can be written down, and is within the limits.
    pub(crate) fn is_valid(&self) -> bool {
        self.may_be_listed() && !self.address.is_empty()
    }

    /// Whether this can be a member as the roster has it: without an address, if another one has moved
    /// to where it was.
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
            "server.0000000000000002=[::1]:2:participant;uid=0000000000000003;zone=east\n\
             server.000000000000012c=[::1]:300:observer;uid=000000000000012d;zone=\n\
             version=1c"
        );
        assert_eq!(Roster::parse(text.as_bytes()), Some(roster()));
        assert_eq!(Roster::parse(b""), Some(Roster::default()));
        assert_eq!(roster().get(300).map(|seat| seat.votes), Some(false));
        assert_eq!(roster().get(3), None);
    }

    #[test]
    fn what_is_no_roster_is_none() {
        for text in [
            "server",
            "server.1",
            "server.1=a:1",
            "server.1=a:1:participant",
            "server.x=a:1:participant;uid=1;zone=",
            "server.1=a:1:voter;uid=1;zone=",
            "server.1=a:1:participant;uid=;zone=",
            "\u{e9}",
        ] {
            assert_eq!(Roster::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(Roster::parse(&[0xFF]), None);
    }
}
