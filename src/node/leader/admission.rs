//! Which requests the leader proposes: each request once, and those of a session in order.
//!
//! The state machine alone decides what a request does, and it ignores one that comes twice or too
//! early. This filter keeps such requests out of the log, where each would cost a write: nodes send
//! requests again in bulk whenever the leader or a connection changes. A node sends a rejected
//! request again until it sees the outcome in the log.
//!
//! A request with a large value is an entry of its own, and what follows it in the log waits until a
//! majority of the disks has all of it. So while small requests come too, the leader proposes large ones
//! one after the other, and small ones of other sessions go first. Invariants: the requests of a session
//! are proposed in their order; small requests pass a large one by a bounded number of bytes once it may be
//! proposed, and until then it waits only for the commit of entries that are in the log already.

use std::collections::{BTreeMap, VecDeque};

use crate::machine::Machine;
use crate::machine::command::{Batch, Command, Request};
use crate::types::version::is_above;
use crate::types::znode::SessionId;

/// The most requests, and about the most bytes, of one entry.
const BATCH_REQUESTS_MAX: usize = 1024;
const BATCH_BYTES_MAX: usize = 48 << 10;
/// About how many bytes may wait here while Raft takes no proposals, with the large requests that it has
/// taken and not committed.
const QUEUE_BYTES_MAX: usize = 128 << 20;
/// A larger request fills an entry.
const LARGE_BYTES: usize = BATCH_BYTES_MAX;
/// While large requests are held back, so many bytes of them may be proposed and not committed.
const UNCOMMITTED_BYTES_MAX: usize = 1 << 20;
/// After a small request among them, so many large ones are held back.
const HELD_BACK: u32 = 64;
/// So many bytes of small requests pass a large one that may be proposed.
const PASSING_BYTES_MAX: usize = 1 << 20;

#[derive(Debug, Default)]
pub(crate) struct Admission {
    /// For each session with a request proposed in this term: its holder, and the number of its
    /// last request.
    proposed: BTreeMap<SessionId, (u64, u64)>,
    queue: VecDeque<Request>,
    large: LargeRequests,
    /// About the bytes in both queues, without expiries.
    bytes: usize,
    /// The cluster's version once the entries of this term are applied, if one of them raises it.
    raised_to: u16,
}

/// The queue of large requests, and of those that follow one in its session.
#[derive(Debug, Default)]
struct LargeRequests {
    queue: VecDeque<Request>,
    /// How many requests of each session are in the queue.
    sessions: BTreeMap<SessionId, usize>,
    /// The large requests that are proposed and not committed: index and bytes.
    uncommitted: VecDeque<(u64, usize)>,
    uncommitted_bytes: usize,
    /// How many large requests are still to be held back.
    held_back: u32,
    /// The bytes of small requests that have passed the first one of the queue since it may be proposed.
    passed_bytes: usize,
    /// Whether the last batch came from this queue.
    is_last: bool,
}

impl LargeRequests {
    /// Whether the request belongs into this queue.
    fn takes(&self, request: &Request) -> bool {
        request.command.size() > LARGE_BYTES || self.sessions.contains_key(&request.session)
    }

    fn push(&mut self, request: Request) {
        *self.sessions.entry(request.session).or_default() += 1;
        self.queue.push_back(request);
    }

    /// Whether the first request may be proposed.
    fn may_go(&self) -> bool {
        let Some(first) = self.queue.front() else { return false };
        let size = first.command.size();
        size <= LARGE_BYTES
            || self.held_back == 0
            || self.uncommitted.is_empty()
            || self.uncommitted_bytes + size <= UNCOMMITTED_BYTES_MAX
    }

    /// The first requests are taken.
    fn taken(&mut self, requests: &[Request]) {
        for request in requests {
            if let Some(count) = self.sessions.get_mut(&request.session) {
                *count -= 1;
                if *count == 0 {
                    self.sessions.remove(&request.session);
                }
            }
        }
        self.passed_bytes = 0;
    }

    /// Small requests of this many bytes are taken.
    fn passed(&mut self, bytes: usize, may_go: bool) {
        if may_go {
            self.passed_bytes += bytes;
        }
        if !self.queue.is_empty() || !self.uncommitted.is_empty() {
            self.held_back = HELD_BACK;
        }
    }
}

impl Admission {
    /// The log has an entry of this term that raises the cluster's version.
    pub(crate) fn raise(&mut self, version: u16) {
        self.raised_to = version;
    }

    pub(crate) fn raised_to(&self) -> u16 {
        self.raised_to
    }

    /// The session is closed.
    pub(crate) fn forget(&mut self, session: SessionId) {
        self.proposed.remove(&session);
    }

    /// A request of this holder has failed. If it does not hold the session, the requests of the
    /// true holder do not follow its requests.
    pub(crate) fn refused(&mut self, session: SessionId, holder: u64, machine: &Machine) {
        let holds = machine.session(session).is_some_and(|record| record.holder == holder);
        let proposed = self.proposed.get(&session).is_some_and(|(last, _)| *last == holder);
        if proposed && !holds {
            self.proposed.remove(&session);
        }
    }

    /// Takes a request in, unless it is in the log already or an earlier one is missing.
    pub(crate) fn admit(&mut self, request: Request, machine: &Machine) {
        if let Command::Expire { .. } | Command::Reap { .. } = request.command {
            self.push(request);
            return;
        }
        // Not all members could read this request. A node sends such a request only after its
        // replica has seen the version, so the version is in the log. If this leader has not
        // applied it yet, the node sends the request again.
        if is_above(request.command.version(), self.raised_to.max(machine.version())) {
            return;
        }
        // The node sends the request again after a while.
        let size = request.command.size();
        let waiting = self.bytes + self.large.uncommitted_bytes;
        if waiting > 0 && waiting + size > QUEUE_BYTES_MAX {
            return;
        }
        let last = self.proposed.get(&request.session).copied().or_else(|| {
            let record = machine.session(request.session)?;
            Some((record.holder, record.last_seq))
        });
        let held = last.filter(|(holder, _)| *holder == request.holder);
        // A session that is not known yet, or has another holder, begins with its open or resume.
        // If the session has ended, its node sees that in the log. A former holder sees there that
        // another one has the session.
        let next = held.map_or(0, |(_, seq)| seq + 1);
        let late =
            || machine.session(request.session).is_some_and(|it| it.was_held_by(request.holder));
        let repeats = request.seq < next && planted!(RunAgain);
        if (request.seq == next || repeats) && !late() {
            self.proposed.insert(request.session, (request.holder, request.seq));
            self.bytes += size;
            self.push(request);
        }
    }

    fn push(&mut self, request: Request) {
        match self.large.takes(&request) {
            true => self.large.push(request),
            false => self.queue.push_back(request),
        }
    }

    /// The next batch to propose, stamped with `time`. A request that may delete very many znodes
    /// gets a batch of its own, so that replicas can prepare it.
    pub(crate) fn next_batch(&mut self, time: u64, machine: &Machine) -> Option<Batch> {
        let may_go = self.large.may_go();
        let is_due = self.queue.is_empty() || self.large.passed_bytes >= PASSING_BYTES_MAX;
        self.large.is_last = may_go && is_due;
        let queue = if self.large.is_last { &mut self.large.queue } else { &mut self.queue };
        let mut bytes = 0;
        let mut count = 0;
        for request in queue.iter().take(BATCH_REQUESTS_MAX) {
            let (more, is_large) = (request.command.size(), machine.is_large(request));
            if count > 0 && (bytes + more > BATCH_BYTES_MAX || is_large) {
                break;
            }
            bytes += more;
            count += 1;
            if is_large {
                break;
            }
        }
        if count == 0 {
            return None;
        }
        let requests: Vec<Request> = queue.drain(..count).collect();
        match self.large.is_last {
            true => self.large.taken(&requests),
            false => self.large.passed(bytes, may_go),
        }
        self.bytes = self.bytes.saturating_sub(bytes);
        Some(Batch { time, requests })
    }

    /// The last batch has become the entry at this index.
    pub(crate) fn proposed(&mut self, index: u64, batch: &Batch) {
        let bytes = batch.requests.first().map_or(0, |first| first.command.size());
        if bytes > LARGE_BYTES {
            self.large.held_back = self.large.held_back.saturating_sub(1);
            self.large.uncommitted.push_back((index, bytes));
            self.large.uncommitted_bytes += bytes;
        }
    }

    /// The log is committed up to this index.
    pub(crate) fn committed(&mut self, index: u64) {
        while let Some((at, bytes)) = self.large.uncommitted.front()
            && *at <= index
        {
            self.large.uncommitted_bytes -= bytes;
            self.large.uncommitted.pop_front();
        }
    }

    /// Raft did not take the last batch: it becomes the next one again.
    pub(crate) fn put_back(&mut self, batch: Batch) {
        for request in batch.requests.into_iter().rev() {
            self.bytes += request.command.size();
            if self.large.is_last {
                *self.large.sessions.entry(request.session).or_default() += 1;
                self.large.queue.push_front(request);
            } else {
                self.queue.push_front(request);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::command::Op;

    const SESSION: SessionId = SessionId(9);
    const SECRET: [u8; 16] = [7; 16];

    fn request(holder: u64, seq: u64, command: Command) -> Request {
        Request { session: SESSION, holder, seq, acked: seq, command }
    }

    fn resume(holder: u64, secret: [u8; 16]) -> Request {
        request(holder, 0, Command::Resume { secret, timeout_ms: 4000, owner: 1 })
    }

    fn write(holder: u64, seq: u64) -> Request {
        let op = Op::Set { path: "/".into(), data: "".into(), version: None };
        request(holder, seq, Command::Op(op))
    }

    struct Door {
        admission: Admission,
        machine: Machine,
        /// Proposed, and not applied yet.
        log: VecDeque<Request>,
    }

    impl Door {
        fn new() -> Door {
            let admission = Admission::default();
            let mut door = Door { admission, machine: Machine::new(), log: VecDeque::new() };
            let open = Command::Open { secret: SECRET, timeout_ms: 4000, owner: 1, base: 0 };
            assert!(door.admits(request(1, 0, open)));
            door.apply();
            door
        }

        fn admits(&mut self, request: Request) -> bool {
            self.admission.admit(request, &self.machine);
            let batch = self.admission.next_batch(1, &self.machine);
            let admitted = batch.is_some();
            self.log.extend(batch.into_iter().flat_map(|batch| batch.requests));
            admitted
        }

        /// The leader applies the oldest entry, and notes what was refused.
        fn apply(&mut self) {
            let request = self.log.pop_front().unwrap();
            let (session, holder) = (request.session, request.holder);
            let applied = self.machine.apply(1, &Batch { time: 1, requests: vec![request] });
            if applied.outcomes[0].result.is_err() {
                self.admission.refused(session, holder, &self.machine);
            }
        }
    }

    /// A refused resumption made the leader forget the resumption after it. The leader then took in
    /// the former holder's last request, and none of the new holder's.
    #[test]
    fn a_refused_resumption_leaves_the_one_behind_it_alone() {
        let mut door = Door::new();
        assert!(door.admits(resume(2, [8; 16])));
        assert!(door.admits(resume(3, SECRET)));
        assert!(door.admits(write(3, 1)));
        door.apply();
        assert!(!door.admits(write(1, 1)), "its session is being taken over");
        assert!(door.admits(write(3, 2)));
    }

    #[test]
    fn a_former_holder_s_late_request_does_not_stand_in_the_way_of_the_new_one_s() {
        let mut door = Door::new();
        assert!(door.admits(write(1, 1)));
        assert!(door.admits(resume(3, SECRET)));
        door.apply();
        door.apply();
        // The same from the log of a former term.
        door.admission.proposed.insert(SESSION, (1, 2));
        door.log.push_back(write(1, 2));
        door.apply();
        assert!(door.admits(write(3, 1)));
    }

    #[test]
    fn only_what_comes_next_is_taken_in() {
        let mut door = Door::new();
        assert!(!door.admits(write(1, 2)), "one before it is missing");
        assert!(door.admits(write(1, 1)));
        assert!(!door.admits(write(1, 1)), "it is in the log already");
        assert!(door.admits(write(1, 2)));
    }

    /// A request of some session that writes this many bytes.
    fn of(session: u64, seq: u64, bytes: usize) -> Request {
        let op = Op::Set { path: "/".into(), data: vec![0; bytes].into(), version: None };
        let session = SessionId(session);
        Request { session, holder: session.0, seq, acked: seq, command: Command::Op(op) }
    }

    /// Sessions 1 to 4 are open.
    fn many() -> (Admission, Machine) {
        let mut machine = Machine::new();
        for session in 1..=4 {
            let command = Command::Open { secret: SECRET, timeout_ms: 4000, owner: 1, base: 0 };
            let open = Request { command, seq: 0, ..of(session, 0, 0) };
            machine.apply(1, &Batch { time: 1, requests: vec![open] });
        }
        (Admission::default(), machine)
    }

    /// Proposes all that may be, from this index on; each batch by the sessions and numbers in it.
    fn propose(admission: &mut Admission, machine: &Machine, from: u64) -> Vec<Vec<(u64, u64)>> {
        let mut all = Vec::new();
        while let Some(batch) = admission.next_batch(1, machine) {
            admission.proposed(from + all.len() as u64, &batch);
            all.push(batch.requests.iter().map(|of| (of.session.0, of.seq)).collect());
        }
        all
    }

    const LARGE: usize = 1_000_000;

    /// A small write waited behind each large one that another session had outstanding: 26 ms instead of 0.2.
    #[test]
    fn small_requests_of_other_sessions_pass_large_ones() {
        let (mut admission, machine) = many();
        for seq in 1..=4 {
            admission.admit(of(1, seq, LARGE), &machine);
        }
        assert_eq!(propose(&mut admission, &machine, 10).len(), 4, "nobody waits behind them");
        admission.admit(of(2, 1, 100), &machine);
        for seq in 5..=8 {
            admission.admit(of(1, seq, LARGE), &machine);
        }
        assert_eq!(propose(&mut admission, &machine, 14), [[(2, 1)]]);
        admission.committed(12);
        assert!(propose(&mut admission, &machine, 15).is_empty(), "one of them is not committed");
        admission.committed(14);
        admission.admit(of(2, 2, 100), &machine);
        assert_eq!(propose(&mut admission, &machine, 15), [[(2, 2)], [(1, 5)]]);
        admission.admit(of(3, 1, 100), &machine);
        assert_eq!(propose(&mut admission, &machine, 17), [[(3, 1)]]);
    }

    #[test]
    fn a_session_keeps_its_order_among_large_and_small_requests() {
        let (mut admission, machine) = many();
        admission.admit(of(1, 1, LARGE), &machine);
        admission.admit(of(2, 1, 100), &machine);
        for (seq, bytes) in [(2, 100), (3, LARGE), (4, 100), (5, 100)] {
            admission.admit(of(1, seq, bytes), &machine);
        }
        admission.admit(of(2, 2, 100), &machine);
        let (mut all, mut from) = (Vec::new(), 10);
        while all.len() < 7 {
            let batches = propose(&mut admission, &machine, from);
            assert!(!batches.is_empty(), "after {all:?}");
            from += batches.len() as u64;
            all.extend(batches.into_iter().flatten());
            admission.committed(from - 1);
        }
        assert_eq!(all, [(2, 1), (2, 2), (1, 1), (1, 2), (1, 3), (1, 4), (1, 5)]);
        // The queue is empty, so its small requests are like others again.
        admission.admit(of(1, 6, 100), &machine);
        assert_eq!(admission.queue.len(), 1);
        assert!(admission.large.sessions.is_empty());
    }

    /// However many small requests there are, and also while Raft takes few entries.
    #[test]
    fn a_large_request_is_passed_by_a_bounded_number_of_bytes() {
        let (mut admission, machine) = many();
        admission.admit(of(1, 1, LARGE), &machine);
        let mut passed = 0;
        for seq in 1.. {
            admission.admit(of(2, 2 * seq - 1, 40_000), &machine);
            admission.admit(of(2, 2 * seq, 40_000), &machine);
            let batch = admission.next_batch(1, &machine).unwrap();
            if batch.requests[0].session.0 == 1 {
                break;
            }
            passed += batch.requests[0].command.size();
            assert!(passed < PASSING_BYTES_MAX + 2 * BATCH_BYTES_MAX);
            // Raft refuses every other one.
            if seq % 2 == 0 {
                admission.put_back(batch);
            }
        }
        assert!(passed >= PASSING_BYTES_MAX);
    }

    #[test]
    fn a_refused_batch_is_the_next_one_again() {
        let (mut admission, machine) = many();
        admission.admit(of(1, 1, LARGE), &machine);
        let batch = admission.next_batch(1, &machine).unwrap();
        let bytes = admission.bytes;
        admission.put_back(batch.clone());
        assert!(admission.bytes > bytes);
        admission.admit(of(1, 2, 100), &machine);
        assert_eq!(propose(&mut admission, &machine, 10), [[(1, 1)], [(1, 2)]]);
        assert_eq!(admission.bytes, 0);
    }
}
