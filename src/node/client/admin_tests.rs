//! Which members a client asks for reports and actions, and when it has its answer.

use std::time::Duration;

use super::Client;
use super::choice_tests::config;
use crate::node::admin::message::{Action, AdminReply, AdminRequest};
use crate::node::io::{Effects, Input, Now, Problem, RequestId, Time};
use crate::node::message::PeerMessage;
use crate::node::query::Answer;
use crate::node::request::{ClientRequest, RequestBody};
use crate::node::tests::harness::HEARTBEAT;
use crate::types::error::{Error, Result};
use crate::types::membership::{Member, NodeId};
use crate::types::version::VERSION;
use crate::types::znode::SessionId;

type Replies = Vec<(NodeId, AdminReply)>;

struct Desk {
    client: Client,
    now: Now,
    /// The members that it has asked since the last check, and the number of the request.
    asked: Vec<NodeId>,
    number: u64,
    answers: Vec<Result<Replies>>,
}

impl Desk {
    /// A client that is connected with three voters, none of which serves it yet.
    fn new() -> Desk {
        let now = Now { mono: Time::ZERO, wall_ms: 0 };
        let client = Client::new(100, config(1), now);
        let mut desk = Desk { client, now, asked: Vec::new(), number: 0, answers: Vec::new() };
        for peer in 1..=3 {
            desk.step([Input::Connected { peer, version: VERSION }]);
        }
        desk
    }

    fn step(&mut self, inputs: impl IntoIterator<Item = Input>) {
        let Effects { messages, replies, .. } = self.client.step(self.now, inputs);
        for (to, message) in messages {
            if let PeerMessage::AdminRequest { number, relay, .. } = message {
                assert!(relay);
                self.asked.push(to);
                self.number = number;
            }
        }
        self.answers.extend(replies.into_iter().map(|of| match of.answer? {
            Answer::Admin(replies) => Ok(replies),
            other => panic!("{other:?}"),
        }));
    }

    fn ask(&mut self, asked: AdminRequest) -> Vec<NodeId> {
        let (id, session, body) = (RequestId(1), SessionId(0), RequestBody::Admin(asked));
        self.step([Input::Client(ClientRequest { id, session, body })]);
        std::mem::take(&mut self.asked)
    }

    fn reply(&mut self, from: NodeId, replies: Replies) -> Vec<NodeId> {
        let message = PeerMessage::AdminReply { number: self.number, replies };
        self.step([Input::Peer { from, message }]);
        std::mem::take(&mut self.asked)
    }

    fn lose(&mut self, peer: NodeId) -> Vec<NodeId> {
        let problem = Problem { reason: "it is dead".to_owned(), refused: false };
        self.step([Input::Unreachable { peer, problem }]);
        std::mem::take(&mut self.asked)
    }

    fn wait(&mut self, time: Duration) -> Vec<NodeId> {
        let until = self.now.mono + time;
        while self.now.mono < until {
            self.now.mono += HEARTBEAT;
            self.step([]);
        }
        std::mem::take(&mut self.asked)
    }

    fn answer(&mut self) -> Vec<NodeId> {
        let answer = self.answers.pop().expect("it has answered").unwrap();
        assert!(self.answers.is_empty());
        let reports =
            answer.into_iter().filter(|(_, reply)| matches!(reply, AdminReply::Report(_)));
        let mut nodes: Vec<NodeId> = reports.map(|(node, _)| node).collect();
        nodes.sort_unstable();
        nodes
    }
}

/// The replies from a member that has reached these members.
fn reports(from: NodeId, reached: &[NodeId]) -> Replies {
    let members = (1..=3).map(|node| (Member::new(node, format!("host:{node}")), true)).collect();
    let own = |node: &NodeId| (*node, AdminReply::Report(Box::default()));
    [(from, AdminReply::Members { members })].into_iter().chain(reached.iter().map(own)).collect()
}

fn removal() -> AdminRequest {
    let action = Action::Remove { member: 3 };
    AdminRequest::Act { action, by: "a test".to_owned(), after: None }
}

#[test]
fn one_member_is_asked_if_most_voters_have_replied_to_it() {
    let mut desk = Desk::new();
    assert_eq!(desk.ask(AdminRequest::Report).len(), 1);
    assert!(desk.reply(1, reports(1, &[1, 2])).is_empty());
    assert_eq!(desk.answer(), [1, 2]);
}

/// A member that was cut off from the others reported them as silent.
#[test]
fn the_report_of_a_minority_is_not_the_answer() {
    let mut desk = Desk::new();
    assert_eq!(desk.ask(AdminRequest::Report), [1]);
    assert_eq!(desk.reply(1, reports(1, &[1])), [2, 3], "the others are asked");
    assert!(desk.answers.is_empty());
    assert!(desk.reply(2, reports(2, &[2, 3])).is_empty());
    assert_eq!(desk.answer(), [1, 2, 3]);
    // The request is answered once.
    assert!(desk.reply(3, reports(3, &[2, 3])).is_empty() && desk.answers.is_empty());
}

#[test]
fn without_a_majority_all_that_was_reported_is_the_answer() {
    let mut desk = Desk::new();
    assert_eq!(desk.ask(AdminRequest::Report), [1]);
    assert_eq!(desk.reply(1, reports(1, &[])), [2, 3]);
    desk.reply(3, reports(3, &[3]));
    assert!(desk.answers.is_empty());
    assert!(desk.wait(Duration::from_secs(3)).is_empty());
    assert_eq!(desk.answer(), [3]);
}

#[test]
fn a_silent_or_lost_member_is_not_waited_for() {
    let mut desk = Desk::new();
    assert_eq!(desk.ask(AdminRequest::Report), [1]);
    assert_eq!(desk.lose(1), [2]);
    assert_eq!(desk.wait(Duration::from_secs(3)), [3], "the second one is silent");
    desk.reply(3, reports(3, &[2, 3]));
    assert_eq!(desk.answer(), [2, 3]);
}

#[test]
fn an_action_goes_on_to_the_next_member_if_one_has_no_leader() {
    let mut desk = Desk::new();
    assert_eq!(desk.ask(removal()), [1]);
    assert_eq!(desk.reply(1, vec![(1, AdminReply::NoLeader)]), [2, 3]);
    desk.reply(2, Vec::new());
    assert!(desk.answers.is_empty());
    desk.reply(3, vec![(2, AdminReply::Begun)]);
    let answer = desk.answers.pop().unwrap().unwrap();
    assert!(answer.contains(&(2, AdminReply::Begun)));
}

#[test]
fn the_pieces_of_a_backup_come_from_one_member() {
    let mut desk = Desk::new();
    assert_eq!(desk.ask(AdminRequest::Image { of: 2, transfer: 1, piece: 1 }), [2]);
    assert!(desk.lose(2).is_empty());
    assert!(desk.wait(Duration::from_secs(5)).is_empty());
    assert!(desk.answers.pop().unwrap().unwrap().is_empty());
}

#[test]
fn open_requests_are_refused_when_the_client_stops() {
    let mut desk = Desk::new();
    desk.ask(AdminRequest::Report);
    desk.step([Input::Leave]);
    assert!(matches!(desk.answers[..], [Err(Error::Stopped { .. })]));
}
