//! Runs a node on the network's thread: passes the calls of handles, the messages of peers and the
//! results of the disk to the [`Host`], and its effects to the network and the disk.
//!
//! Threads of a coordinator: `quorate-node`, which runs this and the network, and those of `disk`.
//! All of them end, and are joined, when the coordinator is closed or its last handle is dropped.

use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};

use crate::addressing::discovery::PeerDiscovery;
use crate::addressing::listening::Listening;
use crate::addressing::names::Resolver;
use crate::addressing::naming::PeerLookups;
use crate::node::io::{Dial, HostFacts, Input, Problem};
use crate::runtime::clock::Clock;
use crate::runtime::directory::DataDirectory;
use crate::runtime::disk::Disk;
use crate::runtime::disk_watch::DiskWatch;
use crate::runtime::engine::Engine;
use crate::runtime::host::Host;
use crate::runtime::inbox::HostMessage;
use crate::runtime::own_thread;
use crate::runtime::shared::{Limits, NodeShared};
use crate::runtime::watchdog::GAP_MAX;
use crate::security::Security;
use crate::security::auth::Schemes;
use crate::storage::LogStore;
use crate::transport::tcp::{Handler, Network, TcpTransport, Wake};
use crate::transport::{LocalPeer, RemotePeer, TransportEvent, TransportOptions};
use crate::types::error::{Error, Result};
use crate::types::membership::{Member, NodeId};
use crate::types::right::Right;

/// How many inputs of each kind are taken before a step.
const TAKEN_MAX: usize = 4096;
/// How often it looks at what reports say of the host.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

pub(crate) struct Start {
    pub(crate) engine: Engine,
    /// `None` for a client.
    pub(crate) store: Option<Box<dyn LogStore>>,
    /// `None` for a client.
    pub(crate) directory: Option<Arc<DataDirectory>>,
    /// `None` for a client, and as long as it cannot listen.
    pub(crate) listener: Option<TcpListener>,
    /// The address of this instance, for people.
    pub(crate) address: String,
    pub(crate) local: LocalPeer,
    pub(crate) remote: Vec<RemotePeer>,
    pub(crate) seeds: Vec<String>,
    /// For a member that has no cluster yet.
    pub(crate) naming: Option<PeerLookups>,
    /// For a member whose peers are not listed.
    pub(crate) discovery: Option<PeerDiscovery>,
    /// For a member that cannot listen yet.
    pub(crate) listening: Option<Listening>,
    pub(crate) clock: Clock,
    pub(crate) members: Vec<Member>,
    pub(crate) limits: Limits,
    pub(crate) schemes: Schemes,
    pub(crate) security: Security,
    pub(crate) resolver: Resolver,
}

/// Starts the threads. Returns the handles' shared state, and the thread that ends when they ask
/// for it.
pub(crate) fn start(start: Start) -> Result<(Arc<NodeShared>, JoinHandle<()>)> {
    let Start { engine, clock, limits, members, schemes, security, resolver, .. } = start;
    let system =
        |what| move |error: std::io::Error| Error::System { what, reason: error.to_string() };
    let options = TransportOptions { security, resolver, ..TransportOptions::default() };
    let transport = TcpTransport::new().map_err(system("the network"))?;
    let (host, shared) = Host::new(engine, clock.clone(), limits, members, schemes);
    shared.cluster.set_id(start.local.cluster);
    shared.cluster.set_own_address(start.address);
    shared.readiness.set_directory(start.directory);
    shared.figures.set_meter(transport.meter());
    shared.set_wake(transport.wake());
    let node_thread = NodeThread::new(host, clock, start.store, transport.wake());
    let mut node_thread = Box::new(node_thread.map_err(system("the disk threads"))?);
    shared.readiness.not_listening.set(start.listening.as_ref().map(Listening::first_reason));
    (node_thread.naming, node_thread.discovery) = (start.naming, start.discovery);
    node_thread.listening = start.listening;
    let Start { listener, local, remote, seeds, .. } = start;
    let thread: JoinHandle<()> = transport
        .start("quorate-node", listener, local, remote, seeds, options, node_thread)
        .map_err(system("the node thread"))?;
    Ok((shared, thread))
}

struct NodeThread {
    host: Host,
    calls: Receiver<HostMessage>,
    written: Receiver<Input>,
    disk: Option<Disk>,
    naming: Option<PeerLookups>,
    discovery: Option<PeerDiscovery>,
    listening: Option<Listening>,
    clock: Clock,
    disk_watch: DiskWatch,
    /// What the node knows of its host, and when to look again whether it has changed.
    facts: HostFacts,
    look_at: Duration,
    /// Whether the network was told that the node has stopped.
    has_hung_up: bool,
}

impl Handler for NodeThread {
    fn take(&mut self, event: TransportEvent) {
        self.host.input(match event {
            TransportEvent::Received { from, message } => Input::Peer { from, message },
            TransportEvent::Connected { peer, version } => Input::Connected { peer, version },
            TransportEvent::Authenticated { peer, connection } => {
                let known = connection.as_ref().filter(|of| of.right < Right::Member);
                let schemes = &self.host.shared().schemes;
                let ids = known.map(|known| schemes.of_connection(known)).unwrap_or_default();
                Input::Authenticated { peer, connection, ids }
            }
            TransportEvent::Unreachable { peer, reason, permanent } => {
                Input::Unreachable { peer, problem: Problem { reason, refused: permanent } }
            }
            TransportEvent::Duplicate { reason } => Input::Duplicate { reason },
            TransportEvent::SeedUnreachable { address, reason, permanent } => {
                let problem = Problem { reason, refused: permanent };
                Input::SeedUnreachable { address, problem }
            }
        });
    }

    fn is_busy(&self) -> bool {
        !self.host.is_idle() || !self.written.is_empty()
    }

    /// Runs until the coordinator is closed. A node that stopped by itself continues to answer.
    fn turn(&mut self, network: &mut dyn Network) -> Option<Duration> {
        // Users' wakers run on this thread.
        own_thread::claim();
        if !self.take_all() {
            return None;
        }
        self.watch_disk();
        self.watch_host(network);
        self.watch_names(network);
        self.listen(network);
        let mut pause = self.step(network)?;
        if self.disk_watch.is_on() {
            pause = pause.min(GAP_MAX);
        }
        let now = self.clock.now();
        let discovery = self.discovery.as_ref().filter(|_| self.needs_addresses());
        let look_ups = [
            self.naming.as_ref().map(|naming| &naming.look_ups),
            discovery.map(|discovery| &discovery.look_ups),
            self.listening.as_ref().map(|listening| &listening.look_ups),
        ];
        let pauses = look_ups.into_iter().flatten().map(|look_ups| look_ups.pause(now));
        Some(pauses.fold(pause, Duration::min))
    }

    fn end(mut self: Box<Self>, failure: Option<String>) {
        if let Some(reason) = failure {
            self.host.input(Input::Failed { reason });
            let (_, effects) = self.host.step();
            self.host.notify(effects);
        }
        // The handles get their answers before the threads below are joined.
        self.host.close();
        // Dropping the disk waits until all submitted operations are written.
        drop(self.disk);
        drop(self.host);
    }
}

impl NodeThread {
    fn new(
        host: Host,
        clock: Clock,
        store: Option<Box<dyn LogStore>>,
        wake: Wake,
    ) -> std::io::Result<NodeThread> {
        // Disk -> node: one for each operation that was submitted.
        let (done, written) = unbounded();
        let start = |store| Disk::start(store, done, move || wake.wake());
        let disk = store.map(start).transpose()?;
        Ok(NodeThread {
            calls: host.calls(),
            host,
            written,
            disk,
            naming: None,
            discovery: None,
            listening: None,
            clock,
            disk_watch: DiskWatch::default(),
            facts: HostFacts::default(),
            look_at: Duration::ZERO,
            has_hung_up: false,
        })
    }

    /// Lets the node process its inputs. Returns the pause before its next step; `None` once the
    /// coordinator is closed.
    fn step(&mut self, network: &mut dyn Network) -> Option<Duration> {
        let (mut work, effects) = self.host.step();
        // The last step is delivered too, since it may hand over leadership.
        if let Some(cluster) = work.cluster {
            network.set_cluster(cluster);
        }
        if let Some(Dial { members, seeks }) = work.dial {
            network.set_peers(remote(&members, None));
            network.set_seeking(seeks);
        } else if let Some(members) = &work.members
            && let Some(node) = self.host.member()
        {
            network.set_peers(remote(members, Some(node.id())));
        }
        if !work.messages.is_empty() {
            network.send(&work.messages);
        }
        if let Some(disk) = &self.disk {
            work.disk.drain(..).for_each(|op| disk.submit(op));
        }
        let step_at = self.host.notify(effects);
        if let Some(reason) = self.host.shared().end.reason()
            && !std::mem::replace(&mut self.has_hung_up, true)
        {
            // The others must not count on a node whose process lives on.
            network.stop(reason.to_owned());
        }
        self.host.reuse(work.messages, work.disk);
        (!self.host.is_closed()).then(|| step_at.saturating_sub(self.clock.now()))
    }

    /// Takes the waiting inputs; `false` once the coordinator is closed.
    fn take_all(&mut self) -> bool {
        for _ in 0..TAKEN_MAX {
            let Ok(input) = self.written.try_recv() else {
                break;
            };
            self.host.input(input);
        }
        for _ in 0..TAKEN_MAX {
            let Ok(call) = self.calls.try_recv() else {
                break;
            };
            if !self.host.call(call) {
                return false;
            }
        }
        true
    }

    /// Looks up the names of peers while their addresses matter: until there is a cluster, and while a
    /// member with a discovery name knows no leader.
    fn watch_names(&mut self, network: &mut dyn Network) {
        if self.naming.is_none() && self.discovery.is_none() {
            return;
        }
        let Some(node) = self.host.member() else {
            (self.naming, self.discovery) = (None, None);
            return;
        };
        let has_cluster = node.cluster() != 0;
        if has_cluster {
            self.naming = None;
        }
        if !self.needs_addresses() {
            return;
        }
        let now = self.clock.now();
        if let Some(input) = self.naming.as_mut().and_then(|naming| naming.poll(now)) {
            self.host.input(input);
        }
        let Some(discovery) = &mut self.discovery else { return };
        let discovered = discovery.poll(now);
        if let Some(others) = discovery.new_others() {
            network.look_at(others);
        }
        if let Some(discovered) = discovered.filter(|_| !has_cluster) {
            self.host.input(Input::Discovered(discovered));
        }
    }

    /// Whether this member needs the addresses of names now.
    fn needs_addresses(&self) -> bool {
        self.host.member().is_some_and(|node| node.cluster() == 0 || !node.has_leader())
    }

    /// Listens as soon as it can.
    fn listen(&mut self, network: &mut dyn Network) {
        let Some(listening) = &mut self.listening else { return };
        let reason = match listening.poll(self.clock.now()) {
            None => return,
            Some(Err(reason)) => Some(reason),
            Some(Ok(listener)) => match network.listen(listener) {
                Ok(()) => {
                    tracing::info!("this instance listens");
                    self.listening = None;
                    None
                }
                Err(error) => {
                    let reason = format!("this instance cannot listen: {error}");
                    return self.host.input(Input::Failed { reason });
                }
            },
        };
        self.host.shared().readiness.not_listening.set(reason);
    }

    /// A hanging disk reports nothing, so this thread has to check it.
    fn watch_disk(&mut self) {
        let Some(disk) = &self.disk else { return };
        if let Some(input) = self.disk_watch.look(self.clock.now(), disk.under_way()) {
            self.host.input(input);
        }
    }

    /// Tells the node what its reports say of its host.
    fn watch_host(&mut self, network: &mut dyn Network) {
        let now = self.clock.now();
        if now < self.look_at {
            return;
        }
        self.look_at = now + LOOK_PERIOD;
        let shared = self.host.shared();
        shared.certificates.set_members(network.certificates());
        let facts = HostFacts {
            disk_hangs_since: self.disk_watch.hangs().map(|busy| now.saturating_sub(busy)),
            former_directories: shared
                .readiness
                .directory()
                .map_or(0, DataDirectory::damaged_count),
            certificate: shared.certificates.all().into_iter().next(),
        };
        if facts != self.facts {
            self.facts = facts.clone();
            self.host.input(Input::Host(facts));
        }
    }
}

/// The members with an address, except for one.
fn remote(members: &[Member], own: Option<NodeId>) -> Vec<RemotePeer> {
    let others = members.iter().filter(|of| !of.address.is_empty() && Some(of.node) != own);
    others.map(|of| RemotePeer { node: of.node, address: of.address.clone() }).collect()
}

#[cfg(test)]
mod stopped_tests;

#[cfg(test)]
mod tests {
    use crossbeam_channel::{TryRecvError, bounded};

    use super::*;
    use crate::machine::command::Op;
    use crate::machine::snapshot::ChunkWriter;
    use crate::node::NodeConfig;
    use crate::node::io::Now;
    use crate::node::message::{PeerMessage, RaftBody};
    use crate::node::stored::Identity;
    use crate::runtime::ask::Ask;
    use crate::runtime::host::CLOSE_TIME;
    use crate::runtime::inbox::RequestOrigin;
    use crate::runtime::session::SessionShared;
    use crate::runtime::shared::NodeShared;
    use crate::security::auth::Schemes;
    use crate::storage::MemoryDisk;
    use crate::types::certificate::Expiry;
    use crate::types::membership::Genesis;
    use crate::types::version::VERSION;
    use crate::types::znode::SessionId;

    pub(super) fn identity(place: usize, founding: &Genesis) -> Identity {
        let Member { node, address, .. } = founding.members[place].clone();
        Identity { cluster: founding.cluster, node, incarnation: node, address, uid: node }
    }

    /// A member with a disk of its own. The test runs its turns.
    fn member(place: usize, founding: &Genesis, clock: &Clock) -> (NodeThread, Arc<NodeShared>) {
        let wake = TcpTransport::new().unwrap().wake();
        member_on(&MemoryDisk::new(), place, founding, clock, wake)
    }

    /// A member with this disk, which is blank.
    pub(super) fn member_on(
        disk: &MemoryDisk,
        place: usize,
        founding: &Genesis,
        clock: &Clock,
        wake: Wake,
    ) -> (NodeThread, Arc<NodeShared>) {
        let (identity, node) = (identity(place, founding), founding.members[place].node);
        let mut store = disk.open();
        let (hard_state, meta, state) = founding.start();
        store.found(&identity, hard_state, &meta, &mut ChunkWriter::full(state)).unwrap();
        let builder = crate::Builder::default();
        let config = NodeConfig {
            timeouts: builder.timeouts(),
            ..NodeConfig::new(builder.heartbeat, builder.tick, node)
        };
        let now = Now { mono: clock.now(), wall_ms: clock.wall_ms() };
        let booted = crate::runtime::boot(&mut store, config, now).unwrap();
        let limits = Limits {
            pending_requests_max: 10,
            request_timeout: builder.request_timeout,
            session_timeout: builder.session_timeout,
            tick: builder.tick,
            timeouts: builder.timeouts(),
            watch_capacity: crate::types::watch::WATCH_CAPACITY,
        };
        let members = founding.members.clone();
        let (host, shared) = Host::new(booted, clock.clone(), limits, members, Schemes::default());
        let store: Box<dyn LogStore> = Box::new(store);
        (NodeThread::new(host, clock.clone(), Some(store), wake).unwrap(), shared)
    }

    /// Collects the messages sent.
    #[derive(Default)]
    struct Outbox(Vec<(NodeId, PeerMessage)>);

    impl Network for Outbox {
        fn send(&mut self, messages: &[(NodeId, PeerMessage)]) {
            self.0.extend_from_slice(messages);
        }

        fn stop(&mut self, _: String) {}

        fn set_peers(&mut self, _: Vec<RemotePeer>) {}

        fn set_seeking(&mut self, _: bool) {}

        fn set_cluster(&mut self, _: u64) {}

        fn look_at(&mut self, _: Vec<String>) {}

        fn listen(&mut self, _: TcpListener) -> std::io::Result<()> {
            Ok(())
        }

        fn certificates(&self) -> Arc<[Expiry]> {
            Arc::default()
        }
    }

    /// A leader that reached the end of its time to close did not send the messages of its last step, which
    /// hands over leadership. The others had to detect the loss of their leader.
    #[test]
    fn the_messages_of_the_last_step_are_sent() {
        let clock = Clock::manual();
        let members = (1..=2).map(|node| Member::new(node, format!("127.0.0.1:{node}"))).collect();
        let founding = Genesis { cluster: 1, members };
        let mut members: Vec<_> = (0..2).map(|place| member(place, &founding, &clock)).collect();
        for (member, other) in [(0, 1), (1, 0)] {
            let peer = founding.members[other].node;
            members[member].0.take(TransportEvent::Connected { peer, version: VERSION });
        }
        // Messages arrive at once.
        let turn = |members: &mut Vec<(NodeThread, Arc<NodeShared>)>| {
            clock.advance(Duration::from_millis(1));
            for place in 0..2 {
                let mut sent = Outbox::default();
                members[place].0.turn(&mut sent).unwrap();
                let from = founding.members[place].node;
                for (_, message) in sent.0 {
                    members[1 - place].0.take(TransportEvent::Received { from, message });
                }
            }
        };
        let leads = |(member, _): &(NodeThread, _)| {
            let status = member.host.node().status();
            status.is_leader.then_some(status.term)
        };
        let leader = loop {
            turn(&mut members);
            let Some(leader) = members.iter().position(|member| leads(member).is_some()) else {
                continue;
            };
            let term = leads(&members[leader]);
            // After a session was opened and closed, the other member has everything that the
            // leader has.
            let shared = Arc::clone(&members[leader].1);
            let (id, secret, timeout) = (SessionId(term.unwrap()), [0; 16], CLOSE_TIME * 10);
            let session = Arc::new(SessionShared::new(id, 1, secret, timeout));
            let opener = RequestOrigin::Opener(Arc::clone(&session));
            let opened = shared.ask(opener, Ask::open(&session, timeout), None, |_| Ok(()));
            let closed = shared.ask(RequestOrigin::Holder(session), Ask::close(), None, Ok);
            for mut answer in [opened, closed] {
                while answer.try_take().is_none() {
                    turn(&mut members);
                }
            }
            if leads(&members[leader]) == term {
                break leader;
            }
        };
        let (mut leader, _) = members.remove(leader);
        // The first step of closing hands over. It is also the last one, since the time is up.
        let (closed, closes) = bounded(0);
        assert!(leader.host.call(HostMessage::Close(closed)));
        clock.advance(CLOSE_TIME);
        let mut sent = Outbox::default();
        assert_eq!(leader.turn(&mut sent), None);
        Box::new(leader).end(None);
        assert!(closes.recv().is_err());
        let hands_over = |(_, message): &(NodeId, PeerMessage)| {
            matches!(message, PeerMessage::Raft { body: RaftBody::TimeoutNow, .. })
        };
        assert!(sent.0.iter().any(hands_over), "{:?}", sent.0);
    }

    /// A request in flight when the node stopped failed with the error that its session had expired, which
    /// advises to open a new session.
    #[test]
    fn a_request_to_a_stopped_node_fails_with_stopped() {
        let clock = Clock::manual();
        let founding =
            Genesis { cluster: 1, members: vec![Member::new(1, "127.0.0.1:1".to_owned())] };
        let (mut member, shared) = member(0, &founding, &clock);
        let (id, secret, timeout) = (SessionId(1), [0; 16], Duration::from_secs(10));
        let session = Arc::new(SessionShared::new(id, 1, secret, timeout));
        let opener = RequestOrigin::Opener(Arc::clone(&session));
        let mut opened = shared.ask(opener, Ask::open(&session, timeout), None, Ok);
        while opened.try_take().is_none() {
            clock.advance(Duration::from_millis(50));
            member.turn(&mut Outbox::default()).unwrap();
        }
        // The node stops after the call was sent and before it handles the call.
        let set = Op::Set { path: "/a".into(), data: "a".into(), version: None };
        let mut answer = shared.ask(RequestOrigin::Holder(session), Ask::set(set), None, Ok);
        member.host.input(Input::Failed { reason: "the disk failed".to_owned() });
        let _ = member.turn(&mut Outbox::default());
        while let Ok(call) = member.calls.try_recv() {
            member.host.call(call);
        }
        let answer = answer.try_take().expect("a stopped node answers at once");
        assert!(matches!(answer, Err(Error::Stopped { .. })), "{answer:?}");
    }

    /// While a resumption with a wrong password waited for its answer, its member refused the right password: the
    /// client took its session for lost.
    #[test]
    fn a_wrong_password_that_waits_for_its_answer_does_not_refuse_the_right_one() {
        let clock = Clock::manual();
        let founding =
            Genesis { cluster: 1, members: vec![Member::new(1, "127.0.0.1:1".to_owned())] };
        let (mut member, shared) = member(0, &founding, &clock);
        let (id, timeout) = (SessionId(1), Duration::from_secs(10));
        let mut turn = || {
            clock.advance(Duration::from_millis(50));
            member.turn(&mut Outbox::default()).unwrap();
        };
        let opener = Arc::new(SessionShared::new(id, 1, [1; 16], timeout));
        let asker = RequestOrigin::Opener(Arc::clone(&opener));
        let mut opened = shared.ask(asker, Ask::open(&opener, timeout), None, Ok);
        while opened.try_take().is_none() {
            turn();
        }
        assert!(shared.detach(&opener));
        drop(opener);
        turn();
        let resume = |holder, secret| {
            let session = Arc::new(SessionShared::new(id, holder, secret, timeout));
            let asker = RequestOrigin::Opener(Arc::clone(&session));
            (shared.ask(asker, Ask::resume(&session, Some(timeout)), None, Ok), session)
        };
        let (_wrong, _its_session) = resume(2, [2; 16]);
        let (mut right, _session) = resume(3, [1; 16]);
        let answer = loop {
            match right.try_take() {
                Some(answer) => break answer,
                None => turn(),
            }
        };
        assert!(answer.is_ok(), "{answer:?}");
    }

    /// The channel of changes stayed open after a node had stopped for good, so nobody who waited for its
    /// end noticed it.
    #[test]
    fn the_changes_end_when_the_node_has_stopped_for_good() {
        let clock = Clock::manual();
        let founding =
            Genesis { cluster: 1, members: vec![Member::new(1, "127.0.0.1:1".to_owned())] };
        let (mut member, shared) = member(0, &founding, &clock);
        let (changes, _) = shared.readiness.subscribe();
        member.host.input(Input::Failed { reason: "the disk failed".to_owned() });
        let _ = member.turn(&mut Outbox::default());
        let seen: Vec<String> = changes.try_iter().map(|change| change.to_string()).collect();
        assert!(seen.last().is_some_and(|last| last.contains("the disk failed")), "{seen:?}");
        assert_eq!(changes.try_recv(), Err(TryRecvError::Disconnected));
        let (later, _) = shared.readiness.subscribe();
        assert_eq!(later.iter().count(), 1, "it is not open for ever");
    }
}
