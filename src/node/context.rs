//! What all parts of a node need in a step, and all parts of a client.

use std::time::Duration;

use crate::node::config::NodeConfig;
use crate::node::io::{Effects, Now};
use crate::node::message::PeerMessage;
use crate::types::membership::NodeId;
use crate::types::metrics::Metrics;

/// Who the node is, what it is set to, the time of the step, and where the parts put what must be done.
#[derive(Debug)]
pub(in crate::node) struct Context<C = NodeConfig> {
    pub(in crate::node) id: NodeId,
    pub(in crate::node) config: C,
    pub(in crate::node) now: Now,
    pub(in crate::node) effects: Effects,
    pub(in crate::node) metrics: Metrics,
    /// Why the node has stopped for good.
    pub(in crate::node) stopped: Option<String>,
}

impl Context {
    /// See [`Timings::patience`](super::timings::Timings::patience).
    pub(in crate::node) fn patience(&self) -> Duration {
        self.config.timings().patience()
    }
}

impl<C> Context<C> {
    pub(in crate::node) fn new(id: NodeId, config: C, now: Now) -> Context<C> {
        let (effects, metrics) = (Effects::default(), Metrics::default());
        Context { id, config, now, effects, metrics, stopped: None }
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
