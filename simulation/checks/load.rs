//! What must hold while the load and the faults last, and not only afterwards (U1 to U8).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::{Violation, require};
use crate::node::message::{PeerMessage, RaftBody};
use crate::simulation::clock::Nanos;
use crate::simulation::load;
use crate::simulation::oracle::End;
use crate::types::membership::NodeId;

#[derive(Debug)]
pub(crate) struct Load {
    /// The members that have created their initial znodes.
    filled: BTreeSet<usize>,
    /// Since when each member runs, is connected to all others and has caught up. `None`: it is
    /// away.
    connected: Vec<Option<Nanos>>,
    /// The last committed index, and since when.
    committed: (u64, Nanos),
    /// The committed index at each recent observation, for as long as a member may lag.
    observations: VecDeque<(Nanos, u64)>,
    /// The highest term.
    term: u64,
    /// Until when an election may take place.
    election_until: Nanos,
    /// The members with slow disks, if the leader is one of them and a majority is not.
    slow: Vec<usize>,
    /// Whether that leader has handed over.
    handed_over: bool,
    /// The extra time of a sync on the disks that a majority needs.
    slow_by: Nanos,
    /// Since when `slow_by` has its value.
    slow_since: Nanos,
    /// What is demanded of writes while disks are nearly full, and after that.
    room: Room,
}

/// Whether disks have room for the writes of clients.
#[derive(Clone, Copy, Debug)]
enum Room {
    Enough,
    /// From this time on, almost nothing is written. `committed` is the index at the first
    /// observation.
    Low {
        from: Nanos,
        committed: Option<u64>,
    },
    /// By this time, writes are accepted again.
    Again {
        by: Nanos,
    },
}

/// The number of entries that members may write for their own purposes while disks are nearly full.
const FOR_MEMBERS: u64 = 50;

/// An observation of the world.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observation {
    pub(crate) now: Nanos,
    pub(crate) committed: u64,
    pub(crate) term: u64,
    /// Since when a write waits at a member that has caught up.
    pub(crate) waits: Option<Nanos>,
}

impl Load {
    pub(crate) fn new(places: usize) -> Load {
        Load {
            filled: BTreeSet::new(),
            connected: vec![Some(0); places],
            committed: (0, 0),
            observations: VecDeque::new(),
            term: 0,
            election_until: Nanos::MAX,
            slow: Vec::new(),
            handed_over: false,
            slow_by: 0,
            slow_since: 0,
            room: Room::Enough,
        }
    }

    /// A member has created its initial znodes.
    pub(crate) fn filled(&mut self, place: usize) {
        self.filled.insert(place);
    }

    pub(crate) fn are_filled(&self, members: usize) -> bool {
        self.filled.len() == members
    }

    /// From now on, everything must hold.
    pub(crate) fn begin(&mut self, observation: Observation) {
        self.election_until = observation.now;
        self.term = observation.term;
        self.committed = (observation.committed, observation.now);
    }

    /// The leader may be lost, so an election may take place until then.
    pub(crate) fn election_until(&mut self, until: Nanos) {
        self.election_until = self.election_until.max(until);
    }

    /// From now on, these members have slow disks, the leader among them, but a majority does not.
    /// An empty list ends that.
    pub(crate) fn leader_is_slow(&mut self, slow: Vec<usize>) {
        (self.slow, self.handed_over) = (slow, false);
    }

    /// U2: a leader whose own disk was slow for long enough has handed over.
    pub(crate) fn handed_over(&self, still_leads: bool) -> Result<(), Violation> {
        require(!still_leads, "U2 a leader with a slow disk hands over", || {
            "it leads still, and other members have better disks".to_owned()
        })
    }

    /// Every commit waits for a disk whose syncs take this much longer. 0 ends that.
    pub(crate) fn slow_by(&mut self, time: Nanos, now: Nanos) {
        (self.slow_by, self.slow_since) = (time, now);
    }

    /// Whether a member must answer requests in time: it is connected, and its slow disk is not
    /// busy with the entries of a new leader.
    pub(crate) fn is_served(&self, place: usize) -> bool {
        self.connected[place].is_some() && !(self.handed_over && self.slow.contains(&place))
    }

    /// Whether a member is served and has been back for long enough to have caught up.
    pub(crate) fn is_caught_up(&self, place: usize, now: Nanos, bounds: load::Bounds) -> bool {
        let is_caught_up = |since| since == 0 || since + bounds.commit <= now;
        self.is_served(place) && self.connected[place].is_some_and(is_caught_up)
    }

    pub(crate) fn is_away(&mut self, place: usize) {
        self.connected[place] = None;
    }

    pub(crate) fn is_back(&mut self, place: usize, now: Nanos) {
        self.connected[place].get_or_insert(now);
    }

    /// The longest time without a commit.
    fn pause_max(&self, bounds: load::Bounds) -> Nanos {
        bounds.commit + bounds.syncs * self.slow_by
    }

    /// U1: a majority commits. U2: no leader is deposed.
    pub(crate) fn observe(
        &mut self,
        load: &load::Load,
        observation: Observation,
    ) -> Result<(), Violation> {
        let Observation { now, committed, term, waits } = observation;
        let kept = self.pause_max(load.bounds);
        self.observations.push_back((now, committed));
        while self.observations.front().is_some_and(|(at, _)| at + kept < now) {
            self.observations.pop_front();
        }
        if committed > self.committed.0 || now <= self.election_until {
            self.committed = (committed, now);
        }
        let from = self.committed.1.max(self.slow_since);
        let paused = waits.map_or(0, |since| now - since.max(from));
        require(paused <= kept, "U1 a majority commits", || {
            format!("nothing was committed for {paused} ns, of {kept} ns at most")
        })?;
        let grown = term > self.term && now > self.election_until;
        let hands_over = !self.slow.is_empty() && !self.handed_over && term == self.term + 1;
        self.handed_over |= term > self.term && hands_over;
        self.term = self.term.max(term);
        require(!grown || hands_over, "U2 a slow disk unseats no leader", || {
            format!("the term is {term}, and the leader could have stayed")
        })
    }

    /// The disks of a majority are nearly full. All members know it from this time on.
    pub(crate) fn nearly_full_from(&mut self, from: Nanos) {
        self.room = Room::Low { from, committed: None };
    }

    /// The disks have room again. All members know it by this time.
    pub(crate) fn has_room(&mut self, by: Nanos) {
        self.room = Room::Again { by };
    }

    /// A write was accepted.
    pub(crate) fn wrote(&mut self) {
        if let Room::Again { .. } = self.room {
            self.room = Room::Enough;
        }
    }

    /// U7: writes are refused while disks are nearly full, and are accepted again afterwards.
    pub(crate) fn check_room(&mut self, now: Nanos, at: u64) -> Result<(), Violation> {
        match &mut self.room {
            Room::Low { from, committed } if now >= *from => {
                let grown = at - *committed.get_or_insert(at);
                require(grown <= FOR_MEMBERS, "U7 nearly full disks take no new data", || {
                    format!("{grown} entries were written to disks that are nearly full")
                })
            }
            Room::Again { by } => {
                let by = *by;
                require(now <= by, "U7 nearly full disks take no new data", || {
                    format!("no write was taken by {by}, and all disks have room")
                })
            }
            Room::Low { .. } | Room::Enough => Ok(()),
        }
    }

    /// The index that a member must have applied to count as caught up: the end of the log some
    /// time ago.
    pub(crate) fn caught_up_index(&self, now: Nanos, bounds: load::Bounds) -> u64 {
        let before = now.saturating_sub(bounds.commit);
        let older = self.observations.iter().take_while(|(at, _)| *at <= before);
        older.last().or(self.observations.front()).map_or(0, |(_, committed)| *committed)
    }

    /// U1, for one request that a member has answered.
    pub(crate) fn answered(
        &self,
        load: &load::Load,
        place: usize,
        asked: Nanos,
        now: Nanos,
    ) -> Result<(), Violation> {
        let Some(since) = self.connected[place].filter(|_| self.is_served(place)) else {
            return Ok(());
        };
        // A member that has caught up may still lag by this much.
        let since = since + load.bounds.commit;
        let from = asked.max(self.election_until).max(self.slow_since).max(since);
        let (took, most) = (now.saturating_sub(from), self.pause_max(load.bounds));
        require(took <= most, "U1 requests are answered in time", || {
            format!("one of node {place} took {took} ns, of {most} ns at most")
        })
    }

    /// U3: a session expires only if its holder could not renew it.
    pub(crate) fn ended(
        &self,
        load: &load::Load,
        end: &End,
        held_at: Option<usize>,
        now: Nanos,
    ) -> Result<(), Violation> {
        let Some(place) = held_at.filter(|_| end.by_expiry) else { return Ok(()) };
        let since = self.connected[place];
        let could =
            since.is_some_and(|since| since.max(self.election_until) + load.bounds.session < now);
        require(!could, "U3 no session ends for another's disk", || {
            format!("session {} expired, and node {place} reached all others", end.session)
        })
    }

    /// U6: the log in memory is bounded. A start reads what has come since the last checkpoint, which is due
    /// after so many bytes; none of that stays once it is applied.
    pub(crate) fn log(
        &self,
        load: &load::Load,
        place: usize,
        (bytes, read): (u64, &mut u64),
        due: u64,
        slow_by: Nanos,
    ) -> Result<(), Violation> {
        // A checkpoint takes a few syncs, and the next one waits for it.
        let most = load.bounds.log_bytes + load.bytes_in(12 * slow_by);
        if bytes <= most {
            *read = 0;
        }
        // The largest share of a limit is five quarters.
        let most = if *read > 0 { most + due * 5 / 4 } else { most };
        require(bytes <= most, "U6 the log is bounded", || {
            format!("node {place} has {bytes} bytes in memory, of {most} at most")
        })
    }

    /// U4: no step takes long.
    pub(crate) fn stepped(
        &self,
        load: &load::Load,
        place: usize,
        busy: Nanos,
    ) -> Result<(), Violation> {
        let most = load.bounds.step;
        require(busy <= most, "U4 no step takes long", || {
            format!("one of node {place} took {busy} ns, of {most} ns at most")
        })
    }
}

/// How often a step may send the same entries to a peer, for example when the peer is lost and
/// found again.
const REPEATED_MAX: usize = 3;

/// U8: the messages of one step are bounded, however many it has received.
pub(crate) fn sent(place: usize, messages: &[(NodeId, PeerMessage)]) -> Result<(), Violation> {
    let mut appends: BTreeMap<(NodeId, u64), usize> = BTreeMap::new();
    for (to, message) in messages {
        let PeerMessage::Raft { body: RaftBody::Append { entries, .. }, .. } = message else {
            continue;
        };
        let Some(first) = entries.first() else { continue };
        let count = appends.entry((*to, first.index)).or_default();
        *count += 1;
        require(*count <= REPEATED_MAX, "U8 a step sends entries once", || {
            format!("one of node {place} sent entry {} to {to} {count} times", first.index)
        })?;
    }
    Ok(())
}
