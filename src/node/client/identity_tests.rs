//! A client belongs to the cluster that has first served it.

use std::time::Duration;

use super::Client;
use super::choice_tests::config;
use crate::machine::command::{Command, Outcome, Reply, Request};
use crate::node::client_message::{FromClient, ToClient, UpTo};
use crate::node::io::{Effects, Input, Now, RequestId, SessionHolder, Time};
use crate::node::message::PeerMessage;
use crate::node::request::{ClientRequest, RequestBody};
use crate::node::tests::harness::HEARTBEAT;
use crate::types::membership::NodeId;
use crate::types::session::SessionState;
use crate::types::version::VERSION;
use crate::types::znode::SessionId;

const SESSION: SessionId = SessionId(7);

struct Seat {
    client: Client,
    now: Now,
}

impl Seat {
    fn new() -> Seat {
        let now = Now { mono: Time::ZERO, wall_ms: 0 };
        Seat { client: Client::new(100, config(1), now), now }
    }

    fn step(&mut self, input: Input) -> Effects {
        self.client.step(self.now, [input])
    }

    fn reach(&mut self, peer: NodeId) -> Effects {
        self.step(Input::Connected { peer, version: VERSION })
    }

    /// The member of this attachment sends these updates.
    fn up_to(
        &mut self,
        from: NodeId,
        attachment: u64,
        updates: Vec<ToClient>,
        zxid: u64,
    ) -> Effects {
        let up_to = Some(UpTo { zxid, version: VERSION, leader: from });
        let message = PeerMessage::ToClient { attachment, number: 0, updates, up_to };
        self.step(Input::Peer { from, message })
    }

    /// Time passes without any message.
    fn wait(&mut self, beats: u32) -> Effects {
        self.now.mono += HEARTBEAT * beats;
        self.client.step(self.now, [])
    }

    /// The client's member becomes unreachable.
    fn lose(&mut self, peer: NodeId) -> Effects {
        let problem = crate::node::io::Problem { reason: "gone".to_owned(), refused: false };
        self.step(Input::Unreachable { peer, problem })
    }
}

/// The member that the client asks to serve it, the number of the attachment, and the client's
/// cluster.
fn begun(effects: &Effects) -> Option<(NodeId, u64, u64)> {
    effects.messages.iter().find_map(|(to, message)| match message {
        PeerMessage::FromClient { attachment, number: 0, messages, .. } => {
            let Some(FromClient::Begin { cluster, .. }) = messages.first() else { return None };
            Some((*to, *attachment, *cluster))
        }
        _ => None,
    })
}

#[test]
fn a_client_keeps_to_the_cluster_that_first_served_it() {
    let mut seat = Seat::new();
    let (id, session) = (RequestId(1), SESSION);
    let body = RequestBody::open(9, [7; 16], Duration::from_secs(10));
    seat.step(Input::Client(ClientRequest { id, session, body }));
    let effects = seat.reach(1);
    assert_eq!(begun(&effects), Some((1, 1, 0)), "it has no cluster yet");
    let done = Ok(Reply::Session { timeout_ms: 10_000 });
    let opened =
        ToClient::Outcome(Outcome { session: SESSION, holder: 9, seq: 0, zxid: 1, result: done });
    let effects =
        seat.up_to(1, 1, vec![ToClient::Cluster { cluster: 77 }, opened, ToClient::Attached], 5);
    assert_eq!(effects.cluster, Some(77), "its connections name the cluster from now on");
    assert_eq!((seat.client.member(), seat.client.seen()), (Some(1), 5));
    // At its member's address there is now a member of another cluster, which serves it by mistake.
    seat.lose(1);
    let effects = seat.reach(2);
    assert_eq!(begun(&effects), Some((2, 2, 77)));
    let ended = ToClient::Ended {
        session_holder: SessionHolder { session: SESSION, holder: 9 },
        moved: false,
        known: false,
    };
    let updates = vec![ToClient::Cluster { cluster: 78 }, ended, ToClient::Attached];
    let effects = seat.up_to(2, 2, updates, 5000);
    assert_eq!(effects.cluster, None);
    assert!(effects.sessions.iter().all(|(_, state)| *state != SessionState::Expired));
    assert_eq!((seat.client.member(), seat.client.seen()), (None, 5), "nothing of it counts");
    let status = seat.client.status();
    assert_eq!(status.leader, None);
    let (_, problem) = status.peers.iter().find(|(peer, _)| *peer == 2).expect("it is known");
    let problem = problem.as_ref().expect("it is not to be asked again");
    assert!(problem.refused);
    assert!(problem.reason.contains("another cluster"), "{}", problem.reason);
    seat.now.mono += Duration::from_secs(60);
    let effects = seat.client.step(seat.now, []);
    assert_eq!(begun(&effects), None);
    // The client goes on when its own member is back.
    let effects = seat.reach(1);
    assert_eq!(begun(&effects), Some((1, 3, 77)));
    seat.up_to(1, 3, vec![ToClient::Cluster { cluster: 77 }, ToClient::Attached], 6);
    assert_eq!((seat.client.member(), seat.client.seen()), (Some(1), 6));
}

/// The client took a zxid from a member that did not serve it yet. Its watches were set again from
/// there, and the events before it were never sent.
#[test]
fn updates_of_a_member_that_does_not_serve_yet_are_ignored() {
    let mut seat = Seat::new();
    seat.reach(1);
    seat.up_to(1, 1, vec![], 7);
    assert_eq!(seat.client.seen(), 0);
    seat.lose(1);
    seat.reach(2);
    seat.up_to(2, 2, vec![ToClient::Attached], 9);
    assert_eq!(seat.client.seen(), 9);
}

/// The member's message that it cannot serve was lost, and the client waited for ever.
#[test]
fn the_client_leaves_a_member_that_stops_sending() {
    let mut seat = Seat::new();
    assert_eq!(begun(&seat.reach(1)), Some((1, 1, 0)));
    seat.reach(2);
    seat.wait(2);
    seat.up_to(1, 1, vec![], 0);
    assert_eq!(begun(&seat.wait(14)), None, "it may be about to serve");
    assert_eq!(begun(&seat.wait(1)), Some((2, 2, 0)));
    // A serving member is asked now and then, and owes no message in between.
    seat.up_to(2, 2, vec![ToClient::Attached], 0);
    assert_eq!(seat.client.member(), Some(2));
}

/// The first session is asked for before any member has told a zxid.
#[test]
fn a_session_that_waited_for_a_member_rests_on_what_that_member_has() {
    let mut seat = Seat::new();
    let (id, session) = (RequestId(1), SESSION);
    let body = RequestBody::open(9, [7; 16], Duration::from_secs(10));
    seat.step(Input::Client(ClientRequest { id, session, body }));
    seat.reach(1);
    let effects = seat.up_to(1, 1, vec![ToClient::Cluster { cluster: 77 }, ToClient::Attached], 5);
    let sent = effects.messages.iter().flat_map(|(_, message)| match message {
        PeerMessage::FromClient { messages, .. } => &messages[..],
        _ => &[],
    });
    let mut bases = sent.filter_map(|message| match message {
        FromClient::Write(Request { command: Command::Open { base, .. }, .. }) => Some(*base),
        _ => None,
    });
    assert_eq!(bases.next(), Some(5));
}
