//! Which requests the leader proposes: each request once, and those of a session in order.
//!
//! The state machine alone decides what a request does, and it ignores one that comes twice or too
//! early. This filter keeps such requests out of the log, where each would cost a write: nodes send
//! requests again in bulk whenever the leader or a connection changes. A node sends a rejected
//! request again until it sees the outcome in the log.

use std::collections::{BTreeMap, VecDeque};

use crate::machine::Machine;
use crate::machine::command::{Batch, Command, Request};
use crate::types::version::is_above;
use crate::types::znode::SessionId;

/// The most requests, and about the most bytes, of one entry.
const BATCH_REQUESTS_MAX: usize = 1024;
const BATCH_BYTES_MAX: usize = 48 << 10;
/// About how many bytes may wait here while Raft takes no proposals.
const QUEUE_BYTES_MAX: usize = 64 << 20;

#[derive(Debug, Default)]
pub(crate) struct Admission {
    /// For each session with a request proposed in this term: its holder, and the number of its
    /// last request.
    proposed: BTreeMap<SessionId, (u64, u64)>,
    queue: VecDeque<Request>,
    /// About the bytes in the queue, without expiries.
    bytes: usize,
    /// The cluster's version once the entries of this term are applied, if one of them raises it.
    raised_to: u16,
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
            self.queue.push_back(request);
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
        if self.bytes > 0 && self.bytes + size > QUEUE_BYTES_MAX {
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
        let skips = request.seq > next && planted!(OrderIgnored);
        let repeats = request.seq < next && planted!(RunAgain);
        if (request.seq == next || skips || repeats) && !late() {
            self.proposed.insert(request.session, (request.holder, request.seq));
            self.bytes += size;
            self.queue.push_back(request);
        }
    }

    /// The next batch to propose, stamped with `time`. A request that may delete very many znodes
    /// gets a batch of its own, so that replicas can prepare it.
    pub(crate) fn next_batch(&mut self, time: u64, machine: &Machine) -> Option<Batch> {
        let mut bytes = 0;
        let mut count = 0;
        for request in self.queue.iter().take(BATCH_REQUESTS_MAX) {
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
        self.bytes = self.bytes.saturating_sub(bytes);
        (count > 0).then(|| Batch { time, requests: self.queue.drain(..count).collect() })
    }

    /// Raft did not take the batch: it becomes the next one again.
    pub(crate) fn put_back(&mut self, batch: Batch) {
        for request in batch.requests.into_iter().rev() {
            self.bytes += request.command.size();
            self.queue.push_front(request);
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
        let op = Op::Set { path: "/".to_owned(), data: "".into(), version: None };
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
}
