//! How long nodes wait for each other before they act: multiples of the heartbeat.
//!
//! What must happen within a time, in the simulator, is computed from these values too.

use std::time::Duration;

use super::raft::elections::ELECTION_TICKS;

/// The waits that follow from a heartbeat.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timings {
    heartbeat: Duration,
}

impl Timings {
    pub(crate) fn new(heartbeat: Duration) -> Timings {
        Timings { heartbeat }
    }

    /// The shortest election timeout. A learner that has stored what was the end of the log so long ago
    /// is level with it: a bound in entries would depend on how fast others write.
    pub(crate) fn election(self) -> Duration {
        self.heartbeat * ELECTION_TICKS as u32
    }

    /// How long a member may be silent and still count as alive, and how long a learner must be
    /// level with the log before it votes. A leader may be silent as long: an election begins
    /// after half of this time, and takes the other half at most in the usual case.
    pub(crate) fn patience(self) -> Duration {
        self.election() * 2
    }

    /// How long a leader may be unable to commit before it makes way, if others could.
    pub(crate) fn stuck(self) -> Duration {
        self.patience() * 5
    }

    /// How long ago a member that answers has sent something, at the most.
    pub(crate) fn answer(self) -> Duration {
        self.heartbeat * 3
    }
}
