//! Reports that a peer or a seed cannot be reached: to the log, and to the handler.

use std::time::{Duration, Instant};

use super::context::{NetworkContext, Target};
use super::failure::{Failure, FailureKind};
use crate::transport::TransportEvent;
use crate::types::membership::Named;

/// For this long a peer may not have started yet, and no warning is logged about it.
const STARTS_WITHIN: Duration = Duration::from_secs(10);

/// The reports since the peer was last reached. A reason is reported once, not for each attempt that
/// fails for it.
#[derive(Debug, Default)]
pub(super) struct FailureReports {
    /// The reason last reported.
    reason: Option<String>,
    /// Whether the last report was a warning.
    is_warned_of: bool,
    /// Until then, the peer may not have started yet, and no warning is logged.
    starts_until: Option<Instant>,
}

impl FailureReports {
    /// The reports about a peer that is dialled from now on.
    pub(super) fn new(now: Instant) -> FailureReports {
        FailureReports { starts_until: Some(now + STARTS_WITHIN), ..FailureReports::default() }
    }

    /// Whether nothing was reported since the peer was last reached.
    pub(super) fn is_empty(&self) -> bool {
        self.reason.is_none()
    }

    /// The peer is reached.
    pub(super) fn reached(&mut self) {
        *self = FailureReports::default();
    }

    /// Reports why the peer is not reached, unless this reason was reported already.
    pub(super) fn add(
        &mut self,
        context: &mut NetworkContext,
        target: Target,
        address: &str,
        failure: &Failure,
    ) {
        // A node that is not there any more is at its new address soon, or replaced.
        let permanent = failure.kind == FailureKind::Permanent;
        let starts = self.starts_until.is_some_and(|until| context.now < until);
        let warns = permanent || !starts;
        let is_known = self.reason.as_ref() == Some(&failure.reason);
        if is_known && (self.is_warned_of || !warns) {
            return;
        }
        let (address, reason) = (address.to_owned(), failure.reason.clone());
        let peer = match target {
            Target::Node(peer) => Some(peer),
            Target::Seed(_) => None,
        };
        let shown = peer.map(|peer| tracing::field::display(Named::of(peer)));
        if warns {
            tracing::warn!(peer = shown, address, reason, "unreachable");
        } else {
            tracing::info!(peer = shown, address, reason, "not reached yet");
        }
        self.is_warned_of = warns;
        if is_known {
            return;
        }
        self.reason = Some(reason.clone());
        context.emit(match peer {
            Some(peer) => TransportEvent::Unreachable { peer, reason, permanent },
            None => TransportEvent::SeedUnreachable { address, reason, permanent },
        });
    }
}
