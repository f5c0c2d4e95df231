//! How long nodes wait for each other before they act: multiples of the heartbeat.
//!
//! The simulator computes its time limits from these values too.

use std::time::Duration;

/// An election starts after this many heartbeats of silence, or up to `ELECTION_SPREAD` more.
pub(in crate::node) const ELECTION_TICKS: usize = 5;

/// How often a request to join or to leave is sent, and how long it holds without being repeated.
pub(in crate::node) const REQUEST_PERIOD: Duration = Duration::from_secs(1);
pub(crate) const REQUEST_TIME: Duration = Duration::from_secs(5);

/// The waits that follow from a heartbeat.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timings {
    heartbeat: Duration,
}

impl Timings {
    pub(crate) fn new(heartbeat: Duration) -> Timings {
        Timings { heartbeat }
    }

    /// The shortest election timeout. A learner that has stored the log up to its end at this time
    /// before now is level with it. A bound in entries would depend on how fast others write.
    pub(crate) fn election(self) -> Duration {
        self.heartbeat * ELECTION_TICKS as u32
    }

    /// How long a member may be silent and still count as alive, and how long a learner must be
    /// level with the log before it votes. A leader may be silent for as long: an election begins
    /// after half of this time, and usually takes at most the other half.
    pub(crate) fn patience(self) -> Duration {
        self.election() * 2
    }

    /// How long a leader may be unable to commit before it makes way, if others could.
    pub(crate) fn stuck(self) -> Duration {
        self.patience() * 5
    }

    /// A member answers if it has sent something within this time: it answers every second heartbeat.
    pub(crate) fn answer(self) -> Duration {
        self.heartbeat * 4
    }
}
