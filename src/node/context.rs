//! What all parts of a node need in a step.

use std::time::Duration;

use crate::node::config::NodeConfig;
use crate::node::io::{Effects, Now};
use crate::node::message::PeerMessage;
use crate::types::membership::NodeId;
use crate::types::metrics::Metrics;

/// Who the node is, what it is set to, the time of the step, and where the parts put what must be done.
#[derive(Debug)]
pub(in crate::node) struct Context {
    pub(in crate::node) id: NodeId,
    pub(in crate::node) config: NodeConfig,
    pub(in crate::node) now: Now,
    pub(in crate::node) effects: Effects,
    pub(in crate::node) metrics: Metrics,
    /// Why the node has stopped for good.
    pub(in crate::node) stopped: Option<String>,
}

impl Context {
    pub(in crate::node) fn new(id: NodeId, config: NodeConfig, now: Now) -> Context {
        let (effects, metrics) = (Effects::default(), Metrics::default());
        Context { id, config, now, effects, metrics, stopped: None }
    }

    /// See [`Timings::patience`](super::timings::Timings::patience).
    pub(in crate::node) fn patience(&self) -> Duration {
        self.config.timings().patience()
    }

    pub(in crate::node) fn send(&mut self, to: NodeId, message: PeerMessage) {
        self.effects.messages.push((to, message));
    }

    pub(in crate::node) fn send_all(
        &mut self,
        to: impl Iterator<Item = NodeId>,
        message: &PeerMessage,
    ) {
        self.effects.messages.extend(to.map(|peer| (peer, message.clone())));
    }
}
