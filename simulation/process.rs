//! One place of the cluster: a disk and clocks, which persist, and a process, which stops and
//! starts.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use crossbeam_channel::Receiver;

use super::clock::{Nanos, NodeClock, SECOND};
use super::damages::Damage;
use super::disk_threads::DiskThreads;
use super::durable::Durable;
use super::members::CAPACITY;
use super::surroundings::LateEvents;
use crate::node::stored::Identity;
use crate::runtime::directory::DataDirectory;
use crate::runtime::disk_watch::DiskWatch;
use crate::runtime::host::Host;
use crate::runtime::inbox::HostMessage;
use crate::storage::simulated::Device;
use crate::types::membership::{Member, NodeId};

/// A place for a node.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) device: Device,
    /// The identity that a blank disk gets at its first start.
    pub(crate) unused: Option<Identity>,
    /// The member that runs from its disk, or ran last, with its address.
    pub(crate) member: Member,
    /// The member to which its data directory belongs: another one while the directory is damaged.
    pub(crate) owner: NodeId,
    /// What is durable of `member`.
    pub(crate) durable: Durable,
    pub(crate) is_full: bool,
    /// Until when a trouble of its disk is a reason to stop.
    pub(crate) excused_until: Nanos,
    /// How its disk may be damaged.
    pub(crate) damage: Option<Damage>,
    pub(crate) clock: Arc<NodeClock>,
    pub(crate) life: Option<Box<Life>>,
    /// The number of its starts, so that an event for an earlier start does not reach a later one.
    pub(crate) epoch: u64,
    /// The directories that were put aside and still exist.
    pub(crate) former: Vec<Former>,
    /// The version that it supports since its last start.
    pub(crate) version: u16,
    /// When it last went back to an older build.
    pub(crate) lowered_at: Option<Nanos>,
    pub(crate) paused_until: Nanos,
    pub(crate) slow_until: Nanos,
    pub(crate) slow_disk_until: Nanos,
    /// The extra time of each sync until then. 0: about a second.
    pub(crate) slow_disk_by: Nanos,
    /// Until when its node's thread is busy with the last step.
    pub(crate) busy_until: Nanos,
    /// Whether a start is scheduled.
    pub(crate) starting: bool,
}

impl Process {
    /// Its node may stop because of its disk until then, and as long after as the node needs to notice.
    pub(crate) fn excuse(&mut self, until: Nanos) {
        self.excused_until = self.excused_until.max(until + 30 * SECOND);
    }

    /// The disk has room again, and files can be opened.
    pub(crate) fn has_room(&mut self) {
        self.is_full = false;
        self.device.set_capacity(Some(CAPACITY));
        self.device.set_descriptors(None);
    }
}

/// A directory that was put aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Former {
    pub(crate) path: PathBuf,
    pub(crate) node: NodeId,
    /// Whether the cluster has removed its member.
    pub(crate) removed: bool,
}

/// A running process.
pub(crate) struct Life {
    pub(crate) host: Host,
    pub(crate) calls: Receiver<HostMessage>,
    pub(crate) disk: DiskThreads,
    /// When its disk's threads are looked at again, if nothing happens before.
    pub(super) disk_due: Nanos,
    pub(crate) directory: Arc<DataDirectory>,
    /// The bytes of the log that its start has read into memory; 0 once fewer are there than may stay.
    pub(crate) read_log_bytes: u64,
    /// Whether it runs as a new member beside a damaged directory.
    pub(crate) is_provisional: bool,
    /// When its next step is due.
    pub(crate) step_at: Nanos,
    /// How long that step takes for its waiting inputs: see [`costs`](super::costs).
    pub(crate) owed: Nanos,
    pub(super) disk_watch: DiskWatch,
    /// Whether it was asked to leave.
    pub(crate) leaving: bool,
    /// Its connections, by the places of the peers.
    pub(crate) connected: BTreeMap<usize, NodeId>,
    /// The members that its node last wanted to be connected to.
    pub(crate) members: Option<Arc<Vec<Member>>>,
    /// Whether it was asked to close.
    pub(crate) closing: bool,
    /// See [`surroundings`](super::surroundings).
    pub(super) late_events: LateEvents,
}

impl std::fmt::Debug for Life {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Life").field("node", self.host.node()).finish_non_exhaustive()
    }
}

impl Life {
    pub(crate) fn new(host: Host, disk: DiskThreads, directory: Arc<DataDirectory>) -> Life {
        let calls = host.calls();
        let is_provisional = directory.damage().is_some();
        let read_log_bytes = host.node().log_bytes();
        Life {
            host,
            calls,
            disk,
            disk_due: 0,
            directory,
            read_log_bytes,
            is_provisional,
            step_at: Nanos::MAX,
            owed: 0,
            disk_watch: DiskWatch::default(),
            leaving: false,
            connected: BTreeMap::new(),
            members: None,
            closing: false,
            late_events: LateEvents::new(),
        }
    }
}
