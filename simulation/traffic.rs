//! The messages of a world. They go through the real codec.

use std::fmt;

use xxhash_rust::xxh3::xxh3_64;

use super::checks::{Checks, Violation, durability, require, versions};
use super::clock::SECOND;
use super::costs;
use super::faults::Fault;
use super::kernel::Phase;
use super::surroundings;
use super::world::{Delivery, Event, World};
use crate::node::io::Input;
use crate::node::message::{MESSAGE_BYTES_MAX, PeerMessage};
use crate::types::membership::NodeId;

impl World {
    /// Sends a message of a node that belongs to this cluster.
    pub(super) fn send(&mut self, from: usize, cluster: u64, to: NodeId, message: &PeerMessage) {
        let nodes = (self.node_at(from).0, to);
        if let Some(process) = self.processes.get(from) {
            let checked = durability::sending(message, nodes.0, to, &process.durable.condition());
            self.kernel.check(checked);
            let mut checks = self.kernel.checks.borrow_mut();
            let Checks { promises, oracle, .. } = &mut *checks;
            let checked = promises.sending(nodes.0, to, message, oracle);
            drop(checks);
            self.kernel.check(checked);
        }
        let Some(to) = self.place_of_any(to) else {
            return;
        };
        let (_, epoch, runs) = self.node_at(to);
        if !runs || !self.network.is_open(from, to) {
            return;
        }
        if message.is_of_cluster() && cluster == 0 {
            return;
        }
        if let Some(process) = self.processes.get(to) {
            self.kernel.check(versions::sending(message, process));
        }
        let link_random = self.random_of_link(from, to);
        let rates = &self.kernel.plan.rates;
        let chaos = self.kernel.phase.get() == Phase::Chaos;
        let strikes = |fault| {
            let strikes = chaos && link_random.chance(rates.of(fault));
            if strikes {
                self.kernel.count_fault(fault);
            }
            strikes
        };
        if strikes(Fault::Loss) {
            self.kernel.trace.log(format_args!("from {from} to {to}: lost: {}", Summary(message)));
            return;
        }
        let copies = 1 + usize::from(strikes(Fault::Duplicate));
        let spike = if strikes(Fault::DelaySpike) { link_random.around(SECOND) } else { 0 };
        let overtakes = strikes(Fault::Reorder);
        let bytes = message.encode(Vec::with_capacity(64));
        // A transport drops it, and each copy that is sent again.
        let fits = bytes.len() <= MESSAGE_BYTES_MAX;
        self.kernel.check(require(fits, "no message is too long", || {
            format!("{} bytes from {from} to {to}: {}", bytes.len(), Summary(message))
        }));
        if let Some(sent) = self.sent.get_mut(from) {
            sent.note(self.kernel.plan.is_client(to), message, bytes.len());
        }
        let costs = self.kernel.plan.costs;
        if costs.is_some() {
            self.charge(from, costs::message(message, bytes.len()));
        }
        let leaves = self.processes.get(from).map_or(0, |process| process.busy_until);
        let leaves = self.now().max(leaves);
        // Without costs, a link takes no time, so no message waits that an urgent one could
        // overtake.
        let urgent = costs.is_some() && surroundings::is_urgent(message);
        for _ in 0..copies {
            let sent = costs.map_or(leaves, |costs| {
                self.network.transmit((from, to), urgent, leaves, costs.on_link(bytes.len()))
            });
            let link_random = self.random_of_link(from, to);
            let half = self.kernel.plan.latency / 2;
            let latency = half + link_random.around(half);
            let mut at = sent + latency + spike;
            if overtakes {
                at += link_random.around(self.kernel.plan.latency * 10);
            } else {
                at = self.network.in_order(from, to, urgent, at);
            }
            if spike >= self.patience() / 4 {
                // Later messages wait behind it, so the sender seems silent.
                let until = self.late_until.entry(nodes.0).or_default();
                *until = at.max(*until);
            }
            let bytes = bytes.clone();
            let places = (from, to);
            self.schedule(at, Event::Deliver(Delivery { places, nodes, cluster, epoch, bytes }));
        }
    }

    pub(super) fn deliver(&mut self, delivery: &Delivery) {
        let Delivery { places: (from, to), nodes, cluster, epoch, ref bytes } = *delivery;
        // A connection ends with either process, and its messages are lost. Where messages overtake
        // each other, one may also arrive in a later connection.
        let late = self.kernel.plan.rates.of(Fault::Reorder) > 0;
        let (node, now_epoch, _) = self.node_at(to);
        if !self.network.is_open(from, to) || (now_epoch != epoch && !late) || node != nodes.1 {
            return;
        }
        let mut message = match PeerMessage::decode(surroundings::arriving(bytes)) {
            Ok(message) => message,
            Err(reason) => {
                return self.kernel.fail(Violation::new("messages decode", reason));
            }
        };
        self.kernel.trace.note([8, (from * 16 + to) as u64, xxh3_64(bytes)]);
        self.kernel.trace.log(format_args!("from {from} to {to}: {}", Summary(&message)));
        if self.kernel.plan.is_client(to) {
            return self.deliver_to_client(to, nodes.0, message);
        }
        if let Some(life) = &mut self.processes[to].life
            && (!message.is_of_cluster() || life.host.node().cluster() == cluster)
        {
            surroundings::alter(&mut message);
            surroundings::renumber(life.host.node(), &mut message);
            let from = surroundings::sender(life.host.node(), nodes.0, &message);
            life.owed += costs::message(&message, bytes.len()) + surroundings::extra_step_time();
            life.host.input(Input::Peer { from, message });
            self.schedule_step(to);
        }
    }
}

/// The summary of a message.
struct Summary<'a>(&'a PeerMessage);

impl fmt::Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 200;
        let words = format!("{:?}", self.0);
        match words.char_indices().nth(SHOWN) {
            Some((end, _)) => write!(f, "{}...", &words[..end]),
            None => f.write_str(&words),
        }
    }
}
