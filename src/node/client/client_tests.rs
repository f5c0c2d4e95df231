//! What a member does for clients and allows them. The messages here are such as no correct client
//! sends.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::storm_tests::{FIRST_CLIENT, Storm};
use crate::machine::command::{Command, Op, Request};
use crate::node::client_message::{FromClient, HeldWatch, RequestHeader, SessionClaim, ToClient};
use crate::node::io::{Answered, Input, RequestId, SessionHolder, WatchId};
use crate::node::message::PeerMessage;
use crate::node::query::{EventData, Query, Read};
use crate::node::replica::server::{CLAIMS_BYTES_MAX, QUEUE_BYTES_MAX, WATCHES_MAX};
use crate::node::replica::watches::WatchKind;
use crate::node::request::{ClientRequest, RequestBody};
use crate::node::tests::harness::{HEARTBEAT, TICK};
use crate::types::error::Error;
use crate::types::membership::NodeId;
use crate::types::watch::{EventKind, WATCH_CAPACITY};
use crate::types::znode::SessionId;

/// Sends messages to member 1 as if from a client, and returns the reasons for which the member
/// lets it go. Message 0 begins a new attachment.
fn send(storm: &mut Storm, from: NodeId, number: u64, messages: Vec<FromClient>) -> Vec<String> {
    send_with(storm, (from, number, 0), messages)
}

fn send_with(
    storm: &mut Storm,
    (from, number, received): (NodeId, u64, u64),
    messages: Vec<FromClient>,
) -> Vec<String> {
    storm.attachment += u64::from(number == 0);
    let of = storm.attachment;
    storm.cluster.deliver(
        from,
        1,
        PeerMessage::FromClient { attachment: of, number, received, messages },
    );
    storm.cluster.settle();
    let sent = std::mem::take(&mut storm.cluster.elsewhere);
    let ours = sent.into_iter().filter(|(_, to, _)| *to == from);
    ours.filter_map(|(_, _, message)| match message {
        PeerMessage::LetGo { attachment, reason, .. } if attachment == of => Some(reason),
        _ => None,
    })
    .collect()
}

/// The first message of an attachment.
fn first(seen: u64, cluster: u64) -> FromClient {
    FromClient::Begin { seen, cluster, name: String::new() }
}

fn get(call: RequestHeader, path: &str) -> FromClient {
    let query = Query::Read { read: Read::Get { path: path.into() }, watch: None };
    FromClient::Query { call, query, read_index: 0 }
}

#[test]
fn a_client_may_send_only_the_messages_of_a_client() {
    let mut storm = Storm::new(1);
    let (client, begin) = (500, || vec![first(0, 0), FromClient::Begun]);
    let request = |command| Request { session: SessionId(9), holder: 9, seq: 0, acked: 0, command };
    let (secret, timeout_ms, base) = ([0; 16], 1000, 0);
    let read = |path: &str| {
        let call = RequestHeader {
            request: 1,
            session_holder: SessionHolder { session: SessionId(9), holder: 9 },
            after: 0,
        };
        get(call, path)
    };
    let refused = [
        FromClient::Write(request(Command::Expire { term: 1 })),
        FromClient::Write(request(Command::RaiseVersion { version: 9 })),
        FromClient::Write(request(Command::Reap { path: "/n".to_owned() })),
        FromClient::Write(request(Command::Open { secret, timeout_ms, owner: 1, base })),
        FromClient::Write(request(Command::Resume { secret, timeout_ms, owner: 1 })),
        first(0, 0),
        FromClient::Begun,
        read("no path"),
    ];
    for message in refused {
        assert!(send(&mut storm, client, 0, begin()).is_empty());
        let text = format!("{message:?}");
        assert_eq!(send(&mut storm, client, 1, vec![message]).len(), 1, "{text}");
        // The member has forgotten the client.
        assert_eq!(send(&mut storm, client, 2, vec![]).len(), 1, "{text}");
    }
    assert_eq!(send(&mut storm, client, 0, vec![FromClient::Begun]).len(), 1, "it has not begun");
    assert_eq!(send(&mut storm, 2, 0, begin()).len(), 0, "a member is no client");
    let of = |cluster| vec![first(0, cluster), FromClient::Begun];
    assert_eq!(send(&mut storm, client, 0, of(2)), ["it is a client of another cluster"]);
    assert!(send(&mut storm, client, 0, of(1)).is_empty());
    // Its name goes to terminals and logs.
    for name in ["a\nb".to_owned(), "a\u{1b}[2J".to_owned(), "a".repeat(65)] {
        let begin = FromClient::Begin { seen: 0, cluster: 0, name };
        let refusals = send(&mut storm, client, 0, vec![begin, FromClient::Begun]);
        assert_eq!(refusals, ["its name is too long, or has control characters"]);
    }
    // A client may not send the messages of members.
    assert!(send(&mut storm, client, 0, begin()).is_empty());
    let read_index =
        PeerMessage::ReadIndex { boot: 1, read_index: 1, sessions: vec![SessionId(FIRST_CLIENT)] };
    storm.cluster.deliver(client, 1, read_index);
    storm.cluster.settle();
    assert!(storm.cluster.elsewhere.iter().all(|(_, to, _)| *to != client));
    // A lost message is noticed by the number of the next one.
    assert_eq!(send(&mut storm, client, 3, vec![]), ["a message was lost"]);
}

#[test]
fn the_cost_of_a_client_to_its_member_is_bounded() {
    let mut storm = Storm::new(2);
    let (client, begin) = (500, || vec![first(0, 0), FromClient::Begun]);
    let path = format!("/{}", "x".repeat(1000));
    // Reads of a session that is never opened wait.
    let read = |request| {
        let call = RequestHeader {
            request,
            session_holder: SessionHolder { session: SessionId(9), holder: 9 },
            after: 0,
        };
        get(call, &path)
    };
    assert!(send(&mut storm, client, 0, begin()).is_empty());
    let mut number = 0;
    let reason = loop {
        number += 1;
        assert!(number < 10_000, "it asks for as much as it likes");
        if let Some(reason) = send(&mut storm, client, number, vec![read(number)]).pop() {
            break reason;
        }
    };
    assert_eq!(reason, "it asks for too much at a time");
    assert!(number as usize * 1000 > QUEUE_BYTES_MAX / 2);
    // A client that acknowledges nothing gets no more answers, and is then disconnected.
    assert!(send(&mut storm, client, 0, begin()).is_empty());
    let (secret, timeout_ms, owner, base) = ([0; 16], 20_000, client, 0);
    let command = Command::Open { secret, timeout_ms, owner, base };
    let (session, holder) = (SessionId(9), 9);
    let open = Request { session, holder, seq: 0, acked: 0, command };
    assert!(send(&mut storm, client, 1, vec![FromClient::Write(open)]).is_empty());
    let data = vec![7; 1 << 20];
    let op = Op::Set { path: "/n".into(), data: data.into(), version: None };
    let session_of_writer = SessionId(FIRST_CLIENT);
    let write = storm.number();
    let command = Command::Op(op);
    storm.ask(FIRST_CLIENT, (write, session_of_writer), RequestBody::Command(command));
    storm.advance(Duration::from_secs(1));
    let mut answers = 0;
    for request in 0..20 {
        let call =
            RequestHeader { request, session_holder: SessionHolder { session, holder }, after: 0 };
        let read = get(call, "/n");
        let (attachment, number, messages) = (storm.attachment, request + 2, vec![read]);
        let messages = PeerMessage::FromClient { attachment, number, received: 0, messages };
        storm.cluster.deliver(client, 1, messages);
        storm.cluster.settle();
        for (_, to, message) in std::mem::take(&mut storm.cluster.elsewhere) {
            if let PeerMessage::ToClient { updates, .. } = message
                && to == client
            {
                let is_answer = |updates: &&ToClient| matches!(updates, ToClient::Answer { .. });
                answers += updates.iter().filter(is_answer).count();
            }
        }
    }
    assert!((1..5).contains(&answers), "{answers} answers that nobody acknowledges");
    // A silent client is forgotten.
    storm.advance(TICK * 21);
    assert_eq!(send(&mut storm, client, 22, vec![]), ["a message was lost"]);
}

/// The sessions and watches of a client cost its member too: a client that holds too much is let
/// go.
#[test]
fn the_holdings_of_a_client_are_bounded() {
    let mut storm = Storm::new(3);
    let (client, begin) = (500, || vec![first(0, 0), FromClient::Begun]);
    let holder = 9;
    let open = |session| {
        let (secret, timeout_ms, owner, base) = ([0; 16], 20_000, client, 0);
        let command = Command::Open { secret, timeout_ms, owner, base };
        FromClient::Write(Request { session, holder, seq: 0, acked: 0, command })
    };
    let watch = |session, watch, path: &str| {
        let call = RequestHeader {
            request: watch,
            session_holder: SessionHolder { session, holder },
            after: 0,
        };
        let (watch, path, recursive) = (WatchId(watch), path.into(), false);
        let query = Query::Watch { watch, path, recursive, from: None, data: EventData::None };
        FromClient::Query { call, query, read_index: 0 }
    };
    let long = format!("/{}", "x".repeat(4000));
    let watches =
        |storm: &Storm, session| storm.cluster.node(1).replica.watches.clients_of(session).len();
    let session = SessionId(9);
    // The same watch again and again counts once.
    assert!(send(&mut storm, client, 0, begin()).is_empty());
    assert!(send(&mut storm, client, 1, vec![open(session)]).is_empty());
    storm.advance(Duration::from_secs(1));
    for number in 2..12 {
        assert!(send(&mut storm, client, number, vec![watch(session, 7, "/n")]).is_empty());
    }
    assert_eq!(watches(&storm, session), 1);
    for (path, session) in [("/n", SessionId(10)), (&long, SessionId(11))] {
        assert!(send(&mut storm, client, 0, begin()).is_empty());
        assert!(send(&mut storm, client, 1, vec![open(session)]).is_empty());
        storm.advance(HEARTBEAT * 4);
        let many = if path == "/n" { 2000 } else { 100 };
        let messages =
            |number| (0..many).map(|one| watch(session, number * many + one, path)).collect();
        let let_go = (2..200).find(|number| {
            !send_with(&mut storm, (client, *number, u64::MAX), messages(*number)).is_empty()
        });
        let let_go = let_go.expect("it watches as much as it likes");
        let most = if path == "/n" { WATCHES_MAX as u64 } else { (8 << 20) / path.len() as u64 };
        assert!((most..most + 3 * many).contains(&((let_go - 1) * many)), "{let_go}");
        assert_eq!(watches(&storm, session), 0);
    }
    // The number of its sessions is bounded too, also without a leader, when none is opened.
    storm.cluster.isolate(1);
    storm.advance(Duration::from_secs(5));
    assert!(send(&mut storm, client, 0, begin()).is_empty());
    let messages = |number| {
        let request = |holder| {
            let command = Command::Close;
            FromClient::Write(Request { session, holder, seq: 0, acked: 0, command })
        };
        (0..2000).map(|one| request(number * 2000 + one)).collect()
    };
    let let_go = (1..100).find(|number| {
        !send_with(&mut storm, (client, *number, u64::MAX), messages(*number)).is_empty()
    });
    assert!((30..40).contains(&let_go.unwrap_or(100)), "{let_go:?}");
}

/// Each watch of a returning client was sent all changes that it had missed. That was more than a
/// client may leave unacknowledged, so every member in turn let the client go before it had
/// received anything.
#[test]
fn a_client_that_has_missed_much_is_served() {
    const WATCHES: u64 = 250;
    let mut storm = Storm::new(5);
    let (client, session, holder) = (500, SessionId(9), 9);
    let (secret, timeout_ms, owner, base) = ([0; 16], 40_000, client, 0);
    let command = Command::Open { secret, timeout_ms, owner, base };
    let open = FromClient::Write(Request { session, holder, seq: 0, acked: 0, command });
    assert!(send(&mut storm, client, 0, vec![first(0, 0), FromClient::Begun]).is_empty());
    assert!(send(&mut storm, client, 1, vec![open]).is_empty());
    storm.advance(Duration::from_secs(1));
    let writer = storm.cluster.open(1, 77, Duration::from_secs(40));
    let from = storm.cluster.node(1).machine().zxid();
    for _ in 0..11 {
        let writes: Vec<_> =
            (0..100).map(|n| storm.cluster.set(1, writer, "/n", &n.to_string())).collect();
        for write in writes {
            storm.cluster.answer(write).unwrap();
        }
    }
    let claim = SessionClaim {
        session_holder: SessionHolder { session, holder },
        applied: 0,
        opened: true,
        base: None,
    };
    let mut messages = vec![first(from, 0), FromClient::Claim(claim)];
    let (path, kind) = (Arc::<str>::from("/n"), WatchKind::Persistent);
    messages.extend((0..WATCHES).map(|watch| {
        let (path, existed, data) = (Arc::clone(&path), true, EventData::None);
        let session_holder = SessionHolder { session, holder };
        FromClient::Watch(HeldWatch { watch, session_holder, path, kind, existed, from, data })
    }));
    messages.push(FromClient::Begun);
    storm.attachment += 1;
    let (attachment, number, received) = (storm.attachment, 0, 0);
    let begin = PeerMessage::FromClient { attachment, number, received, messages };
    storm.cluster.deliver(client, 1, begin);
    storm.cluster.settle();
    let (mut events, mut gaps) = (0, 0);
    for (_, to, message) in std::mem::take(&mut storm.cluster.elsewhere) {
        match message {
            PeerMessage::ToClient { updates, .. } if to == client => {
                let kinds = updates.iter().filter_map(|update| match update {
                    ToClient::Event { event, .. } => Some(event.kind),
                    _ => None,
                });
                for kind in kinds {
                    match kind {
                        EventKind::Gap => gaps += 1,
                        _ => events += 1,
                    }
                }
            }
            PeerMessage::LetGo { reason, .. } if to == client => panic!("{reason}"),
            _ => {}
        }
    }
    assert_eq!(gaps, WATCHES, "each knows that it has missed something");
    assert!(events > 10 * WATCH_CAPACITY, "as much as fits is sent: {events}");
    assert_eq!(storm.cluster.node(1).replica.watches.clients_of(session).len() as u64, WATCHES);
}

/// The client was sent that its resumption had not come yet, asked for it again, and was never
/// answered.
#[test]
fn a_session_that_was_overtaken_has_moved() {
    let mut storm = Storm::new(7);
    let (client, timeout) = (500, Duration::from_secs(40));
    let session = storm.cluster.open(1, 77, timeout);
    let former = 77_000;
    storm.cluster.resume(2, session, 10, [7; 16]).unwrap();
    storm.cluster.settle();
    let claim = SessionClaim {
        session_holder: SessionHolder { session, holder: former },
        applied: 0,
        opened: false,
        base: None,
    };
    let messages = vec![first(0, 0), FromClient::Claim(claim), FromClient::Begun];
    let (attachment, number, received) = (1, 0, 0);
    let begin = PeerMessage::FromClient { attachment, number, received, messages };
    storm.cluster.deliver(client, 1, begin);
    storm.cluster.settle();
    let sent = std::mem::take(&mut storm.cluster.elsewhere);
    let updates = sent.into_iter().filter(|(_, to, _)| *to == client).flat_map(
        |(_, _, message)| match message {
            PeerMessage::ToClient { updates, .. } => updates,
            _ => Vec::new(),
        },
    );
    let ended: Vec<_> = updates.filter(|update| matches!(update, ToClient::Ended { .. })).collect();
    assert_eq!(
        ended,
        [ToClient::Ended {
            session_holder: SessionHolder { session, holder: former },
            moved: true,
            known: false
        }]
    );
}

/// A session gets ids without a zxid. A client that went to another member right after that met a replica that
/// had everything by its zxid, but not the ids, and its reads were refused.
#[test]
fn a_replica_without_a_sessions_answered_writes_does_not_serve_it_yet() {
    let mut storm = Storm::new(8);
    let (client, timeout) = (500, Duration::from_secs(40));
    let session = storm.cluster.open(1, 78, timeout);
    storm.cluster.settle();
    let seen = storm.cluster.node(1).machine.zxid();
    let holder = 78_000;
    let begin = |attachment, applied| {
        let claim = SessionClaim {
            session_holder: SessionHolder { session, holder },
            applied,
            opened: true,
            base: None,
        };
        let begin = first(seen, 0);
        let messages = vec![begin, FromClient::Claim(claim), FromClient::Begun];
        PeerMessage::FromClient { attachment, number: 0, received: 0, messages }
    };
    let mut is_attached = |message| {
        storm.cluster.deliver(client, 1, message);
        storm.cluster.settle();
        let sent = std::mem::take(&mut storm.cluster.elsewhere);
        sent.into_iter().any(|(_, to, message)| match message {
            PeerMessage::ToClient { updates, .. } => {
                to == client && updates.contains(&ToClient::Attached)
            }
            _ => false,
        })
    };
    assert!(!is_attached(begin(1, 1)));
    assert!(is_attached(begin(2, 0)));
}

/// A message that comes twice begins no attachment: updates sent in between would be lost.
#[test]
fn an_attachment_begins_once() {
    let mut storm = Storm::new(6);
    let (client, begin) = (500, || vec![first(0, 0), FromClient::Begun]);
    assert!(send(&mut storm, client, 0, begin()).is_empty());
    let attachment = storm.attachment;
    assert!(send(&mut storm, client, 1, vec![]).is_empty());
    for late in [attachment, attachment - 1] {
        let (number, received, messages) = (0, 0, begin());
        let message = PeerMessage::FromClient { attachment: late, number, received, messages };
        storm.cluster.deliver(client, 1, message);
        storm.cluster.settle();
    }
    assert!(send(&mut storm, client, 2, vec![]).is_empty(), "it goes on");
}

/// Watches that a client has asked for count with those that it holds: it must be able to report
/// all of them to the next member.
#[test]
fn a_client_asks_for_no_more_watches_than_it_may_hold() {
    for bytes in [1, 4000] {
        let mut storm = Storm::new(1);
        let path: Arc<str> = format!("/{}", "x".repeat(bytes)).into();
        let session = SessionId(FIRST_CLIENT);
        let requests = (0..WATCHES_MAX as u64 + 10).map(|number| {
            let (id, watch) = (RequestId(number), WatchId(1000 + number));
            let (path, recursive) = (Arc::clone(&path), false);
            let query = Query::Watch { watch, path, recursive, from: None, data: EventData::None };
            Input::Client(ClientRequest { id, session, body: RequestBody::Query(query) })
        });
        let now = storm.cluster.clock();
        let seat = storm.seats.get_mut(&FIRST_CLIENT).unwrap();
        let effects = seat.client.step(now, requests);
        let is_busy = |answered: &&Answered| matches!(answered.answer, Err(Error::Busy { .. }));
        let busy = effects.replies.iter().filter(is_busy).count();
        let fits = WATCHES_MAX.min(CLAIMS_BYTES_MAX / 2 / path.len());
        let taken = WATCHES_MAX + 10 - busy;
        assert!((fits * 9 / 10..=fits).contains(&taken), "{taken} of {fits}");
    }
}

/// The clients are answered one after the other as they acknowledge, and none is let go because all
/// together ask for much.
#[test]
fn many_clients_may_ask_for_much_at_once() {
    let mut storm = Storm::new(4);
    let data = vec![7; 1 << 20];
    let command = Command::Op(Op::Set { path: "/n".into(), data: data.into(), version: None });
    let (request, session) = (storm.number(), SessionId(FIRST_CLIENT));
    storm.ask(FIRST_CLIENT, (request, session), RequestBody::Command(command));
    storm.advance(Duration::from_secs(1));
    let clients = 1000..1300;
    let holder = 9;
    for client in clients.clone() {
        let (session, secret, timeout_ms, owner, base) =
            (SessionId(client), [0; 16], 40_000, client, 0);
        let command = Command::Open { secret, timeout_ms, owner, base };
        let open = FromClient::Write(Request { session, holder, seq: 0, acked: 0, command });
        for (number, messages) in [(0, vec![first(0, 0), FromClient::Begun]), (1, vec![open])] {
            let message = PeerMessage::FromClient { attachment: 9, number, received: 0, messages };
            storm.cluster.deliver(client, 1, message);
        }
    }
    storm.advance(Duration::from_secs(1));
    for client in clients.clone() {
        let call = RequestHeader {
            request: 1,
            session_holder: SessionHolder { session: SessionId(client), holder },
            after: 0,
        };
        let read = get(call, "/n");
        let messages =
            PeerMessage::FromClient { attachment: 9, number: 2, received: 0, messages: vec![read] };
        storm.cluster.deliver(client, 1, messages);
    }
    let (mut answered, mut number) = (BTreeSet::new(), 3);
    for _ in 0..20 {
        storm.cluster.settle();
        for (_, client, message) in std::mem::take(&mut storm.cluster.elsewhere) {
            match message {
                PeerMessage::ToClient { updates, .. } if clients.contains(&client) => {
                    let is_answer = |updates: &ToClient| matches!(updates, ToClient::Answer { .. });
                    answered.extend(updates.iter().any(is_answer).then_some(client));
                }
                PeerMessage::LetGo { reason, .. } => panic!("{client} was let go: {reason}"),
                _ => {}
            }
        }
        for client in clients.clone() {
            let (received, messages) = (u64::MAX, Vec::new());
            let acknowledgement =
                PeerMessage::FromClient { attachment: 9, number, received, messages };
            storm.cluster.deliver(client, 1, acknowledgement);
        }
        number += 1;
    }
    assert_eq!(answered.len(), clients.count());
}

/// A client without ids, with a client's right, sees what only another session may see.
#[test]
fn a_session_that_is_only_claimed_lends_no_ids_to_a_watch() {
    crate::planted::claims(claimed_session, crate::planted::Bug::ClaimLendsIds);
}

fn claimed_session() {
    use crate::node::client_message::FromClient as F;
    use crate::types::acl::{Acl, Id, Permissions};
    use crate::types::right::{Connection, Right};
    use crate::types::znode::CreateMode;
    let mut storm = Storm::new(1);
    let victim = storm.cluster.open(1, 77, Duration::from_secs(40));
    let alice = Id::new("x509", "CN=alice");
    let asked = storm.cluster.write(1, victim, Command::Authenticate { ids: vec![alice.clone()] });
    storm.cluster.answer(asked).unwrap();
    let acl = vec![Acl::new(Permissions::ALL, alice)];
    let (path, mode) = ("/hidden".into(), CreateMode::Persistent);
    let op = Op::CreateWithAcl { path, data: "d".into(), mode, acl };
    let asked = storm.cluster.write(1, victim, Command::Op(op));
    storm.cluster.answer(asked).unwrap();
    let client = 500;
    let ids = Vec::new();
    let connection = Connection::new("10.0.0.7:4000".parse().unwrap(), None, Right::Client);
    let connection = Some(connection);
    storm.cluster.input(1, Input::Authenticated { peer: client, connection, ids });
    let from = storm.cluster.node(1).machine.zxid();
    let session_holder = SessionHolder { session: victim, holder: 4711 };
    let claim = SessionClaim { session_holder, applied: 0, opened: false, base: None };
    let (path, kind) = (Arc::<str>::from("/"), WatchKind::Recursive);
    let held = HeldWatch {
        watch: 1,
        session_holder,
        path,
        kind,
        existed: true,
        from,
        data: EventData::Both,
    };
    let messages = vec![first(from, 0), F::Claim(claim), F::Watch(held), F::Begun];
    assert!(send(&mut storm, client, 0, messages).is_empty());
    // Nor is it listed as served here for that.
    assert!(storm.cluster.node(1).replica.clients.rate(victim).is_none());
    let asked = storm.cluster.set(1, victim, "/hidden", "very secret");
    storm.cluster.answer(asked).unwrap();
    let mut seen = Vec::new();
    for (_, to, message) in std::mem::take(&mut storm.cluster.elsewhere) {
        if let PeerMessage::ToClient { updates, .. } = message
            && to == client
        {
            seen.extend(updates.into_iter().filter(|one| matches!(one, ToClient::Event { .. })));
        }
    }
    assert!(seen.is_empty(), "{seen:?}");
}

/// A stranger took the id of a client that had died, at a member that did not know it, and kept its sessions, and so
/// its locks, for ever.
#[test]
fn only_the_holder_of_a_session_renews_it() {
    crate::planted::claims(renewals, crate::planted::Bug::StrangerRenews);
}

fn renewals() {
    let mut storm = Storm::new(1);
    let (client, session, holder) = (500, SessionId(4711), 9);
    let timeout = Duration::from_secs(8);
    let (secret, timeout_ms, base) = ([7; 16], 8000, 0);
    let command = Command::Open { secret, timeout_ms, owner: client, base };
    let open = Request { session, holder, seq: 0, acked: 0, command };
    assert!(send(&mut storm, client, 0, vec![first(0, 0), FromClient::Begun]).is_empty());
    assert!(send(&mut storm, client, 1, vec![FromClient::Write(open)]).is_empty());
    // With the number of its holder, with a guess, and by its id alone.
    for claimed in [Some(holder), Some(4712), None] {
        let claim = |holder| {
            let session_holder = SessionHolder { session, holder };
            FromClient::Claim(SessionClaim { session_holder, applied: 0, opened: true, base: None })
        };
        let mut messages = vec![first(0, 0)];
        messages.extend(claimed.map(claim));
        messages.push(FromClient::Begun);
        assert!(send(&mut storm, client, 0, messages).is_empty());
        let mut number = 0;
        for _ in 0..(3 * timeout.as_secs()) {
            storm.advance(Duration::from_secs(1));
            number += 1;
            let sessions = vec![session];
            let renewal = FromClient::ReadIndex { boot: 1, read_index: number, sessions };
            assert!(send(&mut storm, client, number, vec![renewal]).is_empty());
        }
        let lives = storm.cluster.node(1).machine().session(session).is_some();
        assert_eq!(lives, claimed == Some(holder), "{claimed:?}");
    }
}

/// The outcomes of thousands of writes with long paths came in one message, which no transport sends. The client
/// attached again, and got the same.
#[test]
fn the_outcomes_of_many_writes_with_long_paths_reach_the_client() {
    let mut storm = Storm::new(5);
    storm.advance(Duration::from_secs(1));
    let attachments = |storm: &Storm| storm.seats[&FIRST_CLIENT].client.attachments();
    let before = attachments(&storm);
    let (path, session): (Arc<str>, _) =
        (format!("/{}", "n".repeat(4000)).into(), SessionId(FIRST_CLIENT));
    for _ in 0..4_000 {
        let request = storm.number();
        let command = Command::Op(Op::Delete { path: Arc::clone(&path), version: None });
        storm.ask(FIRST_CLIENT, (request, session), RequestBody::Command(command));
    }
    storm.advance(Duration::from_secs(2));
    let record = storm.cluster.node(1).machine().session(session).map(|record| record.last_seq);
    assert!(record.is_some_and(|last| last >= 4_000), "{record:?}");
    assert_eq!(attachments(&storm), before);
}
