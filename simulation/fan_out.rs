//! A world of many clients that all watch one znode. It checks which members serve them, and what a
//! change costs each member.
//!
//! There are no random faults. The script crashes the member that serves most clients and makes the
//! leader hand over. It counts messages, so that worlds with different numbers of clients can be
//! compared.

use std::cell::Cell;
use std::rc::Rc;

use super::checks::require;
use super::client::Client;
use super::clock::{MILLI, Nanos, SECOND};
use super::faults::Rates;
use super::plan::Plan;
use super::random::Random;
use super::world::World;
use super::{await_until, run_for, workload};
use crate::node::io::{Input, Problem};
use crate::node::message::{PeerMessage, RaftBody};
use crate::types::watch::WatchMode;
use crate::types::znode::CreateMode;

/// The znode that all clients watch.
const WATCHED: &str = "/watched";
/// When the first clients start. By then the voters are known.
pub(super) const CLIENTS_FROM: Nanos = 60 * SECOND;
/// How soon all clients must have received a change.
const TOLD_WITHIN: Nanos = 2 * SECOND;
/// How soon the clients of a dead member must be served again. A connection that ends is noticed
/// within a second.
const SERVED_WITHIN: Nanos = 3 * SECOND;
/// The most messages of a leader to each other member for one change: the entry, its commit, and a
/// few for other recent writes.
const MESSAGES_MAX: u64 = 6;
/// The most bytes of such a message.
const MESSAGE_BYTES_MAX: u64 = 300;

/// The messages that a member has sent.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sent {
    to_clients: u64,
    /// To members: heartbeats, and replies to session renewals.
    keeping_alive: u64,
    /// To members: everything else.
    messages: u64,
    bytes: u64,
}

impl Sent {
    pub(super) fn note(&mut self, to_client: bool, message: &PeerMessage, bytes: usize) {
        let keeps_alive = matches!(
            message,
            PeerMessage::ClientReadIndexConfirmed { .. }
                | PeerMessage::ReadIndexConfirmed { .. }
                | PeerMessage::Health { .. }
                | PeerMessage::Raft { body: RaftBody::Heartbeat { .. }, .. }
        );
        if to_client {
            self.to_clients += 1;
        } else if keeps_alive {
            self.keeping_alive += 1;
        } else {
            self.messages += 1;
            self.bytes += bytes as u64;
        }
    }

    fn since(&self, before: Sent) -> Sent {
        Sent {
            to_clients: self.to_clients - before.to_clients,
            keeping_alive: self.keeping_alive - before.keeping_alive,
            messages: self.messages - before.messages,
            bytes: self.bytes - before.bytes,
        }
    }
}

/// A fleet with this many clients, without faults or tasks of its own.
pub(super) fn plan(random: &Random, clients: usize) -> Plan {
    Plan {
        client_instances: clients,
        rates: Rates::none(),
        clients: 0,
        client_instance_tasks: 0,
        ..Plan::fleet(random, 0)
    }
}

/// A session with a watch, for as long as the world lasts.
async fn watch(client: Client) {
    let Ok((handle, opened)) = client.open(None) else { return };
    if opened.await.is_err() {
        return;
    }
    let watching = handle.watch(WATCHED, WatchMode::Persistent).await;
    if watching.is_ok() {
        client.kernel.count_event("clients that watch");
    }
    std::future::pending::<()>().await;
    drop((handle, watching));
}

/// Writes as many changes as are wanted.
async fn write(client: Client, wanted: Rc<Cell<u64>>) {
    let Ok((handle, _opened)) = client.open(None) else { return };
    if handle.create(WATCHED, b"", CreateMode::Persistent).await.is_err() {
        return;
    }
    let mut made = 0;
    loop {
        client.kernel.count_event("changes");
        while made == wanted.get() {
            client.kernel.sleep(10 * MILLI).await;
        }
        made += 1;
        if handle.set(WATCHED, b"changed", None).await.is_err() {
            return;
        }
    }
}

/// Runs a world to its end or to the first failed check.
pub(super) fn run_to_end(world: &mut World) {
    let kernel = Rc::clone(&world.kernel);
    let clients = kernel.plan.client_instances;
    let recovery = kernel.plan.recovery();
    await_until(world, recovery, "I31 the cluster comes back", World::has_leader);
    run_for(world, CLIENTS_FROM + 11 * SECOND);
    let wanted = Rc::new(Cell::new(0));
    let place = kernel.plan.places;
    spawn(world, place, |client| write(client, Rc::clone(&wanted)));
    await_until(world, recovery, "I31 everything is answered", |world| {
        world.has_happened("changes", 1)
    });
    for place in world.client_places() {
        spawn(world, place, watch);
    }
    await_until(world, recovery, "I31 everything is answered", |world| {
        world.has_happened("clients that watch", clients as u64)
    });
    // Until all clients have found their spare.
    run_for(world, 12 * SECOND);
    kernel.check(require(world.clients_are_balanced(), "K4 learners serve all clients", || {
        let voting = kernel.checks.borrow().membership.voting().clone();
        let nodes: Vec<_> = world.processes.iter().map(|process| process.member.node).collect();
        format!("{:?} at {nodes:x?}, {voting:x?}", world.served())
    }));
    let mut changes = 0;
    let mut change = |world: &mut World| {
        changes += 1;
        wanted.set(changes);
        world.cost_of_change(changes);
    };
    change(world);

    let most = world.serves_most();
    world.crash(most);
    run_for(world, SECOND);
    await_until(world, SERVED_WITHIN, "K5 clients of a dead member are served", |world| {
        world.clients_are_served_without(most)
    });
    change(world);

    // Clients do not move all at once when a member comes back or another leader is elected.
    let (leader, moved) = (world.leader_place(), world.count_of("clients moved"));
    world.start_in(most, SECOND);
    world.input(leader, Input::Resign);
    if planted!(ElectionMovesClients) {
        world.disconnect_clients();
    }
    run_for(world, 5 * SECOND);
    await_until(world, recovery, "I31 the cluster comes back", World::has_leader);
    run_for(world, 3 * SECOND);
    let moved = world.count_of("clients moved") - moved;
    kernel.check(require(
        leader != world.leader_place() && moved == 0,
        "K5 clients do not move together",
        || format!("{moved} clients moved after another leader was asked for"),
    ));
    change(world);
    if planted!(SessionsDieWithConnection) {
        world.expire_one();
    }
    run_for(world, SECOND);
    let lost = world.count_of("sessions expired") + world.count_of("sessions closed");
    kernel.check(require(lost == 0, "K5 no session is lost", || format!("{lost} are")));
}

fn spawn<F: Future<Output = ()> + 'static>(
    world: &World,
    place: usize,
    task: impl FnOnce(Client) -> F,
) {
    let coordinator = world.kernel.coordinators.borrow()[place].clone();
    if let Some(coordinator) = coordinator {
        let client = workload::new_client(&world.kernel, place, &coordinator);
        world.kernel.executor.spawn(place, task(client));
    }
}

impl World {
    fn count_of(&self, event: &str) -> u64 {
        self.kernel.event_counts().get(event).copied().unwrap_or(0)
    }

    fn has_happened(&self, event: &str, times: u64) -> bool {
        self.count_of(event) >= times
    }

    /// The place of the leader, or of another member if there is none.
    fn leader_place(&self) -> usize {
        let leads = |process: &super::process::Process| {
            process.life.as_ref().is_some_and(|life| life.host.node().leadership().2)
        };
        self.processes.iter().position(leads).unwrap_or(0)
    }

    /// The number of clients that each member serves.
    fn served(&self) -> Vec<usize> {
        let mut served = vec![0; self.processes.len()];
        for member in self.client_places().filter_map(|place| self.member_of(place)) {
            served[member] += 1;
        }
        served
    }

    fn serves_most(&self) -> usize {
        let served = self.served();
        (0..served.len()).max_by_key(|place| served[*place]).unwrap_or(0)
    }

    /// Cuts the connections of all clients to their members.
    fn disconnect_clients(&mut self) {
        for place in self.client_places() {
            let Some(life) = &mut self.client_at_mut(place).life else { continue };
            if let Some((peer, _)) = life.client().served() {
                life.host.input(Input::Unreachable { peer, problem: Problem::not_yet() });
                self.schedule_client_step(place);
            }
        }
    }

    /// The leader expires a session.
    fn expire_one(&mut self) {
        let leader = self.leader_place();
        let node = self.processes[leader].life.as_ref().map(|life| life.host.node());
        let session = node.and_then(|node| Some(node.machine().sessions().next()?.0));
        if let Some(session) = session {
            self.input(leader, Input::Expire { session });
        }
    }

    /// Whether all clients are served, and none of them by this member.
    fn clients_are_served_without(&self, dead: usize) -> bool {
        let served = self.served();
        served[dead] == 0 && served.iter().sum::<usize>() == self.client_places().len()
    }

    /// Whether each client is connected to its member and one more, and learners serve all clients.
    fn clients_are_balanced(&self) -> bool {
        let (served, clients) = (self.served(), self.client_places().len());
        let learns = |place: usize| {
            let checks = self.kernel.checks.borrow();
            checks.membership.voting().learners.contains(&self.processes[place].member.node)
        };
        let learners = (0..served.len()).filter(|place| learns(*place)).count().max(1);
        // Hashing spreads them at random. The bound is about five standard deviations.
        let even = clients.div_ceil(learners);
        let share = even + 5 * even.isqrt();
        let fit = |place: usize| served[place] <= if learns(place) { share } else { 0 };
        self.client_places().all(|place| self.connections_of(place) <= 2)
            && served.iter().sum::<usize>() == clients
            && (0..served.len()).all(fit)
    }

    /// Waits for a change that was requested, and counts the messages that the leader sends for it.
    fn cost_of_change(&mut self, change: u64) {
        let kernel = Rc::clone(&self.kernel);
        let clients = self.client_places().len() as u64;
        let (leader, received) = (self.leader_place(), kernel.checks.borrow().watches.events);
        let before = self.sent[leader];
        await_until(self, TOLD_WITHIN, "K1 all clients see a change", |world| {
            world.kernel.checks.borrow().watches.events - received >= clients
        });
        // The message that all replicas have the change belongs to it, too.
        run_for(self, SECOND);
        let sent = self.sent[leader].since(before);
        let others = self.processes.len() as u64 - 1;
        let fits = sent.messages <= MESSAGES_MAX * others
            && sent.bytes <= MESSAGES_MAX * MESSAGE_BYTES_MAX * others
            && sent.to_clients == 0;
        kernel.check(require(fits, "K4 clients cost the leader nothing", || {
            format!("change {change}, which {clients} clients watch: {sent:?}")
        }));
        kernel.count_events("messages of leaders for changes", sent.messages);
        kernel.count_events("bytes of leaders for changes", sent.bytes);
        kernel.count_events("messages of leaders to clients", sent.to_clients);
        kernel.count_events("messages of leaders meanwhile that keep alive", sent.keeping_alive);
    }
}
