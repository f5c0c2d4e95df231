//! Which member is at which place: disks that start blank, are lost and start again, and instances
//! that join, leave and move.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::clock::{Nanos, SECOND, nanos};
use super::damages::Damage;
use super::durable::{DATA, Durable};
use super::faults::Fault;
use super::plan::Plan;
use super::process::{Life, Process};
use super::random::Random;
use super::world::{Event, World};
use crate::machine::snapshot::ChunkWriter;
use crate::node::io::Input;
use crate::node::leader::planner::FORGET_FACTOR;
use crate::node::stored::Identity;
use crate::node::timings::REQUEST_TIME;
use crate::runtime::host::Host;
use crate::storage::simulated::Device;
use crate::storage::{DiskStore, FsPath, LogStore};
use crate::types::membership::{Genesis, Member, NodeId, Roster, Seat, node_id};
use crate::types::version::INVENTED;

/// The address of a place on the list.
pub(super) fn address(place: usize) -> String {
    format!("node-{place}:1")
}

/// The disk of a new member.
#[derive(Debug)]
pub(super) struct NewDisk {
    pub(super) member: Member,
    pub(super) device: Device,
    /// Its identity, if nothing is on the disk yet.
    pub(super) unused: Option<Identity>,
    pub(super) durable: Durable,
}

/// The identity of a new member, with an id that no node has had.
fn new_identity(random: &Random, address: String) -> Identity {
    let (uid, incarnation) = (random.next().max(1), random.next());
    Identity { cluster: 0, node: node_id(uid, incarnation), incarnation, address, uid }
}

/// An empty disk for a new member.
fn empty(random: &Random, plan: &Plan, place: usize, address: String) -> NewDisk {
    let identity = new_identity(random, address.clone());
    let zone = plan.zones[place].to_owned();
    let leader_priority = plan.leader_priorities[place];
    let member = Member { node: identity.node, uid: identity.uid, address, zone, leader_priority };
    let device = Device::new(random.next());
    device.set_capacity(Some(CAPACITY));
    device.set_database(plan.database);
    NewDisk { member, device, unused: Some(identity), durable: Durable::default() }
}

/// The room of a disk that is not full.
pub(super) const CAPACITY: u64 = 1 << 40;

/// Whether the votes are spread over the zones: no learner is in a zone that has two or more voters
/// fewer than another. A member without a zone is alone in one.
fn is_spread(roster: &Roster, is_there: impl Fn(NodeId) -> bool) -> bool {
    let zone_of = |seat: &Seat| match seat.member.zone.as_str() {
        "" => format!("{:x}", seat.member.node),
        zone => zone.to_owned(),
    };
    let mut voters: BTreeMap<String, usize> = BTreeMap::new();
    for seat in &roster.seats {
        *voters.entry(zone_of(seat)).or_default() += usize::from(seat.votes);
    }
    let most = voters.values().max().copied().unwrap_or(0);
    // A dead learner gets no vote.
    let learners = roster.seats.iter().filter(|seat| !seat.votes && is_there(seat.member.node));
    let fewest = learners.map(|seat| voters[&zone_of(seat)]).min();
    fewest.is_none_or(|fewest| most < fewest + 2)
}

impl World {
    /// The list that an instance is given at its start. If it is alone on it, it is also given the
    /// addresses of the others once there are others. Otherwise it would found a cluster of its own
    /// from a blank disk.
    pub(super) fn list_for(&self, place: usize) -> Vec<String> {
        let founded = self.kernel.checks.borrow().membership.is_founded();
        if founded && self.list == [address(place)] {
            return (0..self.processes.len()).map(address).collect();
        }
        self.list.clone()
    }

    /// The disks of the founding members.
    pub(super) fn first_disks(&mut self) -> Vec<NewDisk> {
        let plan = &self.kernel.plan;
        let mut disks: Vec<NewDisk> = (0..plan.nodes)
            .map(|place| empty(&self.identities, plan, place, address(place)))
            .collect();
        if !plan.founded {
            return disks;
        }
        let mut members: Vec<Member> = disks.iter().map(|disk| disk.member.clone()).collect();
        members.sort_by_key(|member| member.node);
        let founding = Genesis { cluster: 1, members };
        let (hard_state, meta, state) = founding.start();
        let mut checks = self.kernel.checks.borrow_mut();
        checks.membership.begins(1, meta.hash, meta.voting.clone());
        checks.oracle.found(state.clone());
        drop(checks);
        for disk in &mut disks {
            let identity = disk.unused.take().map(|unused| Identity { cluster: 1, ..unused });
            let files = disk.device.process();
            let path = FsPath::new(Arc::new(files.clone()), DATA.as_ref());
            let chunks = &mut ChunkWriter::full(state.clone());
            identity
                .map(|identity| {
                    let mut store = DiskStore::open(&path, plan.store.clone())?;
                    store.found(&identity, hard_state, &meta, chunks)
                })
                .transpose()
                .expect("a new store on a sound disk takes its first state");
            files.end_process();
            disk.durable = Durable::founded(1, meta.index, hard_state);
        }
        disks
    }

    /// Notes a new member, from whose disk no node has started yet.
    pub(super) fn put_disk(&mut self, node: NodeId, durable: &Durable) {
        let checked = self.kernel.checks.borrow_mut().membership.new_disk(node);
        self.kernel.check(checked);
        self.disks.insert(node, durable.clone());
    }

    /// The identity that a start gives a directory that it begins anew.
    pub(super) fn unused_identity(&self, place: usize) -> Identity {
        let process = &self.processes[place];
        let address = process.member.address.clone();
        match process.unused.clone() {
            Some(planned) => Identity { address, ..planned },
            None => new_identity(&self.identities, address),
        }
    }

    /// Replaces the disk of a process that is down.
    fn replace_disk(&mut self, place: usize, disk: NewDisk) {
        let NewDisk { member, device, unused, durable } = disk;
        self.put_disk(member.node, &durable);
        let process = &mut self.processes[place];
        process.owner = member.node;
        (process.member, process.device, process.unused) = (member, device, unused);
        (process.durable, process.damage, process.version) = (durable, None, INVENTED);
        process.former.clear();
        self.lost_at = self.now();
    }

    /// How long a silent member still counts as alive, by its leader's clock.
    pub(super) fn patience(&self) -> Nanos {
        self.kernel.plan.patience()
    }

    /// How long a leader may take to notice that a member is gone or wants to leave. This includes an
    /// election, after which requests to join or leave are made again.
    pub(super) fn detection_time(&self) -> Nanos {
        2 * self.patience() + 3 * nanos(REQUEST_TIME)
    }

    /// Whether this disk may be lost for good: the other members can still decide and know who votes,
    /// and no change of the members is under way that could alter that.
    pub(crate) fn may_lose(&self, place: usize) -> bool {
        let now = self.now();
        let node = self.processes[place].member.node;
        let checks = self.kernel.checks.borrow();
        let membership = &checks.membership;
        if self.lost_at > 0 && now < self.lost_at + self.detection_time() {
            return false;
        }
        if self.is_damaged(&self.processes[place]) {
            return false;
        }
        if !membership.is_founded() {
            // Any peer that has pledged itself may found the cluster at any moment.
            let lost = self.disks.len() - self.processes.len();
            return 2 * (lost + 1) < self.kernel.plan.nodes;
        }
        let leaving = |process: &Process| process.life.as_ref().is_some_and(|life| life.leaving);
        if !membership.is_quiet(now, self.detection_time()) || self.processes.iter().any(leaving) {
            return false;
        }
        let kept = |id: &&NodeId| {
            **id != node
                && self.processes.iter().any(|process| {
                    process.member.node == **id
                        && !self.is_damaged(process)
                        && process.durable.condition().knows_committed(membership.changed_at)
                })
        };
        let mut quorums = membership.quorums();
        quorums.all(|voters| 2 * voters.iter().filter(kept).count() > voters.len())
    }

    fn is_damaged(&self, process: &Process) -> bool {
        process.damage.is_some()
    }

    /// Damages a disk. Its node finds that at its next start, if it needs what is damaged.
    pub(super) fn damage(&mut self, place: usize, damage: Damage) -> Option<String> {
        if !self.may_lose(place) {
            return None;
        }
        let what = self.spoil(place, damage);
        let time = self.some_time();
        self.start_in(place, time);
        Some(format!("node {place}: {what}"))
    }

    /// Replaces a disk by an empty one.
    pub(super) fn wipe(&mut self, place: usize) -> Option<String> {
        if !self.may_lose(place) {
            return None;
        }
        self.crash(place);
        let what = format!("node {place} is {:x} now", self.empty_disk(place));
        let time = self.some_time();
        // Half of them come back while the leader still counts the former member as alive.
        let time = if time.is_multiple_of(2) { time.min(self.patience() / 10) } else { time };
        self.start_in(place, time);
        Some(what)
    }

    /// Gives a process that is down an empty disk. Returns its new id.
    pub(super) fn empty_disk(&mut self, place: usize) -> NodeId {
        let address = self.processes[place].member.address.clone();
        let disk = empty(&self.identities, &self.kernel.plan, place, address);
        let node = disk.member.node;
        self.replace_disk(place, disk);
        node
    }

    pub(super) fn join(&mut self) -> Option<String> {
        let place = self.processes.len();
        if place >= self.kernel.plan.places {
            return None;
        }
        let disk = empty(&self.identities, &self.kernel.plan, place, address(place));
        let what = format!("node {place} as {:x}", disk.member.node);
        self.add_process(disk, INVENTED);
        self.start_in(place, SECOND);
        Some(what)
    }

    pub(super) fn leave(&mut self, place: usize) -> Option<String> {
        let now = self.now();
        let recent = self.lost_at > 0 && now < self.lost_at + self.detection_time();
        let node = self.processes[place].member.node;
        if recent || !self.is_member(node) {
            return None;
        }
        self.processes[place].life.as_mut()?.leaving = true;
        self.leavers.insert(node);
        self.input(place, Input::Leave);
        Some(format!("node {place}"))
    }

    /// Makes an instance leave, a while after another one has gone down.
    pub(super) fn leave_while_another_is_down(&mut self, place: usize) -> Option<String> {
        let another = self.random.index(self.processes.len());
        if another == place || !self.is_member(self.processes[place].member.node) {
            return self.leave(place);
        }
        let time = self.detection_time();
        self.crash(another);
        self.start_in(another, 2 * time);
        self.schedule_in(time, Event::Leave { place });
        Some(format!("node {place}, in {time} ns, while node {another} is down"))
    }

    /// Restarts an instance under another address.
    pub(super) fn relocate(&mut self, place: usize) -> Option<String> {
        if !self.kernel.checks.borrow().membership.is_founded() {
            return None;
        }
        let number = self.random.below(1000);
        let address = format!("node-{place}.{number}:1");
        self.crash(place);
        self.processes[place].member.address.clone_from(&address);
        let time = self.some_time();
        self.start_in(place, time);
        Some(format!("node {place} to {address}"))
    }

    pub(super) fn is_member(&self, node: NodeId) -> bool {
        self.kernel.checks.borrow().membership.is_member(node)
    }

    /// Whether a node may stop because it is no member: the cluster has removed it, or it leaves before
    /// it has learned that it was admitted.
    pub(super) fn may_be_gone(&self, place: usize) -> bool {
        let process = &self.processes[place];
        let node = process.member.node;
        let unaware = |life: &Life| life.leaving && !life.host.node().is_member(node);
        process.life.as_deref().is_some_and(unaware)
            || self.kernel.checks.borrow().membership.may_be_gone(node)
    }

    /// The place of the member or client with this id.
    pub(super) fn place_of_any(&self, node: NodeId) -> Option<usize> {
        self.place_of(node).or_else(|| self.clients.places.get(&node).copied())
    }

    /// The place of the member with this id.
    pub(super) fn place_of(&self, node: NodeId) -> Option<usize> {
        self.processes.iter().position(|process| process.member.node == node)
    }

    /// Whether a leader may count this node as alive: it was running a short time ago, or its messages
    /// arrive late.
    pub(super) fn may_seem_alive(&self, node: NodeId) -> bool {
        // The leader's clock may be slow, and a message on its way for seconds.
        let allowed = self.patience() * 5 / 4 + 10 * SECOND;
        self.down_since.get(&node).is_none_or(|at| at + allowed > self.now())
    }

    /// Whether a leader may give this node's place to another: it wants to leave, it was silent for a while, or
    /// it is at its place still, so that the other one only has its address. So this tells of former selves
    /// alone.
    pub(super) fn may_go(&self, node: NodeId) -> bool {
        let down = self.down_since.get(&node).copied().unwrap_or(self.now());
        // The leader's clock may be fast.
        let silent = down + self.patience() / 2 <= self.now();
        let late = self.late_until.get(&node).copied().unwrap_or(0);
        let troubled = self.troubled_until.max(late) + self.patience() * 3 / 2 >= down;
        silent || troubled || self.leavers.contains(&node) || self.place_of(node).is_some()
    }

    /// Whether all processes are members, the right number of them vote, and the roster says so.
    pub(crate) fn is_whole(&self) -> bool {
        let checks = self.kernel.checks.borrow();
        let membership = &checks.membership;
        let voting = membership.voting();
        let roster = checks.oracle.roster();
        let there = |process: &Process| {
            let known = process.life.as_ref().and_then(|life| life.members.as_ref());
            membership.is_member(process.member.node)
                && known.is_some_and(|known| known.iter().eq(roster.members()))
        };
        let most = self.processes.len().min(self.kernel.plan.policy.max_voters);
        let wanted = if most.is_multiple_of(2) { most - 1 } else { most };
        let votes = (wanted..=self.kernel.plan.policy.max_voters).contains(&voting.voters.len());
        let alive = voting.voters.iter().all(|voter| self.place_of(*voter).is_some());
        let members = voting.voters.iter().chain(&voting.learners);
        let put_down = members.clone().count() == roster.seats.len()
            && members.clone().all(|node| {
                let seat = roster.get(*node);
                let known = self.place_of(*node).map(|place| &self.processes[place].member);
                seat.is_some_and(|seat| {
                    seat.votes == voting.voters.contains(node)
                        && known.is_none_or(|member| *member == seat.member)
                })
            });
        voting.voters_outgoing.is_empty()
            && votes
            && alive
            && put_down
            && is_spread(&roster, |node| self.place_of(node).is_some())
            && self.is_led_by_priority(&roster)
            && self.processes.iter().all(there)
    }

    /// Whether a voter of the highest priority leads. (Not while there is no leader.)
    fn is_led_by_priority(&self, roster: &Roster) -> bool {
        let voters = roster.seats.iter().filter(|seat| seat.votes);
        let highest = voters.map(|seat| seat.member.leader_priority).max();
        let leader = self.leader().map(|place| self.processes[place].member.leader_priority);
        leader.is_none_or(|leader| highest.is_none_or(|highest| leader >= highest))
    }

    /// Describes places, voters and roster, for the message of a failure.
    pub(crate) fn describe_members(&self) -> String {
        let checks = self.kernel.checks.borrow();
        let places: Vec<String> =
            self.processes.iter().map(|process| format!("{:x}", process.member.node)).collect();
        let (voting, roster) = (checks.membership.voting(), checks.oracle.roster());
        let seats: Vec<String> = roster
            .members()
            .map(|member| format!("{:x} {}", member.node, member.address))
            .collect();
        format!(
            "at the places {places:?}; voters {:x?}, outgoing {:x?}, learners {:x?}; put down {seats:?}",
            voting.voters, voting.voters_outgoing, voting.learners
        )
    }

    /// How soon the members must be complete after the last fault.
    pub(crate) fn repair_time(&self) -> Nanos {
        let plan = &self.kernel.plan;
        4 * plan.recovery() + nanos(plan.policy.replace_after * 2)
    }

    /// How long the members may include one whose process is gone. Its version counts until it is
    /// removed, because it might come back.
    pub(crate) fn removal_time(&self) -> Nanos {
        let checks = self.kernel.checks.borrow();
        let lives = |node| self.processes.iter().any(|process| process.member.node == node);
        match checks.oracle.roster().members().all(|member| lives(member.node)) {
            true => 0,
            false => nanos(self.kernel.plan.policy.replace_after * FORGET_FACTOR),
        }
    }

    /// A process notices whether it can reach a peer, or that another one has taken its place.
    pub(super) fn notice(&mut self, place: usize, peer: usize) {
        let (node, version, runs) = match self.client_at(peer) {
            Some(client) => (client.node, INVENTED, client.life.is_some()),
            None => {
                let other = &self.processes[peer];
                (other.member.node, other.version, other.life.is_some())
            }
        };
        let is_unwanted = self.is_unwanted(place, peer);
        let reaches = self.network.is_open(place, peer) && runs && !is_unwanted;
        let clings = planted!(ClientClings) && self.client_at(place).is_some();
        let Some((host, connected)) = self.host_at(place) else {
            return;
        };
        let before = connected.get(&peer).copied();
        let lost = before.unwrap_or(node);
        if is_unwanted && before.is_none() {
            return;
        }
        if !reaches || lost != node {
            connected.remove(&peer);
            if !clings {
                host.input(World::unreachable(lost));
            }
        }
        if reaches {
            connected.insert(peer, node);
            host.input(Input::Connected { peer: node, version });
        }
        self.schedule_step(place);
    }

    /// The host that runs at a place, and its connections.
    fn host_at(&mut self, place: usize) -> Option<(&mut Host, &mut BTreeMap<usize, NodeId>)> {
        if self.kernel.plan.is_client(place) {
            let life = self.client_at_mut(place).life.as_mut()?;
            return Some((&mut life.host, &mut life.connected));
        }
        let life = self.processes[place].life.as_mut()?;
        Some((&mut life.host, &mut life.connected))
    }

    pub(super) fn start_later(&mut self, place: usize) {
        let at = self.random.below(SECOND);
        self.schedule(at, Event::Start { place });
    }

    pub(super) fn lose_place(&mut self, fault: Fault) -> Option<String> {
        let place = self.random.index(self.processes.len());
        match fault {
            Fault::BitRot if self.random.percent(50) && self.may_lose(place) => {
                self.spoil_running(place)
            }
            Fault::BitRot => self.damage(place, Damage::Rotten),
            Fault::LostWrites => self.damage(place, Damage::RolledBack),
            Fault::BadSector => self.damage(place, Damage::BadSector),
            _ => self.wipe(place),
        }
    }
}
