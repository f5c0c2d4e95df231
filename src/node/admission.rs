//! The leader's door: which requests of sessions are proposed, each once and in order.
//!
//! The machine alone decides what a request does, and it does nothing for one
//! that comes twice or too early. This filter only keeps those out of the log,
//! where they would cost a write each: requests are resent in bulk whenever a
//! leader or a connection changes. What is turned away here is sent again by
//! its node until that node has seen its outcome in the log.

use std::collections::{BTreeMap, VecDeque};

use crate::machine::Machine;
use crate::machine::command::{Batch, Command, Op, Request};
use crate::planted::{Bug, planted};
use crate::znode::SessionId;

/// The most requests, and about the most bytes, of one entry.
const BATCH_REQUESTS_MAX: usize = 1024;
const BATCH_BYTES_MAX: usize = 48 << 10;
/// About the most bytes that may wait here while Raft takes no more.
const QUEUE_BYTES_MAX: usize = 64 << 20;

#[derive(Debug, Default)]
pub(crate) struct Admission {
    /// Of each session with a request proposed in this term: its holder and the last one's number.
    proposed: BTreeMap<SessionId, (u64, u64)>,
    queue: VecDeque<Request>,
    /// About the bytes in it, expiries aside.
    bytes: usize,
}

impl Admission {
    /// Starts anew, as the leader of another term or no leader any more.
    pub(crate) fn reset(&mut self) {
        self.proposed.clear();
        self.queue.clear();
        self.bytes = 0;
    }

    /// The session is closed.
    pub(crate) fn forget(&mut self, session: SessionId) {
        self.proposed.remove(&session);
    }

    /// Takes a request in, unless it is in the log already or an earlier one is missing.
    pub(crate) fn admit(&mut self, request: Request, machine: &Machine) {
        if let Command::Expire { .. } = request.command {
            self.queue.push_back(request);
            return;
        }
        // These are the machine's to make, which the door mostly keeps from being asked twice.
        if planted(Bug::RunAgain) || planted(Bug::OrderIgnored) || planted(Bug::EndedSessionReopens)
        {
            self.queue.push_back(request);
            return;
        }
        // Sent again in a while.
        let size = size(&request.command);
        if self.bytes > 0 && self.bytes + size > QUEUE_BYTES_MAX {
            return;
        }
        let last = self.proposed.get(&request.session).copied().or_else(|| {
            let record = machine.session(request.session)?;
            Some((record.holder, record.last_seq))
        });
        let held = last.filter(|(holder, _)| *holder == request.holder);
        let next = match held {
            Some((_, seq)) => seq + 1,
            // A session not known yet, or with another holder, begins with its open or resume. If
            // it is gone instead, its node sees that in the log; a former holder has seen that it
            // is one.
            None => 0,
        };
        let late =
            || machine.session(request.session).is_some_and(|it| it.was_held_by(request.holder));
        if request.seq == next && !late() {
            self.proposed.insert(request.session, (request.holder, request.seq));
            self.bytes += size;
            self.queue.push_back(request);
        }
    }

    /// The next batch to propose, stamped with `time`.
    pub(crate) fn next_batch(&mut self, time: u64) -> Option<Batch> {
        let mut bytes = 0;
        let mut count = 0;
        for request in self.queue.iter().take(BATCH_REQUESTS_MAX) {
            bytes += size(&request.command);
            if count > 0 && bytes > BATCH_BYTES_MAX {
                bytes -= size(&request.command);
                break;
            }
            count += 1;
        }
        self.bytes = self.bytes.saturating_sub(bytes);
        (count > 0).then(|| Batch { time, requests: self.queue.drain(..count).collect() })
    }

    /// Raft did not take the batch: it is the next again.
    pub(crate) fn put_back(&mut self, batch: Batch) {
        for request in batch.requests.into_iter().rev() {
            self.bytes += size(&request.command);
            self.queue.push_front(request);
        }
    }
}

/// About the bytes that a request of this command takes in the log.
pub(crate) fn size(command: &Command) -> usize {
    const OVERHEAD: usize = 40;
    let of = |op: &Op| {
        op.path().len()
            + match op {
                Op::Create { data, .. } | Op::Set { data, .. } => data.len() + 16,
                Op::Delete { .. } | Op::Check { .. } => 16,
            }
    };
    OVERHEAD
        + match command {
            Command::Op(op) => of(op),
            Command::Multi(ops) => ops.iter().map(of).sum(),
            Command::Open { .. }
            | Command::Resume { .. }
            | Command::Close
            | Command::Expire { .. } => 32,
        }
}
