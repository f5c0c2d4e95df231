//! Clients among members that die and are cut off, over links that lose messages. Whatever happens,
//! no write is run twice, no event is sent twice or left out, and no read goes back in time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;

use super::{Client, ClientConfig};
use crate::machine::command::{Command, Op, Reply};
use crate::node::client_message::{ToClient, UpTo};
use crate::node::io::{Answered, Dial, Effects, Input, Problem, RequestId, Time, WatchId};
use crate::node::message::{MESSAGE_BYTES_MAX, PeerMessage};
use crate::node::query::{Answer, EventData, Query, Read};
use crate::node::request::{ClientRequest, RequestBody};
use crate::node::tests::harness::{Cluster, HEARTBEAT, TICK};
use crate::planted::{Bug, plant};
use crate::types::membership::NodeId;
use crate::types::session::SessionState;
use crate::types::version::VERSION;
use crate::types::watch::EventKind;
use crate::types::znode::{CreateMode, SessionId, Zxid};

const MEMBERS: u64 = 3;
pub(super) const FIRST_CLIENT: NodeId = 100;
const CLIENTS: u64 = 2;
const TIMEOUT: Duration = Duration::from_secs(8);

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        crate::node::random::mixed(self.0) % sides
    }
}

enum Asked {
    Set,
    Get,
}

/// Whether a client dials this member. The first ones are on its list.
fn is_found(dial: &Dial, member: NodeId) -> bool {
    dial.names(member) || dial.seeks && member <= MEMBERS
}

/// A client with one session, and the answers and events that it has received.
pub(super) struct Seat {
    pub(super) client: Client,
    inputs: VecDeque<Input>,
    session: SessionId,
    asked: BTreeMap<RequestId, Asked>,
    /// The zxids of its own writes.
    written: Vec<Zxid>,
    dial: Dial,
    /// Messages to it wait until then.
    held_until: Time,
    mail: VecDeque<Input>,
    shown: Zxid,
    /// The zxid before its watch was set.
    first: Zxid,
    /// The zxids of the events of its persistent watch.
    up_to: Vec<Zxid>,
    /// One-shot watches that are set, and those that have fired.
    once: BTreeSet<WatchId>,
    /// The zxids of the reads that set them.
    reads_at: Vec<Zxid>,
    fired: BTreeSet<WatchId>,
    lease: Time,
    state: SessionState,
}

pub(super) struct Storm {
    pub(super) cluster: Cluster,
    pub(super) seats: BTreeMap<NodeId, Seat>,
    /// The pairs of a client and a member that do not reach each other.
    cut: BTreeSet<(NodeId, NodeId)>,
    /// Members that are gone for good.
    gone: BTreeSet<NodeId>,
    /// How many of a hundred messages to and from clients are lost.
    loss: u64,
    dice: Dice,
    next: u64,
    /// The number of the attachment for messages sent as if from a client.
    pub(super) attachment: u64,
}

impl Storm {
    pub(super) fn new(seed: u64) -> Storm {
        let mut cluster = Cluster::new(MEMBERS);
        cluster.elect();
        let mut storm = Storm {
            cluster,
            seats: BTreeMap::new(),
            cut: BTreeSet::new(),
            gone: BTreeSet::new(),
            loss: 0,
            dice: Dice(seed),
            next: 1_000_000,
            attachment: 0,
        };
        for id in FIRST_CLIENT..FIRST_CLIENT + CLIENTS {
            let (heartbeat, tick) = (HEARTBEAT, TICK);
            let config = ClientConfig {
                audit: false,
                name: String::new(),
                heartbeat,
                tick,
                timeouts: crate::node::TimeoutBounds::of(tick),
                version: VERSION,
                seed: seed ^ id,
            };
            let client = Client::new(id, config, storm.cluster.clock());
            let seat = Seat {
                client,
                inputs: VecDeque::new(),
                session: SessionId(id),
                asked: BTreeMap::new(),
                written: Vec::new(),
                dial: Dial::seeking(),
                held_until: Time::ZERO,
                mail: VecDeque::new(),
                shown: 0,
                first: 0,
                up_to: Vec::new(),
                once: BTreeSet::new(),
                reads_at: Vec::new(),
                fired: BTreeSet::new(),
                lease: Time::ZERO,
                state: SessionState::Connecting,
            };
            storm.seats.insert(id, seat);
            for member in 1..=MEMBERS {
                storm.connect(id, member);
            }
            let request = storm.number();
            let open = RequestBody::open(id, [7; 16], TIMEOUT);
            storm.ask(id, (request, SessionId(id)), open);
        }
        let request = storm.number();
        let op = Op::Create { path: "/n".into(), data: "".into(), mode: CreateMode::Persistent };
        let command = Command::Op(op);
        let session = SessionId(FIRST_CLIENT);
        storm.ask(FIRST_CLIENT, (request, session), RequestBody::Command(command));
        storm.advance(Duration::from_secs(3));
        for id in FIRST_CLIENT..FIRST_CLIENT + CLIENTS {
            let (request, session) = (storm.number(), SessionId(id));
            let (watch, path, recursive) = (WatchId(id), "/n".into(), false);
            let query = Query::Watch { watch, path, recursive, from: None, data: EventData::None };
            storm.ask(id, (request, session), RequestBody::Query(query));
        }
        storm.advance(Duration::from_secs(1));
        let leader = storm.cluster.leader().expect("nothing has happened yet");
        let first = storm.cluster.node(leader).machine().zxid();
        storm.seats.values_mut().for_each(|seat| seat.first = first);
        storm
    }

    pub(super) fn number(&mut self) -> RequestId {
        self.next += 1;
        RequestId(self.next)
    }

    pub(super) fn ask(
        &mut self,
        client: NodeId,
        (id, session): (RequestId, SessionId),
        body: RequestBody,
    ) {
        let request = Input::Client(ClientRequest { id, session, body });
        self.seats.get_mut(&client).unwrap().inputs.push_back(request);
    }

    /// Reports to a client and a member whether they are connected.
    fn connect(&mut self, id: NodeId, member: NodeId) {
        let seat = self.seats.get_mut(&id).unwrap();
        let reaches = !self.cut.contains(&(id, member)) && !self.gone.contains(&member);
        let is_wanted = is_found(&seat.dial, member);
        let updates = |peer| {
            if reaches && is_wanted {
                return Input::Connected { peer, version: VERSION };
            }
            let problem = Problem { reason: "cut off".to_owned(), refused: false };
            Input::Unreachable { peer, problem }
        };
        if is_wanted {
            seat.inputs.push_back(updates(member));
        }
        self.cluster.input(member, updates(id));
    }

    fn settle(&mut self) {
        loop {
            self.cluster.settle();
            let sent = std::mem::take(&mut self.cluster.elsewhere);
            let mut quiet = sent.is_empty();
            for (from, to, message) in sent {
                if !self.cut.contains(&(to, from)) && self.dice.roll(100) >= self.loss {
                    let input = Input::Peer { from, message };
                    if let Some(seat) = self.seats.get_mut(&to) {
                        seat.mail.push_back(input);
                    }
                }
            }
            for seat in self.seats.values_mut().filter(|seat| self.cluster.now >= seat.held_until) {
                seat.inputs.append(&mut seat.mail);
            }
            for id in self.seats.keys().copied().collect::<Vec<_>>() {
                if !self.seats[&id].inputs.is_empty() {
                    quiet = false;
                    self.step(id);
                }
            }
            if quiet {
                return;
            }
        }
    }

    fn step(&mut self, id: NodeId) {
        let now = self.cluster.clock();
        let seat = self.seats.get_mut(&id).unwrap();
        let inputs: Vec<Input> = seat.inputs.drain(..).collect();
        let effects = seat.client.step(now, inputs);
        self.perform(id, effects);
    }

    fn perform(&mut self, id: NodeId, effects: Effects) {
        let seat = self.seats.get_mut(&id).unwrap();
        for (watch, event) in effects.events {
            if watch == WatchId(id) {
                assert!(seat.up_to.last() < Some(&event.zxid), "twice, or out of order");
                assert_eq!(event.kind, EventKind::DataChanged);
                seat.up_to.push(event.zxid);
            } else {
                assert!(seat.fired.insert(watch), "it fires once");
            }
        }
        for (of, until) in effects.leases {
            assert_eq!(of.holder, id);
            seat.lease = until;
        }
        for (_, state) in effects.sessions {
            seat.state = state;
        }
        for Answered { request, answer, .. } in effects.replies {
            let zxid = match (seat.asked.remove(&request), answer) {
                (Some(Asked::Set), Ok(Answer::Reply(Reply::Set(stat)))) => {
                    assert!(seat.written.last() < Some(&stat.mzxid), "out of order");
                    seat.written.push(stat.mzxid);
                    stat.mzxid
                }
                (Some(Asked::Get), Ok(Answer::Data { stat, .. })) => {
                    let up_to = seat.up_to.last().copied().unwrap_or(seat.first);
                    assert!(up_to >= stat.mzxid, "it is read before its event");
                    seat.reads_at.push(stat.mzxid);
                    stat.mzxid
                }
                (Some(_), Err(error)) if error.is_session_lost() || error.is_outcome_unknown() => {
                    assert!(seat.state.is_final(), "{error}");
                    continue;
                }
                (Some(_), answer) => panic!("{answer:?}"),
                (None, _) => continue,
            };
            assert!(zxid >= seat.shown, "{zxid} is older than {}", seat.shown);
            seat.shown = zxid;
        }
        if let Some(dial) = effects.dial {
            let former = std::mem::replace(&mut seat.dial, dial);
            for member in 1..=2 * MEMBERS {
                if is_found(&former, member) != is_found(&self.seats[&id].dial, member) {
                    self.connect(id, member);
                }
            }
        }
        for (to, message) in effects.messages {
            if self.cut.contains(&(id, to)) || self.dice.roll(100) < self.loss {
                continue;
            }
            let bytes = message.encode(Vec::new());
            assert!(bytes.len() <= MESSAGE_BYTES_MAX, "a transport drops it");
            let message = PeerMessage::decode(&bytes).unwrap();
            self.cluster.deliver(id, to, message);
        }
    }

    pub(super) fn advance(&mut self, time: Duration) {
        let mut left = time;
        while !left.is_zero() {
            let by = HEARTBEAT.min(left);
            self.cluster.advance(by);
            left -= by;
            for id in self.seats.keys().copied().collect::<Vec<_>>() {
                self.step(id);
            }
            self.settle();
            for (id, seat) in &self.seats {
                let there = (1..=MEMBERS).any(|member| {
                    let node = self.cluster.hosts[&member].node.as_ref();
                    node.is_some_and(|node| node.machine().session(seat.session).is_none())
                });
                let alive = self.cluster.now < seat.lease && !seat.state.is_final();
                assert!(
                    !(there && alive),
                    "client {id} takes its session for alive, and it is gone"
                );
            }
        }
    }

    /// A request is made, or a fault happens.
    fn happen(&mut self) {
        let id = FIRST_CLIENT + self.dice.roll(CLIENTS);
        let (session, member) = (SessionId(id), 1 + self.dice.roll(MEMBERS));
        match self.dice.roll(19) {
            0..=5 => {
                let request = self.number();
                self.seats.get_mut(&id).unwrap().asked.insert(request, Asked::Set);
                let data = Bytes::from(request.0.to_string());
                let command =
                    Command::Op(Op::Set { path: "/n".into(), data: data.into(), version: None });
                self.ask(id, (request, session), RequestBody::Command(command));
            }
            6..=8 => {
                let request = self.number();
                self.seats.get_mut(&id).unwrap().asked.insert(request, Asked::Get);
                let (read, watch) = (Read::Get { path: "/n".into() }, WatchId(request.0));
                self.seats.get_mut(&id).unwrap().once.insert(watch);
                let query = Query::Read { read, watch: Some(watch) };
                self.ask(id, (request, session), RequestBody::Query(query));
            }
            9 | 10 => {
                self.cut.insert((id, member));
                self.connect(id, member);
            }
            11 | 12 => {
                if self.cut.remove(&(id, member)) {
                    self.connect(id, member);
                }
            }
            13 => self.cluster.isolate(member),
            14 => self.cluster.heal(),
            15..=17 => {
                let time = HEARTBEAT * self.dice.roll(14) as u32;
                self.seats.get_mut(&id).unwrap().held_until = self.cluster.now + time;
                // With luck the client sends a ReadIndex request right now, and gets the answer
                // late.
                self.advance(time);
            }
            _ => self.loss = [0, 0, 3, 10][self.dice.roll(4) as usize],
        }
        let beats = self.dice.roll(4) as u32;
        self.advance(HEARTBEAT * beats);
    }

    fn end(mut self) {
        self.loss = 0;
        self.cluster.heal();
        for (id, member) in std::mem::take(&mut self.cut) {
            self.connect(id, member);
        }
        self.advance(Duration::from_secs(20));
        let zxids = |seat: &Seat| seat.written.clone();
        let mut all: Vec<Zxid> = self.seats.values().flat_map(zxids).collect();
        all.sort_unstable();
        let leader = self.cluster.leader().unwrap();
        let tree = self.cluster.node(leader).machine().tree();
        let stat = tree.get("/n").unwrap().stat();
        let lost = self.seats.values().any(|seat| seat.state.is_final());
        if !lost {
            assert_eq!(stat.version, all.len() as u64, "a write was done twice, or not at all");
        }
        for seat in self.seats.values() {
            if seat.state.is_final() {
                continue;
            }
            assert!(seat.asked.is_empty(), "{} have no answer", seat.asked.len());
            if !lost {
                assert_eq!(seat.up_to, all, "an event was lost");
            }
            assert_eq!(seat.up_to.last(), Some(&stat.mzxid).filter(|_| stat.version > 0));
            let last = seat.once.iter().filter(|watch| !seat.fired.contains(watch)).count();
            let reads = seat.reads_at.iter().filter(|zxid| **zxid < stat.mzxid).count();
            assert!(seat.once.len() - last >= reads, "a watch that fires once did not");
        }
    }
}

fn storm(seed: u64) {
    let mut storm = Storm::new(seed);
    for _ in 0..150 {
        storm.happen();
        if storm.seats.values().any(|seat| seat.state.is_final()) {
            break;
        }
    }
    storm.end();
}

/// The client receives the last confirmation of a ReadIndex request late, and then nothing more.
fn late_answers(beat: u32) {
    let mut storm = Storm::new(u64::from(beat));
    storm.advance(HEARTBEAT * beat);
    let late = HEARTBEAT * 14;
    let seat = storm.seats.get_mut(&FIRST_CLIENT).unwrap();
    seat.held_until = storm.cluster.now + late;
    storm.advance(late);
    for member in 1..=MEMBERS {
        storm.cut.insert((FIRST_CLIENT, member));
        storm.connect(FIRST_CLIENT, member);
    }
    storm.advance(TIMEOUT * 3 / 2);
    assert_eq!(storm.seats[&FIRST_CLIENT].state, SessionState::Expired);
}

#[test]
fn a_lease_counts_from_when_it_was_asked_for() {
    (0..45).for_each(late_answers);
}

#[test]
fn nothing_is_lost_doubled_or_older_whatever_happens() {
    for seed in 0..25 {
        storm(seed);
    }
}

/// The members that its list names are replaced by others, one after the other.
fn replaced(seed: u64) {
    let mut storm = Storm::new(seed);
    let clients = FIRST_CLIENT..FIRST_CLIENT + CLIENTS;
    for (old, new) in (1..=MEMBERS).map(|old| (old, old + MEMBERS)) {
        storm.cluster.add(new);
        storm.advance(Duration::from_secs(10));
        storm.cluster.leave(old);
        storm.advance(Duration::from_secs(20));
        storm.cluster.kill(old);
        storm.gone.insert(old);
        for id in clients.clone() {
            storm.connect(id, old);
            let (request, session) = (storm.number(), SessionId(id));
            storm.seats.get_mut(&id).unwrap().asked.insert(request, Asked::Set);
            let data = Bytes::from(request.0.to_string());
            let command =
                Command::Op(Op::Set { path: "/n".into(), data: data.into(), version: None });
            storm.ask(id, (request, session), RequestBody::Command(command));
        }
        storm.advance(Duration::from_secs(5));
    }
    for seat in storm.seats.values() {
        assert!(!seat.state.is_final(), "it has lost its session");
        let status = seat.client.status();
        let members: Vec<NodeId> = (MEMBERS + 1..=2 * MEMBERS).collect();
        let peers: Vec<NodeId> = status.peers.iter().map(|(peer, _)| *peer).collect();
        assert!(peers.len() <= 2 && peers.iter().all(|peer| members.contains(peer)), "{peers:?}");
        let mut voters = status.availability.voters;
        voters.sort_unstable();
        assert_eq!((voters, status.availability.has_leader), (members, true));
    }
    storm.end();
}

#[test]
fn all_members_may_be_replaced() {
    (0..5).for_each(replaced);
}

/// A list that cannot be that of a cluster's members is refused, and the client looks for another
/// member.
#[test]
fn members_of_an_impossible_list_are_not_dialled() {
    use crate::types::membership::{MEMBERS_MAX, Member};
    let member = |node: NodeId| Member::new(node, format!("host:{node}"));
    let all = MEMBERS_MAX as NodeId;
    let many = |count: NodeId| (1..=count).map(member).collect::<Vec<_>>();
    for (members, good) in [
        (many(all), true),
        (many(all + 1), false),
        // Another member has moved to its address, and it has not reported its new one yet.
        ([many(MEMBERS), vec![Member::new(8, "")]].concat(), true),
        (Vec::new(), false),
        (vec![member(7), member(7)], false),
        (vec![member(0)], false),
        (vec![Member::new(7, "host:1\n")], false),
        (vec![Member::new(7, "h".repeat(300))], false),
    ] {
        let mut storm = Storm::new(1);
        let seat = storm.seats.get_mut(&FIRST_CLIENT).unwrap();
        let (attachment, number, member) = seat.client.expects();
        let count = members.len();
        let updates = vec![ToClient::Members { members, availability: Default::default() }];
        let up_to = Some(UpTo { zxid: 1, version: VERSION, leader: member });
        let from = |member, number| {
            let (updates, up_to) = (updates.clone(), up_to);
            let message = PeerMessage::ToClient { attachment, number, updates, up_to };
            Input::Peer { from: member, message }
        };
        // The client ignores messages of a member that does not serve it.
        let now = storm.cluster.clock();
        assert_eq!(seat.client.step(now, [from(member % MEMBERS + 1, number)]).members, None);
        assert_eq!(seat.client.member(), Some(member));
        let effects = seat.client.step(now, [from(member, number)]);
        assert_eq!(effects.members.map(|members| members.len()), good.then_some(count));
        assert_eq!(seat.client.member() == Some(member), good, "it looks for another one");
    }
}

/// The tests above must find each planted bug.
#[test]
fn a_planted_bug_is_found() {
    for bug in Bug::OF_CLIENTS {
        let found = (0..200).any(|seed| {
            plant(Some(bug));
            let run = std::panic::catch_unwind(|| match bug {
                Bug::ClientLeaseFromAnswer => late_answers(seed as u32 % 45),
                _ => storm(seed),
            });
            plant(None);
            run.is_err()
        });
        assert!(found, "{bug:?} was not found");
    }
}
