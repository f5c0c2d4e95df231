//! Which clients are served: it depends on whether this instance has a quorum.
//!
//! Without a quorum no session is kept alive here, however often its client pings. A client that stays would
//! lose its session, while another instance could keep it. So after a tick, all clients are disconnected, and
//! new ones are refused, or read on their own with [`read_only_mode`](super::GatewayBuilder::read_only_mode).
//! A shorter loss, such as an election, disconnects nobody.
//!
//! There is a quorum while messages of a leader arrive, since a leader that a majority does not answer steps down. A
//! majority whose disks are stuck or full stores no write, but keeps sessions alive: clients stay.
//!
//! Source: ZooKeeper, where a server closes its connections when it follows no leader for `syncLimit` ticks.

use crate::api::support::NodeShared;
use std::time::Duration;

/// What an instance does for its clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Service {
    /// Requests go to the node, which answers them or waits for a quorum.
    #[default]
    Full,
    /// Clients that allow it read the replica: see `read_only`.
    ReadOnly,
    /// Nobody is served.
    Refused,
}

/// Whether there is a quorum.
#[derive(Debug, Default)]
pub(super) struct Quorum {
    missing_since: Option<Duration>,
    service: Service,
}

impl Quorum {
    pub(super) fn service(&self) -> Service {
        self.service
    }

    /// Called regularly. Returns whether the service has changed, so that no client may stay connected.
    pub(super) fn look(&mut self, shared: &NodeShared, reads_alone: bool, now: Duration) -> bool {
        let missing = !shared.readiness.status().availability.has_leader;
        self.missing_since = missing.then(|| self.missing_since.unwrap_or(now));
        let since = |since: Duration| now.saturating_sub(since) >= shared.limits.tick;
        // A replica without any state cannot serve reads.
        let has_state = shared.has_replica && shared.tree().zxid() > 0;
        let service = match self.missing_since.is_some_and(since) {
            false => Service::Full,
            true if reads_alone && has_state => Service::ReadOnly,
            true => Service::Refused,
        };
        let changed = std::mem::replace(&mut self.service, service) != service;
        if !changed {
            return false;
        }
        let reason = shared.readiness.availability();
        match service {
            Service::Full => tracing::info!("the gateway serves reads and writes"),
            Service::ReadOnly => tracing::warn!(%reason, "the gateway serves reads alone"),
            Service::Refused => {
                tracing::warn!(%reason, "the gateway disconnects its clients, and refuses others");
            }
        }
        true
    }
}
