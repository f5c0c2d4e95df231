//! What a node without a cluster announces to its peers.

use serde::{Deserialize, Serialize};

use crate::types::membership::{Ballot, Genesis, Member, Promise};

/// The most members that a cluster is founded with.
pub(crate) const LIST_MAX: usize = 64;

/// The longest address: a host name has 253 characters at most. Zones are held to the same.
const TEXT_BYTES_MAX: usize = 260;

/// A proposer counts up by one, so that no honest cluster ever comes here.
const ROUND_MAX: u64 = 1 << 48;

/// All that a node announces about founding a cluster. Each message has the whole of it, so that loss,
/// duplication and delay do no harm.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Announcement {
    /// Who announces it.
    pub(crate) member: Member,
    /// The peers that the member was given: see [`normalised`].
    pub(crate) list: Vec<String>,
    /// The cluster that the member belongs to, or 0.
    pub(crate) cluster: u64,
    /// As it is on the member's disk.
    pub(crate) promise: Promise,
}

impl Announcement {
    /// Refuses an announcement that is too long, or that no instance would send. It came from `from`.
    pub(crate) fn check(&self, from: u64) -> Result<(), String> {
        if self.member.node != from || from == 0 {
            return Err(format!("it comes from {from} and is about {}", self.member.node));
        }
        check_member(&self.member)?;
        if self.list.len() > LIST_MAX {
            return Err(format!("its list has {} peers", self.list.len()));
        }
        self.list.iter().try_for_each(|address| check_text(address))?;
        if !self.list.is_sorted_by(|one, next| one < next) {
            return Err("its list is not in order".to_owned());
        }
        check_ballot(self.promise.ballot)?;
        let Some(pledge) = &self.promise.pledge else {
            return Ok(());
        };
        check_ballot(pledge.ballot)?;
        if pledge.ballot > self.promise.ballot {
            return Err("it pledges more than it has promised".to_owned());
        }
        check_genesis(&pledge.genesis)
    }

    /// Whether its member takes part in founding: one that is not on its own list only joins.
    pub(super) fn founds(&self) -> bool {
        self.list.contains(&normal(&self.member.address))
    }
}

fn check_genesis(genesis: &Genesis) -> Result<(), String> {
    let members = &genesis.members;
    if genesis.cluster == 0 || members.is_empty() || members.len() > LIST_MAX {
        return Err(format!("cluster {} of {} members", genesis.cluster, members.len()));
    }
    if members[0].node == 0 || !members.is_sorted_by(|one, next| one.node < next.node) {
        return Err("the members of its cluster are not in order".to_owned());
    }
    members.iter().try_for_each(check_member)
}

fn check_member(member: &Member) -> Result<(), String> {
    check_text(&member.address)?;
    check_text(&member.zone)
}

fn check_text(text: &str) -> Result<(), String> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(format!("an address or a zone of {} bytes", text.len()));
    }
    Ok(())
}

fn check_ballot(ballot: Ballot) -> Result<(), String> {
    if ballot.round > ROUND_MAX {
        return Err(format!("round {}", ballot.round));
    }
    Ok(())
}

/// A list as all instances write it that were given the same peers: sorted, each of them once.
pub(crate) fn normalised<A: AsRef<str>>(list: &[A]) -> Vec<String> {
    let mut list: Vec<String> = list.iter().map(|address| normal(address.as_ref())).collect();
    list.sort_unstable();
    list.dedup();
    list
}

/// Host names are the same in upper and lower case.
pub(super) fn normal(address: &str) -> String {
    address.trim().to_ascii_lowercase()
}
