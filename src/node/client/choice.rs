//! Which members a client is connected with: the one that serves it, and a spare.
//!
//! The spare is the best member besides the one that serves. It is connected, so a client whose
//! member dies goes on with one message: no name is looked up, nothing is dialled, and no keys are
//! exchanged while a member has just been lost. An idle connection costs the spare little memory,
//! and a ping now and then.
//!
//! Actions that many clients would take at the same time, and that can wait, happen at random times: a
//! spare is replaced within [`SPARE_WITHIN`], and a client that is not served by its best member goes
//! there after [`HOME_AFTER`] to [`HOME_WITHIN`]. So neither a new leader nor a member that is back
//! makes many clients move at once. Only a client that has just started goes to its best member as soon
//! as that is connected.
//!
//! As long as a client is not served, it also looks for members at the addresses of its own list.

use std::collections::BTreeSet;
use std::time::Duration;

use super::Context;
use super::attach::Attachment;
use super::members::Members;
use crate::node::io::Time;
use crate::node::random::mixed;
use crate::types::membership::NodeId;

/// How many members a client is connected with once it knows the members, except while it asks all of
/// them for reports.
const CONNECTED_MAX: usize = 2;
/// The time within which a served client replaces its spare.
const SPARE_WITHIN: Duration = Duration::from_secs(10);
/// When a client goes to its best member, if another one serves it.
const HOME_AFTER: Duration = Duration::from_secs(30);
const HOME_WITHIN: Duration = Duration::from_secs(300);
/// After being served for this long without a failure, the client forgets which members have failed.
const FORGIVEN_AFTER: Duration = Duration::from_secs(120);
/// After this many heartbeats without a member, the client looks for members at the addresses of
/// its list.
const SEEK_BEATS: u32 = 15;

/// Which members to be connected with, and when to move to a better one.
#[derive(Debug)]
pub(super) struct Choice {
    random: u64,
    unserved_since: Option<Time>,
    /// When the spare is replaced by a better member, and when the client moves to its best member.
    spare_at: Option<Time>,
    home_at: Option<Time>,
    /// Whether it has been served by its best known member.
    is_settled: bool,
}

impl Choice {
    pub(super) fn new(seed: u64) -> Choice {
        let (unserved_since, spare_at, home_at) = (None, None, None);
        Choice { random: seed, unserved_since, spare_at, home_at, is_settled: false }
    }

    /// Connects with the right ones of the members, which are `ranked`, and with those that are `asked` for reports.
    /// Returns the member to move to, if that is due and the member is connected.
    pub(super) fn choose(
        &mut self,
        attached: Option<&Attachment>,
        ranked: &[NodeId],
        asked: &BTreeSet<NodeId>,
        members: &mut Members,
        cx: &mut Context,
    ) -> Option<NodeId> {
        let mut wanted = match attached.filter(|of| of.is_calm()) {
            _ if planted!(ClientDialsAll) => ranked.to_vec(),
            Some(of) => self.keep_or_improve(of.member, ranked, members, cx),
            None => self.find(attached.map(|of| of.member), ranked, members, cx),
        };
        for node in asked {
            if ranked.contains(node) && !wanted.contains(node) {
                wanted.push(*node);
            }
        }
        let server = attached.filter(|of| of.serves()).map(|of| of.member);
        let now = cx.now.mono;
        let seeks = match server {
            Some(_) => {
                self.unserved_since = None;
                false
            }
            None => {
                let since = *self.unserved_since.get_or_insert(now);
                members.dial().seeks || now >= since + cx.config.heartbeat * SEEK_BEATS
            }
        };
        members.connect_with(&wanted, seeks, cx);
        if self.home_at.is_none_or(|at| now < at) {
            return None;
        }
        let best = members.better_than(server?, cx)?;
        self.home_at = None;
        Some(best)
    }

    /// The members wanted by a served client: its own, and soon the best other one.
    fn keep_or_improve(
        &mut self,
        member: NodeId,
        ranked: &[NodeId],
        members: &mut Members,
        cx: &Context,
    ) -> Vec<NodeId> {
        let now = cx.now.mono;
        members.forgive(FORGIVEN_AFTER, now);
        let mut others = ranked.iter().copied().filter(|other| *other != member);
        let best = others.find(|other| !members.is_avoided(*other, now));
        let mut spare = members.dial().members.iter().map(|dialled| dialled.node);
        let spare = spare.find(|spare| *spare != member && ranked.contains(spare));
        let is_better = best.is_some_and(|of| members.rank(of, cx) < members.rank(member, cx));
        if !is_better {
            self.home_at = None;
            self.is_settled = true;
        } else if !self.is_settled {
            self.home_at = Some(now);
        } else if self.home_at.is_none() {
            let within = HOME_WITHIN.saturating_sub(HOME_AFTER);
            self.home_at = Some(now + HOME_AFTER + self.some_time(within));
        }
        let is_due = if best == spare || best.is_none() {
            self.spare_at = None;
            false
        } else if self.is_settled {
            let at = self.spare_at.unwrap_or_else(|| now + self.some_time(SPARE_WITHIN));
            self.spare_at = Some(at).filter(|at| now < *at);
            now >= at
        } else {
            true
        };
        let spare = if is_due { best } else { spare };
        std::iter::once(member).chain(spare).collect()
    }

    /// The members wanted by a client that is not served, or served by a member that knows no
    /// leader: those that it dials already, unless they have failed, and then the best.
    fn find(
        &mut self,
        attached: Option<NodeId>,
        ranked: &[NodeId],
        members: &Members,
        cx: &Context,
    ) -> Vec<NodeId> {
        (self.spare_at, self.home_at) = (None, None);
        let dialled = ranked.iter().filter(|node| members.dial().names(**node));
        let mut wanted: Vec<NodeId> = attached.into_iter().collect();
        let untried = dialled.clone().chain(ranked);
        let untried = untried.filter(|node| !members.is_avoided(**node, cx.now.mono));
        for node in untried.chain(dialled.clone()).chain(ranked) {
            if wanted.len() < CONNECTED_MAX && !wanted.contains(node) {
                wanted.push(*node);
            }
        }
        wanted
    }

    /// A random time below this one.
    fn some_time(&mut self, below: Duration) -> Duration {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let millis = u64::try_from(below.as_millis()).unwrap_or(u64::MAX).max(1);
        Duration::from_millis(mixed(self.random) % millis)
    }
}
