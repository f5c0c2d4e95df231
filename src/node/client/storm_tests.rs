//! Clients among members that die and are cut off, over links that lose messages: whatever happens,
//! nothing is done twice, told twice or left out, and nothing read gets older.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::{Client, ClientConfig};
use crate::error::Error;
use crate::machine::command::{Command, NodeId, Op, Reply, Request};
use crate::node::guests::wire::{Ask, Call, News, ReadOf, Told};
use crate::node::guests::{CLAIMS_BYTES_MAX, QUEUE_BYTES_MAX, WATCHES_MAX};
use crate::node::harness::{Cluster, HEARTBEAT, TICK};
use crate::node::io::{
    Answer, ClientRequest, Effects, Input, Problem, Read, RequestId, Time, WatchId, Write,
};
use crate::node::message::PeerMessage;
use crate::planted::{Bug, plant};
use crate::session::SessionState;
use crate::version::VERSION;
use crate::watch::{EventKind, WatchMode};
use crate::znode::{CreateMode, SessionId, Zxid};

const MEMBERS: u64 = 3;
const FIRST_CLIENT: NodeId = 100;
const CLIENTS: u64 = 2;
const TIMEOUT: Duration = Duration::from_secs(8);

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        crate::node::mixed(self.0) % sides
    }
}

enum Asked {
    Set,
    Get,
}

/// A client with one session, and what it has been told.
struct Seat {
    client: Client,
    inputs: VecDeque<Input>,
    session: SessionId,
    asked: BTreeMap<RequestId, Asked>,
    /// Of its own writes.
    written: Vec<Zxid>,
    /// The members that it dials.
    dials: BTreeSet<NodeId>,
    /// What is sent to it waits until then.
    held_until: Time,
    mail: VecDeque<Input>,
    shown: Zxid,
    /// What was there before its watch was set.
    first: Zxid,
    /// Of the watch that stays.
    told: Vec<Zxid>,
    /// One-shot watches that are set, and those that have fired.
    once: BTreeSet<WatchId>,
    /// What the reads showed that set them.
    reads_at: Vec<Zxid>,
    fired: BTreeSet<WatchId>,
    lease: Time,
    state: SessionState,
}

struct Storm {
    cluster: Cluster,
    seats: BTreeMap<NodeId, Seat>,
    /// Which client and which member do not reach each other.
    cut: BTreeSet<(NodeId, NodeId)>,
    /// How many of a hundred messages to and from clients are lost.
    loss: u64,
    dice: Dice,
    next: u64,
}

impl Storm {
    fn new(seed: u64) -> Storm {
        let mut cluster = Cluster::founded(MEMBERS, VERSION);
        cluster.elect();
        let mut storm = Storm {
            cluster,
            seats: BTreeMap::new(),
            cut: BTreeSet::new(),
            loss: 0,
            dice: Dice(seed),
            next: 1_000_000,
        };
        for id in FIRST_CLIENT..FIRST_CLIENT + CLIENTS {
            let (heartbeat, tick) = (HEARTBEAT, TICK);
            let config = ClientConfig { heartbeat, tick, version: VERSION, seed: seed ^ id };
            let client = Client::new(id, config, storm.cluster.clock());
            let seat = Seat {
                client,
                inputs: VecDeque::new(),
                session: SessionId(id),
                asked: BTreeMap::new(),
                written: Vec::new(),
                dials: (1..=MEMBERS).collect(),
                held_until: Time::ZERO,
                mail: VecDeque::new(),
                shown: 0,
                first: 0,
                told: Vec::new(),
                once: BTreeSet::new(),
                reads_at: Vec::new(),
                fired: BTreeSet::new(),
                lease: Time::ZERO,
                state: SessionState::Connecting,
            };
            storm.seats.insert(id, seat);
            for member in 1..=MEMBERS {
                storm.connect(id, member, true);
            }
            let request = storm.number();
            let (session, timeout) = (SessionId(id), TIMEOUT);
            let open =
                ClientRequest::Open { request, session, holder: id, secret: [7; 16], timeout };
            storm.ask(id, open);
        }
        let request = storm.number();
        let op =
            Op::Create { path: "/n".to_owned(), data: Bytes::new(), mode: CreateMode::Persistent };
        let command = Write::Op(op);
        let session = SessionId(FIRST_CLIENT);
        storm.ask(FIRST_CLIENT, ClientRequest::Write { request, session, command });
        storm.advance(Duration::from_secs(3));
        for id in FIRST_CLIENT..FIRST_CLIENT + CLIENTS {
            let (request, session) = (storm.number(), SessionId(id));
            let (path, mode) = ("/n".into(), WatchMode::Persistent);
            let (watch, from, data) = (WatchId(id), None, false);
            let watch = ClientRequest::Watch { request, session, watch, path, mode, from, data };
            storm.ask(id, watch);
        }
        storm.advance(Duration::from_secs(1));
        let leader = storm.cluster.leader().expect("nothing has happened yet");
        let first = storm.cluster.node(leader).machine().zxid();
        storm.seats.values_mut().for_each(|seat| seat.first = first);
        storm
    }

    fn number(&mut self) -> RequestId {
        self.next += 1;
        RequestId(self.next)
    }

    fn ask(&mut self, id: NodeId, request: ClientRequest) {
        self.seats.get_mut(&id).unwrap().inputs.push_back(Input::Client(request));
    }

    fn connect(&mut self, id: NodeId, member: NodeId, reaches: bool) {
        let news = |peer| {
            if reaches {
                return Input::Connected { peer, version: VERSION };
            }
            let problem = Problem { reason: "cut off".to_owned(), refused: false };
            Input::Unreachable { peer, problem }
        };
        self.seats.get_mut(&id).unwrap().inputs.push_back(news(member));
        self.cluster.input(member, news(id));
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
                assert!(seat.told.last() < Some(&event.zxid), "twice, or out of order");
                assert_eq!(event.kind, EventKind::DataChanged);
                seat.told.push(event.zxid);
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
        for (request, answer) in effects.replies {
            let zxid = match (seat.asked.remove(&request), answer) {
                (Some(Asked::Set), Ok(Answer::Reply(Reply::Set(stat)))) => {
                    assert!(seat.written.last() < Some(&stat.mzxid), "out of order");
                    seat.written.push(stat.mzxid);
                    stat.mzxid
                }
                (Some(Asked::Get), Ok(Answer::Data(_, stat))) => {
                    let told = seat.told.last().copied().unwrap_or(seat.first);
                    assert!(told >= stat.mzxid, "it is read before its event");
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
        for member in effects.members.into_iter().flatten().map(|member| member.node) {
            if self.seats.get_mut(&id).unwrap().dials.insert(member) {
                self.connect(id, member, true);
            }
        }
        for (to, message) in effects.messages {
            if self.cut.contains(&(id, to)) || self.dice.roll(100) < self.loss {
                continue;
            }
            let message = PeerMessage::decode(&message.encode(Vec::new())).unwrap();
            self.cluster.deliver(id, to, message);
        }
    }

    fn advance(&mut self, time: Duration) {
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

    /// Something is asked for, or goes wrong.
    fn happen(&mut self) {
        let id = FIRST_CLIENT + self.dice.roll(CLIENTS);
        let (session, member) = (SessionId(id), 1 + self.dice.roll(MEMBERS));
        match self.dice.roll(19) {
            0..=5 => {
                let request = self.number();
                self.seats.get_mut(&id).unwrap().asked.insert(request, Asked::Set);
                let data = Bytes::from(request.0.to_string());
                let command = Write::Op(Op::Set { path: "/n".to_owned(), data, version: None });
                self.ask(id, ClientRequest::Write { request, session, command });
            }
            6..=8 => {
                let request = self.number();
                self.seats.get_mut(&id).unwrap().asked.insert(request, Asked::Get);
                let (read, watch) = (Read::Get { path: "/n".to_owned() }, WatchId(request.0));
                self.seats.get_mut(&id).unwrap().once.insert(watch);
                let watch = Some((watch, "/n".into()));
                self.ask(id, ClientRequest::Read { request, session, read, watch });
            }
            9 | 10 => {
                self.cut.insert((id, member));
                self.connect(id, member, false);
            }
            11 | 12 => {
                if self.cut.remove(&(id, member)) {
                    self.connect(id, member, true);
                }
            }
            13 => self.cluster.isolate(member),
            14 => self.cluster.heal(),
            15..=17 => {
                let time = HEARTBEAT * self.dice.roll(28) as u32;
                self.seats.get_mut(&id).unwrap().held_until = self.cluster.now + time;
                // With luck it asks for a round right now, and hears of it late.
                self.advance(time);
            }
            _ => self.loss = [0, 0, 3, 10][self.dice.roll(4) as usize],
        }
        let beats = self.dice.roll(8) as u32;
        self.advance(HEARTBEAT * beats);
    }

    fn end(mut self) {
        self.loss = 0;
        self.cluster.heal();
        for (id, member) in std::mem::take(&mut self.cut) {
            self.connect(id, member, true);
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
                assert_eq!(seat.told, all, "an event was lost");
            }
            assert_eq!(seat.told.last(), Some(&stat.mzxid).filter(|_| stat.version > 0));
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

/// It hears late of the last round that was confirmed, and then nothing more.
fn late_answers(beat: u32) {
    let mut storm = Storm::new(u64::from(beat));
    storm.advance(HEARTBEAT * beat);
    let late = HEARTBEAT * 28;
    let seat = storm.seats.get_mut(&FIRST_CLIENT).unwrap();
    seat.held_until = storm.cluster.now + late;
    storm.advance(late);
    for member in 1..=MEMBERS {
        storm.cut.insert((FIRST_CLIENT, member));
        storm.connect(FIRST_CLIENT, member, false);
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
        for id in clients.clone() {
            storm.connect(id, old, false);
            let (request, session) = (storm.number(), SessionId(id));
            storm.seats.get_mut(&id).unwrap().asked.insert(request, Asked::Set);
            let data = Bytes::from(request.0.to_string());
            let command = Write::Op(Op::Set { path: "/n".to_owned(), data, version: None });
            storm.ask(id, ClientRequest::Write { request, session, command });
        }
        storm.advance(Duration::from_secs(5));
    }
    for seat in storm.seats.values() {
        assert!(!seat.state.is_final(), "it has lost its session");
        let status = seat.client.status();
        let peers: Vec<NodeId> = status.peers.iter().map(|(peer, _)| *peer).collect();
        assert_eq!(peers, (MEMBERS + 1..=2 * MEMBERS).collect::<Vec<_>>());
        let mut voters = status.availability.voters;
        voters.sort_unstable();
        assert_eq!((voters, status.availability.has_leader), (peers, true));
    }
    storm.end();
}

#[test]
fn all_members_may_be_replaced() {
    (0..5).for_each(replaced);
}

/// What no cluster's members can be is not taken for them, and another member is looked for.
#[test]
fn members_that_there_cannot_be_are_not_dialled() {
    use crate::membership::{MEMBERS_MAX, Member};
    let member = |node: NodeId| Member::new(node, format!("host:{node}"));
    let all = MEMBERS_MAX as NodeId;
    let many = |count: NodeId| (1..=count).map(member).collect::<Vec<_>>();
    for (members, good) in [
        (many(all), true),
        (many(all + 1), false),
        // Another one has moved to where it was, and where it is it has not told.
        (vec![member(7), Member::new(8, "")], true),
        (Vec::new(), false),
        (vec![member(7), member(7)], false),
        (vec![member(0)], false),
        (vec![Member::new(7, "host:1\n")], false),
        (vec![Member::new(7, "h".repeat(300))], false),
    ] {
        let mut storm = Storm::new(1);
        let seat = storm.seats.get_mut(&FIRST_CLIENT).unwrap();
        let (attachment, number, member) = seat.client.hears();
        let count = members.len();
        let news = vec![News::Members { members, availability: Default::default() }];
        let told = Some(Told { zxid: 1, version: VERSION, leader: member });
        let from = |member, number| {
            let (news, told) = (news.clone(), told);
            let message = PeerMessage::Tell { attachment, number, news, told };
            Input::Peer { from: member, message }
        };
        // Of another one than serves it, it takes nothing.
        let now = storm.cluster.clock();
        assert_eq!(seat.client.step(now, [from(member % MEMBERS + 1, number)]).members, None);
        assert_eq!(seat.client.member(), Some(member));
        let effects = seat.client.step(now, [from(member, number)]);
        assert_eq!(effects.members.map(|members| members.len()), good.then_some(count));
        assert_eq!(seat.client.member() == Some(member), good, "it looks for another one");
    }
}

/// It would tell if it were not so.
#[test]
fn a_planted_bug_is_found() {
    for bug in Bug::OF_CLIENTS {
        let found = (0..200).any(|seed| {
            plant(Some(bug));
            let run = std::panic::catch_unwind(|| match bug {
                Bug::GuestLeaseFromAnswer => late_answers(seed as u32 % 45),
                Bug::ClientKeepsToItsList => replaced(seed),
                _ => storm(seed),
            });
            plant(None);
            run.is_err()
        });
        assert!(found, "{bug:?} was not found");
    }
}

/// Says something to member 1 as if from a client, and gives what is let go and why.
fn said(storm: &mut Storm, from: NodeId, number: u64, asks: Vec<Ask>) -> Vec<String> {
    say(storm, (from, number, 0), asks)
}

fn say(
    storm: &mut Storm,
    (from, number, heard): (NodeId, u64, u64),
    asks: Vec<Ask>,
) -> Vec<String> {
    storm.cluster.deliver(from, 1, PeerMessage::Ask { attachment: 9, number, heard, asks });
    storm.cluster.settle();
    let sent = std::mem::take(&mut storm.cluster.elsewhere);
    let ours = sent.into_iter().filter(|(_, to, _)| *to == from);
    ours.filter_map(|(_, _, message)| match message {
        PeerMessage::LetGo { attachment: 9, reason } => Some(reason),
        _ => None,
    })
    .collect()
}

#[test]
fn a_client_may_say_only_what_a_client_may() {
    let mut storm = Storm::new(1);
    let (guest, begin) = (500, || vec![Ask::Begin { seen: 0 }, Ask::Begun]);
    let request = |command| Request { session: SessionId(9), holder: 9, seq: 0, acked: 0, command };
    let (secret, timeout_ms, base) = ([0; 16], 1000, 0);
    let read = |path: &str| {
        let call = Call { request: 1, session: SessionId(9), holder: 9, after: 0 };
        Ask::Read { call, read: ReadOf::Get(path.to_owned()), watch: None }
    };
    let refused = [
        Ask::Write(request(Command::Expire { term: 1 })),
        Ask::Write(request(Command::RaiseVersion { version: 9 })),
        Ask::Write(request(Command::Reap { path: "/n".to_owned() })),
        Ask::Write(request(Command::Open { secret, timeout_ms, owner: 1, base })),
        Ask::Write(request(Command::Resume { secret, timeout_ms, owner: 1 })),
        Ask::Begin { seen: 0 },
        Ask::Begun,
        Ask::Of { cluster: 1 },
        read("no path"),
    ];
    for ask in refused {
        assert!(said(&mut storm, guest, 0, begin()).is_empty());
        let told = format!("{ask:?}");
        assert_eq!(said(&mut storm, guest, 1, vec![ask]).len(), 1, "{told}");
        // It is forgotten.
        assert_eq!(said(&mut storm, guest, 2, vec![]).len(), 1, "{told}");
    }
    assert_eq!(said(&mut storm, guest, 0, vec![Ask::Begun]).len(), 1, "it has not begun");
    assert_eq!(said(&mut storm, 2, 0, begin()).len(), 0, "a member is no client");
    let of = |cluster| vec![Ask::Begin { seen: 0 }, Ask::Of { cluster }, Ask::Begun];
    assert_eq!(said(&mut storm, guest, 0, of(2)), ["it is a client of another cluster"]);
    assert!(said(&mut storm, guest, 0, of(1)).is_empty());
    // What is said among members is not for it to say.
    assert!(said(&mut storm, guest, 0, begin()).is_empty());
    let round = PeerMessage::Round { boot: 1, round: 1, sessions: vec![SessionId(FIRST_CLIENT)] };
    storm.cluster.deliver(guest, 1, round);
    storm.cluster.settle();
    assert!(storm.cluster.elsewhere.iter().all(|(_, to, _)| *to != guest));
    // A message that is lost shows by the next one.
    assert_eq!(said(&mut storm, guest, 3, vec![]), ["a message was lost"]);
}

#[test]
fn what_a_client_costs_its_member_is_bounded() {
    let mut storm = Storm::new(2);
    let (guest, begin) = (500, || vec![Ask::Begin { seen: 0 }, Ask::Begun]);
    let path = format!("/{}", "x".repeat(1000));
    // Reads of a session that is never opened wait.
    let read = |request| {
        let call = Call { request, session: SessionId(9), holder: 9, after: 0 };
        Ask::Read { call, read: ReadOf::Get(path.clone()), watch: None }
    };
    assert!(said(&mut storm, guest, 0, begin()).is_empty());
    let mut number = 0;
    let reason = loop {
        number += 1;
        assert!(number < 10_000, "it asks for as much as it likes");
        if let Some(reason) = said(&mut storm, guest, number, vec![read(number)]).pop() {
            break reason;
        }
    };
    assert_eq!(reason, "it asks for too much at a time");
    assert!(number as usize * 1000 > QUEUE_BYTES_MAX / 2);
    // One that does not say that it has heard is told no answers any more, and then let go.
    assert!(said(&mut storm, guest, 0, begin()).is_empty());
    let (secret, timeout_ms, owner, base) = ([0; 16], 20_000, guest, 0);
    let command = Command::Open { secret, timeout_ms, owner, base };
    let (session, holder) = (SessionId(9), 9);
    let open = Request { session, holder, seq: 0, acked: 0, command };
    assert!(said(&mut storm, guest, 1, vec![Ask::Write(open)]).is_empty());
    let data = Bytes::from(vec![7; 1 << 20]);
    let op = Op::Set { path: "/n".to_owned(), data, version: None };
    let session_of_writer = SessionId(FIRST_CLIENT);
    let write = storm.number();
    let command = Write::Op(op);
    let write = ClientRequest::Write { request: write, session: session_of_writer, command };
    storm.ask(FIRST_CLIENT, write);
    storm.advance(Duration::from_secs(1));
    let mut answers = 0;
    for request in 0..20 {
        let call = Call { request, session, holder, after: 0 };
        let read = Ask::Read { call, read: ReadOf::Get("/n".to_owned()), watch: None };
        let asks =
            PeerMessage::Ask { attachment: 9, number: request + 2, heard: 0, asks: vec![read] };
        storm.cluster.deliver(guest, 1, asks);
        storm.cluster.settle();
        for (_, to, message) in std::mem::take(&mut storm.cluster.elsewhere) {
            if let PeerMessage::Tell { news, .. } = message
                && to == guest
            {
                let is_answer = |news: &&News| matches!(news, News::Answer { .. });
                answers += news.iter().filter(is_answer).count();
            }
        }
    }
    assert!((1..5).contains(&answers), "{answers} answers that nobody hears");
    // And one that is silent is forgotten.
    storm.advance(TICK * 21);
    assert_eq!(said(&mut storm, guest, 22, vec![]), ["a message was lost"]);
}

/// What it holds costs its member as well: one that holds more than a client does is let go.
#[test]
fn what_a_client_may_hold_is_bounded() {
    let mut storm = Storm::new(3);
    let (guest, begin) = (500, || vec![Ask::Begin { seen: 0 }, Ask::Begun]);
    let holder = 9;
    let open = |session| {
        let (secret, timeout_ms, owner, base) = ([0; 16], 20_000, guest, 0);
        let command = Command::Open { secret, timeout_ms, owner, base };
        Ask::Write(Request { session, holder, seq: 0, acked: 0, command })
    };
    let watch = |session, watch, path: &str| {
        let call = Call { request: watch, session, holder, after: 0 };
        let (path, recursive, from, data, round) = (path.to_owned(), false, None, false, 0);
        Ask::SetWatch { call, watch, path, recursive, from, data, round }
    };
    let long = format!("/{}", "x".repeat(4000));
    let watches = |storm: &Storm, session| storm.cluster.node(1).watches.guests_of(session).len();
    let session = SessionId(9);
    // The same one again and again is one.
    assert!(said(&mut storm, guest, 0, begin()).is_empty());
    assert!(said(&mut storm, guest, 1, vec![open(session)]).is_empty());
    storm.advance(Duration::from_secs(1));
    for number in 2..12 {
        assert!(said(&mut storm, guest, number, vec![watch(session, 7, "/n")]).is_empty());
    }
    assert_eq!(watches(&storm, session), 1);
    for (path, session) in [("/n", SessionId(10)), (&long, SessionId(11))] {
        assert!(said(&mut storm, guest, 0, begin()).is_empty());
        assert!(said(&mut storm, guest, 1, vec![open(session)]).is_empty());
        storm.advance(HEARTBEAT * 4);
        let many = if path == "/n" { 2000 } else { 100 };
        let asks =
            |number| (0..many).map(|one| watch(session, number * many + one, path)).collect();
        let let_go = (2..200)
            .find(|number| !say(&mut storm, (guest, *number, u64::MAX), asks(*number)).is_empty());
        let let_go = let_go.expect("it watches as much as it likes");
        let most = if path == "/n" { WATCHES_MAX as u64 } else { (8 << 20) / path.len() as u64 };
        assert!((most..most + 3 * many).contains(&((let_go - 1) * many)), "{let_go}");
        assert_eq!(watches(&storm, session), 0);
    }
    // Nor may it speak of as many sessions as it likes, of which nothing comes without a leader.
    storm.cluster.isolate(1);
    storm.advance(Duration::from_secs(5));
    assert!(said(&mut storm, guest, 0, begin()).is_empty());
    let asks = |number| {
        let request = |holder| {
            let command = Command::Close;
            Ask::Write(Request { session, holder, seq: 0, acked: 0, command })
        };
        (0..2000).map(|one| request(number * 2000 + one)).collect()
    };
    let let_go = (1..100)
        .find(|number| !say(&mut storm, (guest, *number, u64::MAX), asks(*number)).is_empty());
    assert!((30..40).contains(&let_go.unwrap_or(100)), "{let_go:?}");
}

/// Those that it has asked for count with those that it holds: it must be able to tell all of them to
/// the next member.
#[test]
fn a_client_asks_for_no_more_watches_than_it_may_hold() {
    for bytes in [1, 4000] {
        let mut storm = Storm::new(1);
        let path: Arc<str> = format!("/{}", "x".repeat(bytes)).into();
        let (session, mode, from, data) =
            (SessionId(FIRST_CLIENT), WatchMode::Persistent, None, false);
        let requests = (0..WATCHES_MAX as u64 + 10).map(|number| {
            let (request, watch) = (RequestId(number), WatchId(1000 + number));
            let path = Arc::clone(&path);
            let watch = ClientRequest::Watch { request, session, watch, path, mode, from, data };
            Input::Client(watch)
        });
        let now = storm.cluster.clock();
        let seat = storm.seats.get_mut(&FIRST_CLIENT).unwrap();
        let effects = seat.client.step(now, requests);
        let is_busy =
            |(_, answer): &&(_, Result<_, Error>)| matches!(answer, Err(Error::Busy { .. }));
        let busy = effects.replies.iter().filter(is_busy).count();
        let fits = WATCHES_MAX.min(CLAIMS_BYTES_MAX / 2 / path.len());
        let taken = WATCHES_MAX + 10 - busy;
        assert!((fits * 9 / 10..=fits).contains(&taken), "{taken} of {fits}");
    }
}

/// They are answered one after the other, as they hear, and none is let go for what all have asked.
#[test]
fn many_clients_may_ask_for_much_at_once() {
    let mut storm = Storm::new(4);
    let data = Bytes::from(vec![7; 1 << 20]);
    let command = Write::Op(Op::Set { path: "/n".to_owned(), data, version: None });
    let (request, session) = (storm.number(), SessionId(FIRST_CLIENT));
    storm.ask(FIRST_CLIENT, ClientRequest::Write { request, session, command });
    storm.advance(Duration::from_secs(1));
    let guests = 1000..1300;
    let holder = 9;
    for guest in guests.clone() {
        let (session, secret, timeout_ms, owner, base) =
            (SessionId(guest), [0; 16], 40_000, guest, 0);
        let command = Command::Open { secret, timeout_ms, owner, base };
        let open = Ask::Write(Request { session, holder, seq: 0, acked: 0, command });
        for (number, asks) in [(0, vec![Ask::Begin { seen: 0 }, Ask::Begun]), (1, vec![open])] {
            let message = PeerMessage::Ask { attachment: 9, number, heard: 0, asks };
            storm.cluster.deliver(guest, 1, message);
        }
    }
    storm.advance(Duration::from_secs(1));
    for guest in guests.clone() {
        let call = Call { request: 1, session: SessionId(guest), holder, after: 0 };
        let read = Ask::Read { call, read: ReadOf::Get("/n".to_owned()), watch: None };
        let asks = PeerMessage::Ask { attachment: 9, number: 2, heard: 0, asks: vec![read] };
        storm.cluster.deliver(guest, 1, asks);
    }
    let (mut answered, mut said) = (BTreeSet::new(), 3);
    for _ in 0..20 {
        storm.cluster.settle();
        for (_, guest, message) in std::mem::take(&mut storm.cluster.elsewhere) {
            match message {
                PeerMessage::Tell { news, .. } if guests.contains(&guest) => {
                    let is_answer = |news: &News| matches!(news, News::Answer { .. });
                    answered.extend(news.iter().any(is_answer).then_some(guest));
                }
                PeerMessage::LetGo { reason, .. } => panic!("{guest} was let go: {reason}"),
                _ => {}
            }
        }
        for guest in guests.clone() {
            let (heard, asks) = (u64::MAX, Vec::new());
            let hears = PeerMessage::Ask { attachment: 9, number: said, heard, asks };
            storm.cluster.deliver(guest, 1, hears);
        }
        said += 1;
    }
    assert_eq!(answered.len(), guests.count());
}
