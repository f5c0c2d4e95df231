//! Whether an instance is ready, and how many failures its cluster tolerates.

use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_channel::Receiver;
use once_cell::sync::OnceCell;

use crate::addressing::listening::NotListening;
use crate::node::io::NodeStatus;
use crate::runtime::availability::Subscribers;
use crate::runtime::clock::Clock;
use crate::runtime::cluster::KnownCluster;
use crate::runtime::directory::DataDirectory;
use crate::runtime::end::NodeEnd;
use crate::sync::wakers::Wakers;
use crate::types::availability::Availability;
use crate::types::error::Error;
use crate::types::reason::{Reason, ReasonKind};

/// The node's status, and what only its host knows.
pub(crate) struct Readiness {
    status: Mutex<NodeStatus>,
    subscribers: Subscribers,
    pub(crate) not_listening: NotListening,
    /// The member's data directory, if it is on a disk.
    directory: OnceCell<Arc<DataDirectory>>,
    clock: Clock,
    end: Arc<NodeEnd>,
    cluster: Arc<KnownCluster>,
}

impl Readiness {
    pub(super) fn new(
        status: NodeStatus,
        clock: Clock,
        end: Arc<NodeEnd>,
        cluster: Arc<KnownCluster>,
    ) -> Readiness {
        Readiness {
            status: Mutex::new(status),
            subscribers: Subscribers::default(),
            not_listening: NotListening::default(),
            directory: OnceCell::new(),
            clock,
            end,
            cluster,
        }
    }

    pub(crate) fn status(&self) -> NodeStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the status, and reports the availability if it has changed.
    pub(super) fn publish(&self, status: NodeStatus) {
        let availability = self.availability_in(&status);
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
        self.subscribers.notify(&availability);
    }

    /// The availability and its changes, and the tasks to wake after one.
    pub(crate) fn subscribe(&self) -> (Receiver<Availability>, Arc<Wakers>) {
        (self.subscribers.add(&self.availability()), self.subscribers.waiting())
    }

    /// No change will follow.
    pub(super) fn end_changes(&self) {
        self.subscribers.end();
    }

    /// Sets the member's data directory; a client has none.
    pub(crate) fn set_directory(&self, directory: Option<Arc<DataDirectory>>) {
        if let Some(directory) = directory {
            let _ = self.directory.set(directory);
        }
    }

    pub(crate) fn directory(&self) -> Option<&DataDirectory> {
        self.directory.get().map(Arc::as_ref)
    }

    /// How many more failures the cluster tolerates.
    pub(crate) fn availability(&self) -> Availability {
        self.availability_in(&self.status())
    }

    /// How many more failures the cluster tolerates by this status.
    fn availability_in(&self, status: &NodeStatus) -> Availability {
        if let Some(reason) = self.stop_reason() {
            return Availability::NoQuorum { reason };
        }
        let address = |node| self.cluster.address(node).unwrap_or_else(|| "a peer".to_owned());
        let no_leader =
            || self.with_host(status.no_leader(|node| self.cluster.address(node)), status);
        Availability::of(&status.availability, address, no_leader)
    }

    /// Why this instance is not ready; `None` if it is.
    pub(crate) fn not_ready(&self) -> Option<Reason> {
        self.stop_reason().or_else(|| {
            let status = self.status();
            let reason = status.not_ready(self.clock.now(), |node| self.cluster.address(node))?;
            Some(self.with_host(reason, &status))
        })
    }

    fn stop_reason(&self) -> Option<Reason> {
        let reason = self.end.reason()?;
        Some(Reason::new(ReasonKind::Stopped, format!("the node has stopped: {reason}")))
    }

    /// A node's reason, with what only its host knows.
    fn with_host(&self, mut reason: Reason, status: &NodeStatus) -> Reason {
        if let Some(not_listening) = self.not_listening.reason() {
            reason.text = format!("{not_listening}; {}", reason.text);
        }
        let Some(directory) = self.directory() else {
            return reason;
        };
        if let Some(damage) = directory.damage() {
            reason.kind = ReasonKind::Damaged;
            reason.text.push_str(&format!(
                "; the data directory {} is damaged ({damage}): nothing in it was changed, and it is \
                 put aside when a leader has admitted this instance as a new member; see \
                 docs/recovery.md",
                directory.path().display()
            ));
        }
        let former = directory.former();
        if status.leader.is_none() && !former.is_empty() {
            let former: Vec<String> = former.iter().map(|dir| dir.display().to_string()).collect();
            let former = format!("; former data of this instance is in {}", former.join(", "));
            reason.text.push_str(&former);
        }
        reason
    }

    /// A peer that refuses this node, if there is one.
    pub(crate) fn refusal(&self) -> Option<Error> {
        self.status().refusal(|node| self.cluster.address(node))
    }

    /// A description of what this node is waiting for.
    pub(crate) fn waiting_for(&self) -> String {
        let ready = || self.status().waiting_for(|node| self.cluster.address(node));
        self.not_ready().map_or_else(ready, |reason| reason.text)
    }
}
