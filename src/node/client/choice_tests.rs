//! Which members a client is connected with, and when they change.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Client, ClientConfig};
use crate::node::TimeoutBounds;
use crate::node::admin::message::{AdminReply, AdminRequest};
use crate::node::client_message::{FromClient, Redirect, ToClient, UpTo};
use crate::node::io::{Dial, Effects, Input, Now, Problem, QuorumState, RequestId, Time};
use crate::node::message::PeerMessage;
use crate::node::request::{ClientRequest, RequestBody};
use crate::node::tests::harness::{HEARTBEAT, TICK};
use crate::types::membership::{Member, NodeId};
use crate::types::version::VERSION;
use crate::types::znode::SessionId;

/// The voters, the first of which leads.
const VOTERS: std::ops::RangeInclusive<NodeId> = 1..=3;
const LEARNERS: std::ops::RangeInclusive<NodeId> = 4..=9;

pub(super) fn config(seed: u64) -> ClientConfig {
    ClientConfig {
        audit: false,
        name: String::new(),
        heartbeat: HEARTBEAT,
        tick: TICK,
        timeouts: TimeoutBounds::of(TICK),
        version: VERSION,
        seed,
    }
}

/// A client among members that serve it unless they are dead or full.
struct Seat {
    client: Client,
    now: Now,
    learners: Vec<NodeId>,
    leader: NodeId,
    dial: Dial,
    up: BTreeSet<NodeId>,
    /// Members that cannot be reached, and those that have no room.
    dead: Vec<NodeId>,
    full: Vec<NodeId>,
    /// The messages that each attachment has received.
    sent: BTreeMap<u64, u64>,
    /// The members that it has attached to, in order, and those that were sent its end.
    attached: Vec<NodeId>,
    left: Vec<NodeId>,
    /// The members that it has asked for reports, and the number of the request.
    asked: Vec<(NodeId, u64)>,
}

impl Seat {
    /// A client that has found these members at the addresses of its list.
    fn new(id: NodeId, learners: impl IntoIterator<Item = NodeId>, found: NodeId) -> Seat {
        let mut seat = Seat::unserved(id, learners);
        seat.connect(found);
        seat
    }

    fn unserved(id: NodeId, learners: impl IntoIterator<Item = NodeId>) -> Seat {
        let now = Now { mono: Time::ZERO, wall_ms: 0 };
        let client = Client::new(id, config(id), now);
        let (dial, up) = (Dial::seeking(), BTreeSet::new());
        let learners = learners.into_iter().collect();
        let (dead, full, sent) = (Vec::new(), Vec::new(), BTreeMap::new());
        let (attached, left, asked, leader) = (Vec::new(), Vec::new(), Vec::new(), 1);
        Seat { client, now, learners, leader, dial, up, dead, full, sent, attached, left, asked }
    }

    fn members(&self) -> (Vec<Member>, QuorumState) {
        let nodes = VOTERS.chain(self.learners.iter().copied());
        let members = nodes.map(|node| Member::new(node, format!("host:{node}"))).collect();
        let (voters, learners) = (VOTERS.collect(), self.learners.clone());
        (members, QuorumState { voters, learners, has_leader: true, ..QuorumState::default() })
    }

    fn connect(&mut self, peer: NodeId) {
        self.up.insert(peer);
        let input = match self.dead.contains(&peer) {
            false => Input::Connected { peer, version: VERSION },
            true => {
                let problem = Problem { reason: "dead".to_owned(), refused: false };
                Input::Unreachable { peer, problem }
            }
        };
        self.step(vec![input]);
    }

    /// The client takes a step, and gets its answers at once.
    fn step(&mut self, inputs: Vec<Input>) {
        let (knew, is_well) = (self.client.leader(), self.dead.is_empty() && self.full.is_empty());
        let Effects { messages, dial, .. } = self.client.step(self.now, inputs);
        if knew != 0 && is_well {
            let status = self.client.status();
            assert!(status.leader.is_some() && status.availability.has_leader, "a move is no loss");
        }
        let mut answers = Vec::new();
        for (to, message) in messages {
            if let PeerMessage::AdminRequest { number, .. } = message {
                self.asked.push((to, number));
                continue;
            }
            let PeerMessage::FromClient { attachment, number, messages, .. } = message else {
                panic!("{message:?}");
            };
            if number == 0 {
                self.attached.push(to);
            }
            if messages.contains(&FromClient::End) {
                self.left.push(to);
            } else if !self.dead.contains(&to) {
                answers
                    .push(Input::Peer { from: to, message: self.answer(to, attachment, number) });
            }
        }
        self.dial = dial.unwrap_or_else(|| self.dial.clone());
        assert!(self.dial.members.len() <= 2 || !self.asked.is_empty(), "{:?}", self.dial);
        if !answers.is_empty() {
            self.step(answers);
        }
        let dial = self.dial.clone();
        self.up.retain(|node| dial.wants(*node));
        for node in self.dialled() {
            if !self.up.contains(&node) {
                self.connect(node);
            }
        }
    }

    fn answer(&mut self, member: NodeId, attachment: u64, number: u64) -> PeerMessage {
        let ((members, availability), leader) = (self.members(), self.leader);
        if number == 0 && self.full.contains(&member) {
            let redirect = Some(Box::new(Redirect { cluster: 7, members, availability, leader }));
            return PeerMessage::LetGo { attachment, reason: "full".to_owned(), redirect };
        }
        let sent = self.sent.entry(attachment).or_default();
        *sent += 1;
        let mut updates = vec![ToClient::Members { members, availability }];
        if number == 0 {
            updates.splice(0..0, [ToClient::Cluster { cluster: 7 }, ToClient::Attached]);
        }
        let up_to = Some(UpTo { zxid: 1, version: VERSION, leader });
        PeerMessage::ToClient { attachment, number: *sent - 1, updates, up_to }
    }

    /// The members that it dials.
    fn dialled(&self) -> Vec<NodeId> {
        self.dial.members.iter().map(|member| member.node).collect()
    }

    fn spare(&self) -> Option<NodeId> {
        self.dialled().into_iter().find(|node| Some(*node) != self.client.member())
    }

    fn wait(&mut self, time: Duration) {
        let until = self.now.mono + time;
        while self.now.mono < until {
            self.now.mono += HEARTBEAT;
            self.step(Vec::new());
        }
    }

    fn die(&mut self, member: NodeId) {
        self.dead.push(member);
        self.connect(member);
    }
}

const MINUTE: Duration = Duration::from_secs(60);

/// Every client was connected with every member, and the leader served as many clients as the
/// others.
#[test]
fn a_client_goes_to_a_learner_and_keeps_another_as_its_spare() {
    let mut served: BTreeMap<NodeId, usize> = BTreeMap::new();
    for id in 100..400 {
        let mut seat = Seat::new(id, LEARNERS, 1);
        assert_eq!(seat.attached[0], 1, "it knows no other");
        let home = seat.client.member().unwrap();
        assert_eq!((seat.attached.len(), &seat.left[..]), (2, &[1][..]), "it moves once");
        *served.entry(home).or_default() += 1;
        seat.wait(MINUTE / 5);
        assert!(!seat.dial.seeks && seat.dial.members.len() == 2);
        let spare = seat.spare().unwrap();
        assert!(LEARNERS.contains(&home) && LEARNERS.contains(&spare));
        // The spare serves at once, and no other member is asked.
        seat.die(home);
        assert_eq!(seat.client.member(), Some(spare));
        assert_eq!(seat.attached.len(), 3);
    }
    assert!(LEARNERS.eq(served.keys().copied()));
    assert!(served.values().all(|count| (30..70).contains(count)), "{served:?}");
}

/// Without learners, clients of the new leader leave it, each at a time of its own.
#[test]
fn a_new_leader_loses_its_clients_one_after_the_other() {
    let mut seats: Vec<Seat> = (100..200).map(|id| Seat::new(id, [], 1)).collect();
    seats.iter_mut().for_each(|seat| seat.wait(MINUTE / 5));
    let at = |seats: &[Seat], member| {
        seats.iter().filter(|seat| seat.client.member() == Some(member)).count()
    };
    assert_eq!(at(&seats, 1), 0, "the leader serves none");
    let before = at(&seats, 2);
    assert!((30..70).contains(&before), "{before}");
    seats.iter_mut().for_each(|seat| seat.leader = 2);
    let mut left = vec![before];
    for _ in 0..12 {
        seats.iter_mut().for_each(|seat| seat.wait(MINUTE / 2));
        left.push(at(&seats, 2));
    }
    assert_eq!(left[1], before, "nobody moves in the first half minute");
    let most = left.windows(2).map(|two| two[0].saturating_sub(two[1])).max();
    assert!(most < Some(before / 2), "{left:?}");
    assert_eq!(left.last(), Some(&0), "{left:?}");
}

/// The client's member may be one that most others do not reach.
#[test]
fn it_is_connected_with_all_members_while_it_asks_all() {
    let mut seat = Seat::new(100, LEARNERS, 1);
    seat.wait(MINUTE / 5);
    let (home, dialled) = (seat.client.member().unwrap(), seat.dialled());
    let (id, session) = (RequestId(1), SessionId(0));
    let body = RequestBody::Admin(AdminRequest::Report);
    seat.step(vec![Input::Client(ClientRequest { id, session, body })]);
    let (asked, number) = seat.asked[0];
    assert_eq!((asked, seat.asked.len()), (home, 1));
    let reply = PeerMessage::AdminReply { number, replies: vec![(home, AdminReply::NoLeader)] };
    seat.step(vec![Input::Peer { from: home, message: reply }]);
    seat.wait(MINUTE / 60);
    assert_eq!(seat.dialled().len(), 9);
    let asked: BTreeSet<NodeId> = seat.asked.iter().map(|(node, _)| *node).collect();
    assert_eq!((asked.len(), seat.asked.len()), (9, 9), "each of them once");
    seat.wait(MINUTE / 10);
    seat.asked.clear();
    assert_eq!((seat.client.member(), seat.dialled().len()), (Some(home), dialled.len()));
}

#[test]
fn a_full_member_names_the_others() {
    for id in 100..130 {
        let mut seat = Seat::unserved(id, LEARNERS);
        seat.full = LEARNERS.filter(|node| *node != 9).chain([1]).collect();
        seat.connect(1);
        seat.wait(MINUTE);
        assert_eq!(seat.client.member(), Some(9), "the only learner with room");
        // The client asks none of them again for a while.
        let attached = seat.attached.len();
        assert!(attached <= 8, "{:?}", seat.attached);
        seat.wait(5 * MINUTE);
        assert_eq!(seat.attached.len(), attached);
    }
    // If no other has room, the leader serves.
    let mut seat = Seat::unserved(100, []);
    seat.full = vec![2, 3];
    seat.connect(2);
    seat.wait(MINUTE);
    assert_eq!(seat.client.member(), Some(1));
}

/// Two members were tried again and again while others could serve.
#[test]
fn every_member_is_tried_before_one_is_tried_again() {
    for id in 100..120 {
        let mut seat = Seat::new(id, LEARNERS, 1);
        seat.wait(MINUTE);
        let mut others = VOTERS.chain(LEARNERS).filter(|node| !seat.dialled().contains(node));
        let last = others.next_back().unwrap();
        for node in VOTERS.chain(LEARNERS).filter(|node| *node != last) {
            seat.dead.push(node);
        }
        let (one, other) = (seat.client.member().unwrap(), seat.spare().unwrap());
        seat.connect(one);
        seat.connect(other);
        seat.wait(HEARTBEAT * 5);
        assert_eq!(seat.client.member(), Some(last));
    }
}

/// When the client reaches no member, it looks for others at the addresses of its list.
#[test]
fn a_client_without_a_member_looks_at_its_list_again() {
    let mut seat = Seat::new(100, LEARNERS, 1);
    seat.wait(MINUTE);
    assert!(!seat.dial.seeks);
    seat.dead = VOTERS.chain(LEARNERS).collect();
    for node in seat.dialled() {
        seat.connect(node);
    }
    seat.wait(HEARTBEAT * 10);
    assert!(!seat.dial.seeks, "not at once");
    seat.wait(HEARTBEAT * 10);
    assert!(seat.dial.seeks);
    seat.dead.retain(|node| *node != 2);
    seat.connect(2);
    assert_eq!(seat.client.member(), Some(2));
    assert!(!seat.dial.seeks);
}
