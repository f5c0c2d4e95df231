//! Failures of a peer's connection: the next attempt, and the report to the node.

use std::net::SocketAddr;

use super::{DialledPeer, Link, Target};
use crate::transport::TransportEvent;
use crate::transport::tcp::driver::Context;
use crate::transport::tcp::failure::{Failure, FailureKind};
use crate::transport::tcp::outgoing_connection::Phase;

/// After a refusal, the next attempt waits this many times the longest pause.
const REFUSED_PAUSES: u32 = 5;

impl DialledPeer {
    /// Closes the connection, reports why, and sets the time of the next attempt. Returns whether
    /// it had been up for long.
    pub(in crate::transport::tcp) fn fail(
        &mut self,
        context: &mut Context,
        failure: &Failure,
    ) -> bool {
        let up_since = match &self.link {
            Link::Open(connection) => match connection.phase {
                Phase::Up { since } => Some(since),
                Phase::Connecting | Phase::Greeting => None,
            },
            Link::Waiting | Link::Resolving => None,
        };
        self.disconnect(context);
        self.lowered_to = None;
        // A peer that welcomes this node only to close the connection does not reset the pause.
        let lasted = up_since.is_some_and(|since| context.now >= since + context.options.retry_max);
        if lasted {
            self.failures = 0;
        }
        self.is_elsewhere |= failure.is_elsewhere();
        let long = context.options.retry_max.saturating_mul(REFUSED_PAUSES);
        let pause = self.pause(context);
        let pause = match failure.kind {
            FailureKind::Passing => Some(pause),
            FailureKind::Permanent | FailureKind::Elsewhere => Some(long),
            // A name may stand for another node later.
            FailureKind::Itself => self.address.parse::<SocketAddr>().is_err().then_some(long),
        };
        self.arm(context, pause.map(|pause| context.now + pause));
        match failure.kind {
            FailureKind::Itself => tracing::debug!(address = self.address, "is this node itself"),
            FailureKind::Passing | FailureKind::Permanent | FailureKind::Elsewhere => {
                self.report(context, failure)
            }
        }
        lasted
    }

    /// Reports that the peer is given up, unless it is reported as unreachable already.
    pub(in crate::transport::tcp) fn give_up(&mut self, context: &mut Context, reason: &str) {
        self.disconnect(context);
        if self.reported.is_none() {
            self.report(context, &Failure::passing(reason));
        }
    }

    pub(super) fn report(&mut self, context: &mut Context, failure: &Failure) {
        let permanent = failure.kind != FailureKind::Passing;
        let starts = self.starts_until.is_some_and(|until| context.now < until);
        let warns = permanent || !starts;
        let is_known = self.reported.as_ref() == Some(&failure.reason);
        if is_known && (self.is_warned_of || !warns) {
            return;
        }
        let reason = failure.reason.clone();
        let address = self.address.clone();
        let peer = match self.target {
            Target::Node(peer) => Some(peer),
            Target::Seed(_) => None,
        };
        if warns {
            tracing::warn!(peer, address, reason, "unreachable");
        } else {
            tracing::info!(peer, address, reason, "not reached yet");
        }
        self.is_warned_of = warns;
        if is_known {
            return;
        }
        self.reported = Some(reason.clone());
        context.emit(match peer {
            Some(peer) => TransportEvent::Unreachable { peer, reason, permanent },
            None => TransportEvent::SeedUnreachable { address, reason, permanent },
        });
    }
}
