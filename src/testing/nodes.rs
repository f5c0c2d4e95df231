//! The thread of an in-memory cluster: it hosts all nodes and delivers their messages.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Select, TryRecvError};

use super::Order;
use super::faults::{NodeTime, disk_space};
use super::idle::Quiet;
use super::links::{Letter, Links};
use crate::api::builder::Builder;
use crate::machine::State;
use crate::machine::snapshot::ChunkWriter;
use crate::node::bootstrap::genesis::nothing;
use crate::node::client::{Client, ClientConfig};
use crate::node::io::{Dial, Input, Now, Problem, Time};
use crate::node::stored::{HardState, Identity, SnapshotMeta};
use crate::node::{LogLimits, NodeConfig};
use crate::runtime::clock::{Clock, TimeSource};
use crate::runtime::disk::InlineDisk;
use crate::runtime::engine::Engine;
use crate::runtime::host::Host;
use crate::runtime::inbox::HostMessage;
use crate::runtime::shared::{Limits, NodeShared};
use crate::runtime::{boot, entropy, own_thread};
use crate::storage::{LogStore, MemoryDisk, StorageError};
use crate::types::acl::Id;
use crate::types::error::Result;
use crate::types::membership::{Genesis, Member};
use crate::types::znode::SessionId;

/// Calls are taken for so many rounds before everything in flight is finished.
const CALL_ROUNDS_MAX: u32 = 100;

pub(crate) struct Nodes {
    /// The cluster's id.
    cluster: u64,
    pub(super) slots: Vec<NodeSlot>,
    pub(super) settings: Builder,
    pub(super) clock: Clock,
    /// By index.
    members: Vec<Member>,
    next_id: u64,
    pub(super) links: Links,
    pub(super) quiet: Quiet,
}

/// The slot of a node, which stays when the node is restarted.
pub(super) struct NodeSlot {
    /// `None` for a client.
    disk: Option<MemoryDisk>,
    pub(super) running: Option<RunningNode>,
    /// The version that its node supports, from its next start on.
    version: u16,
    pub(super) clock: Arc<NodeTime>,
    pub(super) is_frozen: bool,
    pub(super) is_full: bool,
}

pub(super) struct RunningNode {
    pub(super) host: Host,
    disk: Option<InlineDisk>,
    calls: Receiver<HostMessage>,
    wake_at: Time,
    /// The nodes with which a client wants to be connected; a member wants all.
    dial: Dial,
}

/// The id of a node's sessions in scheme `ip`.
fn address(node: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0A00_0001 + u32::try_from(node).unwrap_or(0))
}

/// A disk for this member's store, with this initial content.
fn disk(cluster: u64, member: &Member, start: &(HardState, SnapshotMeta, State)) -> MemoryDisk {
    let (hard_state, meta, state) = start;
    let identity = Identity {
        // All nodes know the cluster's id from the start.
        cluster,
        node: member.node,
        incarnation: member.node,
        address: member.address.clone(),
        uid: member.uid,
    };
    let disk = MemoryDisk::new();
    disk.open()
        .found(&identity, *hard_state, meta, &mut ChunkWriter::full(state.clone()))
        .expect("a new store in memory takes its founding");
    disk
}

impl Nodes {
    pub(crate) fn new(
        count: usize,
        settings: Builder,
        clock: Clock,
    ) -> (Nodes, Vec<Arc<NodeShared>>) {
        let members = (1..=count as u64).map(|id| Member::new(id, format!("node-{}", id - 1)));
        // As in reality, no other cluster has it.
        let cluster = entropy::number().unwrap_or(1).max(1);
        let founding = Genesis { cluster, members: members.collect() };
        let mut nodes = Nodes {
            cluster,
            slots: Vec::new(),
            settings,
            quiet: Quiet::new(clock.now()),
            clock,
            members: Vec::new(),
            next_id: count as u64 + 1,
            links: Links::default(),
        };
        for member in &founding.members {
            let disk = disk(cluster, member, &founding.start());
            nodes.add_slot(member.clone(), Some(disk));
        }
        let shared = (0..count)
            .map(|node| nodes.start(node).expect("a store in memory keeps what it was given"))
            .collect();
        (nodes, shared)
    }

    fn now(&self, node: usize) -> Now {
        Now { mono: self.clock.now(), wall_ms: self.slots[node].clock.wall_ms() }
    }

    fn start(&mut self, node: usize) -> std::result::Result<Arc<NodeShared>, StorageError> {
        let Some(disk) = &self.slots[node].disk else {
            return Ok(self.start_client(node));
        };
        let mut store = disk.open();
        let seed = entropy::number().unwrap_or(node as u64);
        let config = NodeConfig {
            audit: self.settings.audit,
            timeouts: self.settings.timeouts(),
            container_period: self.settings.container_period,
            version: self.slots[node].version,
            // The log is in memory, too.
            log: LogLimits {
                retained_bytes_min: 4 << 20,
                retained_bytes_max: 4 << 20,
                catch_up_bytes: 64 << 20,
                ..LogLimits::default()
            },
            policy: self.settings.policy,
            ..NodeConfig::new(self.settings.heartbeat, self.settings.tick, seed)
        };
        let now = self.now(node);
        let booted = match boot(&mut store, config.clone(), now) {
            Err(StorageError::Removed { .. }) => {
                store = self.wipe(node).open();
                boot(&mut store, config, now)?
            }
            booted => booted?,
        };
        let disk = InlineDisk::new(Box::new(store), now.mono);
        Ok(self.run_at(node, booted, Some(disk)))
    }

    /// Each start of a client is a new client.
    fn start_client(&mut self, node: usize) -> Arc<NodeShared> {
        self.members[node].node = self.next_id;
        self.next_id += 1;
        let config = ClientConfig {
            audit: self.settings.audit,
            name: String::new(),
            heartbeat: self.settings.heartbeat,
            tick: self.settings.tick,
            timeouts: self.settings.timeouts(),
            version: self.slots[node].version,
            seed: entropy::number().unwrap_or(node as u64),
        };
        let now = self.now(node);
        let client = Client::new(self.members[node].node, config, now);
        self.run_at(node, client, None)
    }

    fn run_at(
        &mut self,
        node: usize,
        engine: impl Into<Engine>,
        disk: Option<InlineDisk>,
    ) -> Arc<NodeShared> {
        let limits = Limits {
            pending_requests_max: self.settings.pending_requests_max,
            request_timeout: self.settings.request_timeout,
            session_timeout: self.settings.session_timeout,
            tick: self.settings.tick,
            timeouts: self.settings.timeouts(),
            watch_capacity: crate::types::watch::WATCH_CAPACITY,
        };
        let mut schemes = self.settings.schemes.clone();
        schemes.set_own([Id::new("ip", address(node).to_string())]);
        // A client receives these from the member that serves it.
        let gets_them = self.slots[node].disk.is_some();
        let places = self.members.iter().zip(&self.slots);
        let members = places.filter(|(_, seat)| gets_them && seat.disk.is_some());
        let members = members.map(|(member, _)| member.clone()).collect();
        let clock = Clock::new(Arc::<NodeTime>::clone(&self.slots[node].clock));
        let (mut host, shared) = Host::new(engine, clock, limits, members, schemes);
        shared.cluster.set_own_address(self.members[node].address.clone());
        shared.set_at_rest(self.settings.encryption.clone());
        shared.cluster.set_id(self.cluster);
        let calls = host.calls();
        self.slots[node].is_frozen = false;
        if self.slots[node].is_full {
            host.input(disk_space(true));
        }
        self.slots[node].running =
            Some(RunningNode { host, disk, calls, wake_at: Time::ZERO, dial: Dial::seeking() });
        for other in 0..self.slots.len() {
            self.meet(node, other);
            self.meet(other, node);
        }
        shared
    }

    /// From its next start on, the node has an empty disk and another id.
    fn wipe(&mut self, node: usize) -> &MemoryDisk {
        self.members[node].node = self.next_id;
        self.members[node].uid = self.next_id;
        self.next_id += 1;
        let disk = disk(self.cluster, &self.members[node], &nothing());
        self.slots[node].disk.insert(disk)
    }

    fn stop(&mut self, node: usize) {
        if let Some(mut running) = self.slots[node].running.take() {
            running.host.close();
        }
        for other in 0..self.slots.len() {
            self.meet(other, node);
        }
    }

    fn reaches(&self, one: usize, other: usize) -> bool {
        self.links.has((one, other)) && self.slots[other].running.is_some()
    }

    /// Whether this is a client that does not want to be connected with the other node.
    fn shuns(&self, node: usize, other: usize) -> bool {
        let running = self.slots[node].running.as_ref();
        running.is_some_and(|running| !running.dial.wants(self.members[other].node))
    }

    /// Reports to a node whether it reaches another one.
    pub(super) fn meet(&mut self, node: usize, other: usize) {
        let is_client = |place: usize| self.slots[place].disk.is_none();
        if node == other || (is_client(node) && is_client(other)) || self.shuns(node, other) {
            return;
        }
        self.quiet.end(&self.clock);
        let reaches = self.reaches(node, other) && !self.shuns(other, node);
        let (peer, version) = (self.members[other].node, self.slots[other].version);
        let Some(running) = &mut self.slots[node].running else {
            return;
        };
        running.host.input(if reaches {
            Input::Connected { peer, version }
        } else {
            let problem = Problem { reason: "cut off".to_owned(), refused: false };
            Input::Unreachable { peer, problem }
        });
    }

    /// Runs until the last user of the cluster is gone.
    pub(crate) fn run(mut self, orders: &Receiver<Order>) {
        own_thread::claim();
        loop {
            self.wait(orders);
            loop {
                match orders.try_recv() {
                    Ok(order) => order(&mut self),
                    Err(TryRecvError::Empty) => break,
                    Err(TryRecvError::Disconnected) => {
                        for node in 0..self.slots.len() {
                            self.stop(node);
                        }
                        return;
                    }
                }
            }
            self.run_until_idle();
        }
    }

    fn wait(&self, orders: &Receiver<Order>) {
        let awake = || self.slots.iter().filter(|seat| !seat.is_frozen);
        let running = || awake().filter_map(|seat| seat.running.as_ref());
        let mut select = Select::new();
        select.recv(orders);
        for running in running() {
            select.recv(&running.calls);
        }
        let wake_at = running().map(|running| running.wake_at).chain(self.links.next_at()).min();
        let wake_at = wake_at.unwrap_or(Time::MAX);
        let wait = wake_at.saturating_sub(self.clock.now()).min(Duration::from_secs(3600));
        let _ = select.ready_timeout(wait);
    }

    /// Stops a node, and lets the others notice that.
    pub(super) fn kill(&mut self, node: usize) {
        self.stop(node);
        self.run_until_idle();
    }

    /// The node's next start supports this version at most, if one is given.
    pub(super) fn restart(&mut self, node: usize, version: Option<u16>) -> Result<Arc<NodeShared>> {
        self.stop(node);
        self.slots[node].version = version.unwrap_or(self.slots[node].version);
        let dir = PathBuf::from(&self.members[node].address);
        self.start(node).map_err(|error| error.into_error(dir))
    }

    pub(super) fn add(&mut self) -> Arc<NodeShared> {
        let member = Member::new(self.next_id, format!("node-{}", self.members.len()));
        self.next_id += 1;
        let disk = disk(self.cluster, &member, &nothing());
        self.add_slot(member, Some(disk));
        let started = self.start(self.slots.len() - 1);
        started.expect("a store in memory keeps what it was given")
    }

    pub(super) fn add_client(&mut self) -> Arc<NodeShared> {
        // The start of the node gives it an id.
        self.add_slot(Member::new(0, format!("node-{}", self.members.len())), None);
        self.start_client(self.slots.len() - 1)
    }

    fn add_slot(&mut self, member: Member, disk: Option<MemoryDisk>) {
        self.members.push(member);
        let version = self.settings.version;
        let clock = NodeTime::new(self.clock.clone());
        self.slots.push(NodeSlot {
            disk,
            running: None,
            version,
            clock: Arc::new(clock),
            is_frozen: false,
            is_full: false,
        });
    }

    /// Stops a node. It has an empty disk at its next start, unless it is a client.
    pub(super) fn replace(&mut self, node: usize) {
        self.stop(node);
        if self.slots[node].disk.is_some() {
            self.wipe(node);
        }
    }

    pub(super) fn expire(&mut self, session: SessionId) {
        self.run_until_idle();
        for running in self.slots.iter_mut().filter_map(|seat| seat.running.as_mut()) {
            running.host.input(Input::Expire { session });
        }
        self.run_until_idle();
    }

    pub(super) fn leader(&mut self) -> Option<usize> {
        self.run_until_idle();
        let nodes = self.slots.iter().enumerate();
        let status = nodes.filter_map(|(node, seat)| {
            let running = seat.running.as_ref().filter(|_| !seat.is_frozen)?;
            Some((node, running.host.member()?.status()))
        });
        status
            .filter(|(_, status)| status.is_leader)
            .max_by_key(|(_, status)| status.term)
            .map(|(node, _)| node)
    }

    /// Runs all nodes until nothing is in flight. Of callers that never pause, some calls wait for the next time.
    pub(super) fn run_until_idle(&mut self) {
        for round in 0.. {
            let mut moved = self.deliver_arrived();
            for node in 0..self.slots.len() {
                moved |= self.step(node, round < CALL_ROUNDS_MAX);
            }
            if !moved {
                return;
            }
        }
    }

    fn step(&mut self, node: usize, takes_calls: bool) -> bool {
        let from = self.members[node].node;
        let slot = &mut self.slots[node];
        let Some(running) = slot.running.as_mut().filter(|_| !slot.is_frozen) else {
            return false;
        };
        while takes_calls && let Ok(call) = running.calls.try_recv() {
            self.quiet.end(&self.clock);
            let wants_on = running.host.call(call);
            if !wants_on || running.host.is_closed() {
                self.stop(node);
                return true;
            }
        }
        if !running.host.has_inputs() && self.clock.now() < running.wake_at {
            return false;
        }
        let before = running.shown(self.clock.now());
        let (work, effects) = running.host.step();
        running.wake_at = running.host.notify(effects);
        if running.shown(self.clock.now()) != before {
            self.quiet.end(&self.clock);
        }
        for op in work.disk {
            let Some(disk) = &mut running.disk else { break };
            disk.perform(op, self.clock.now()).for_each(|input| running.host.input(input));
        }
        let cluster = running.host.engine().cluster();
        if let Some(dial) = work.dial {
            let former = std::mem::replace(&mut running.dial, dial);
            for other in 0..self.slots.len() {
                let id = self.members[other].node;
                if former.wants(id) == self.shuns(node, other) {
                    self.meet(node, other);
                    self.meet(other, node);
                }
            }
        }
        for (to, message) in work.messages {
            let Some(other) = self.members.iter().position(|member| member.node == to) else {
                continue;
            };
            // As a transport does.
            let is_known = self.cluster_of(other) == cluster && cluster != 0;
            let is_refused = message.is_too_long() || (message.is_of_cluster() && !is_known);
            let link = (node, other);
            if is_refused || !self.reaches(node, other) || self.links.is_cut(link) {
                continue;
            }
            let letter = Letter { link, from, to, message };
            if let Some(letter) = self.links.send(letter, self.clock.now()) {
                self.deliver(letter);
            }
        }
        if self.slots[node].running.as_ref().is_some_and(|running| running.host.is_closed()) {
            self.stop(node);
        }
        true
    }

    fn cluster_of(&self, node: usize) -> u64 {
        let running = self.slots[node].running.as_ref();
        running.map_or(0, |running| running.host.engine().cluster())
    }

    /// Delivers the messages whose time has come. Returns whether there were any.
    fn deliver_arrived(&mut self) -> bool {
        let mut delivered = false;
        while let Some(letter) = self.links.take_arrived(self.clock.now()) {
            delivered = true;
            self.deliver(letter);
        }
        delivered
    }

    /// Hands a message to the node that it was sent to, if that one still runs.
    fn deliver(&mut self, letter: Letter) {
        let Letter { link: (_, other), from, to, message } = letter;
        let running = self.slots[other].running.as_mut();
        if let Some(running) = running.filter(|_| self.members[other].node == to) {
            running.host.input(Input::Peer { from, message });
        }
    }
}

impl RunningNode {
    /// What users may notice when it changes, and whether one of their timers is due.
    fn shown(&self, now: Time) -> (u64, (u64, u64, bool), bool) {
        let engine = self.host.engine();
        (engine.zxid(), engine.leadership(), self.host.has_due_timer(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::watch::{Watch, watch};
    use crate::node::io::WatchId;
    use crate::node::query::EventData;
    use crate::runtime::ask::Ask;
    use crate::runtime::chroot::Root;
    use crate::runtime::inbox::RequestOrigin;
    use crate::runtime::pending::Pending;
    use crate::runtime::session::SessionShared;
    use crate::types::session::SessionState;
    use crate::types::znode::SessionId;

    const SECOND: Duration = Duration::from_secs(1);

    fn ask_watch(
        shared: &Arc<NodeShared>,
        session: &Arc<SessionShared>,
    ) -> Pending<'static, Watch> {
        let (id, path): (WatchId, _) = (shared.next_watch(), "/a");
        let (sender, watch) = watch(id, path.into(), &Root::default(), shared);
        let ask = Ask::watch(id, path.into(), false, None, EventData::None);
        let asker = RequestOrigin::Holder(Arc::clone(session));
        shared.ask(asker, ask, Some((id, sender)), |()| Ok(watch))
    }

    /// The request to end a watch arrived before the watch itself, which waited for its session to
    /// open. The watch was set nevertheless, and stayed as long as the session.
    #[test]
    fn a_watch_dropped_before_it_is_set_is_not_set() {
        let (mut nodes, shared) = Nodes::new(3, Builder::default(), Clock::manual());
        let shared = &shared[0];
        let session = Arc::new(SessionShared::new(SessionId(7), 1, [0; 16], 10 * SECOND));
        let opener = RequestOrigin::Opener(Arc::clone(&session));
        let opened = shared.ask(opener, Ask::open(&session, 10 * SECOND), None, |_| Ok(()));
        let mut kept = ask_watch(shared, &session);
        drop(ask_watch(shared, &session));
        nodes.run_until_idle();
        drop(ask_watch(shared, &session));
        for _ in 0..100 {
            nodes.clock.advance(SECOND / 10);
            nodes.run_until_idle();
        }
        assert_eq!(opened.wait(), Ok(()));
        let watches = || nodes.slots[0].running.as_ref().map(|node| node.host.node().watch_count());
        assert_eq!(watches(), Some(1));
        drop(kept.try_take());
        nodes.run_until_idle();
        let watches = nodes.slots[0].running.as_ref().map(|node| node.host.node().watch_count());
        assert_eq!(watches, Some(0));
    }

    fn open(
        shared: &Arc<NodeShared>,
        holder: u64,
        resumes: bool,
    ) -> (Arc<SessionShared>, Pending<'static, ()>) {
        let (id, secret, timeout) = (SessionId(7), [0; 16], 10 * SECOND);
        let session = Arc::new(SessionShared::new(id, holder, secret, timeout));
        let ask = match resumes {
            true => Ask::resume(&session, Some(timeout)),
            false => Ask::open(&session, timeout),
        };
        let opener = RequestOrigin::Opener(Arc::clone(&session));
        let opened = shared.ask(opener, ask, None, |_| Ok(()));
        (session, opened)
    }

    /// A session is resumed on its former node at every moment of its move to another one. The end
    /// of the former handle ended the new handle, and the lease of the former one was taken for
    /// that of the new one.
    #[test]
    fn the_end_of_a_former_handle_does_not_end_the_new_one() {
        let mut held = [0, 0];
        for moment in 0..40 {
            let (mut nodes, shared) = Nodes::new(3, Builder::default(), Clock::manual());
            let (first, opened) = open(&shared[0], 1, false);
            while first.state() != SessionState::Connected {
                nodes.clock.advance(SECOND / 10);
                nodes.run_until_idle();
            }
            opened.wait().unwrap();
            // The session's renewal is due.
            nodes.clock.advance(2 * SECOND);
            let (there, _moving) = open(&shared[1], 2, true);
            for step in 0..moment {
                nodes.step(step % 3, true);
            }
            let (here, _resumed) = open(&shared[0], 3, true);
            nodes.step(0, true);
            assert!(!here.is_alive(&nodes.clock) || here.state() == SessionState::Connected);
            nodes.run_until_idle();
            let machine = nodes.slots[0].running.as_ref().unwrap().host.node().machine();
            let holder = machine.session(SessionId(7)).unwrap().holder;
            let (keeper, loser) = if holder == 3 { (&here, &there) } else { (&there, &here) };
            assert_eq!(keeper.state(), SessionState::Connected, "at moment {moment}");
            assert_eq!(loser.state(), SessionState::Moved, "at moment {moment}");
            assert_eq!(first.state(), SessionState::Moved);
            assert!(keeper.is_alive(&nodes.clock) && !loser.is_alive(&nodes.clock));
            held[usize::from(holder == 3)] += 1;
        }
        assert!(held.iter().all(|times| *times > 0), "{held:?}");
    }
}
