//! Compares what a client has received on a connection with the plain model of ZooKeeper.

use std::collections::{BTreeSet, VecDeque};

use super::client::{Talk, Told};
use super::history::History;
use crate::gateway::tests::conversations::text;
use crate::gateway::tests::model::{Event, Model, NOTHING, Watches};
use crate::gateway::wire::codes::ErrorCode;
use crate::gateway::wire::jute::Jute;
use crate::gateway::wire::request::Request;
use crate::gateway::wire::response::{MultiReply, WatcherEvent};

/// What was seen, so that a test can tell whether it has tested anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) replies: usize,
    pub(super) events: usize,
    pub(super) resumptions: usize,
    pub(super) missed: usize,
    pub(super) acknowledged: usize,
}

impl Seen {
    pub(super) fn add(&mut self, other: &Seen) {
        self.replies += other.replies;
        self.events += other.events;
        self.resumptions += other.resumptions;
        self.missed += other.missed;
        self.acknowledged += other.acknowledged;
    }
}

/// A znode tree and a client's watches, as of a zxid.
struct Truth<'a> {
    history: &'a History,
    model: Model,
    /// The znodes before the last write that changed some.
    before: Model,
    zxid: i64,
    /// The events that are due, with their zxids.
    due: Vec<(i64, Event)>,
}

impl Truth<'_> {
    fn new(history: &History, session: i64) -> Truth<'_> {
        let mut model = Model::new(1);
        model.clients[0].session = session;
        Truth { history, before: model.clone(), model, zxid: 0, due: Vec::new() }
    }

    fn advance(&mut self, to: i64) {
        if to <= self.zxid {
            return;
        }
        for (zxid, changes) in self.history.0.range(self.zxid + 1..=to) {
            self.before = self.model.as_it_is();
            self.model.happen(*zxid, changes);
            let events = std::mem::take(&mut self.model.clients[0].events);
            self.due.extend(events.into_iter().map(|event| (*zxid, event)));
        }
        self.zxid = to;
    }
}

fn is_write(request: &Request) -> bool {
    matches!(
        request,
        Request::Create(_)
            | Request::Create2(_)
            | Request::Delete(_)
            | Request::SetData(_)
            | Request::Multi(_)
    )
}

/// Whether a write has changed something, by its reply.
fn has_happened(request: &Request, code: ErrorCode, body: &bytes::Bytes) -> bool {
    is_write(request)
        && code == ErrorCode::Ok
        && (!matches!(request, Request::Multi(_)) || {
            let MultiReply { results } = MultiReply::read(&mut body.clone()).expect("results");
            results.iter().all(Result::is_ok)
        })
}

/// How many of the last replies and events are shown when a check fails.
const SHOWN: usize = 30;

/// What the client received last, for the message of a check that fails.
struct Trail(VecDeque<String>);

impl Trail {
    fn note(&mut self, told: String) {
        self.0.push_back(told);
        if self.0.len() > SHOWN {
            self.0.pop_front();
        }
    }
}

impl Drop for Trail {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("the last that the client received:");
            self.0.iter().for_each(|told| println!("  {told}"));
        }
    }
}

/// Checks all that a client received on a connection.
pub(super) fn check(talk: &Talk, history: &History, seen: &mut Seen) {
    let mut truth = Truth::new(history, talk.session);
    let mut requests = talk.sent.iter();
    let mut last = talk.seen;
    // A client that has set its watches again: since which zxid, and what it has received since.
    let mut again = talk.watches.clone().map(|watches| (watches, Vec::new()));
    if let Some((watches, _)) = &again {
        truth.model.clients[0].watches = watches.clone();
        truth.model.clients[0].is_away = true;
    }
    // While watches are set again, changes may or may not be among what was missed. Then the later events are not
    // known either.
    let mut knows_events = true;
    let mut is_last = false;
    let mut trail = Trail(VecDeque::new());
    for told in &talk.told {
        assert!(!is_last, "{talk}: {told:?} after the last reply");
        let Told { header, body } = told;
        if header.xid == -1 {
            let event = WatcherEvent::read(&mut body.clone()).expect("an event");
            let kind = event.kind.try_into().expect("a kind of event");
            let event = (kind, event.path);
            trail.note(format!("{:#x} {event:?}", header.zxid));
            if header.zxid > 0 {
                assert!(
                    header.zxid >= last,
                    "{talk}: {event:?} of {:#x} after {last:#x}",
                    header.zxid
                );
                last = header.zxid;
            }
            seen.events += 1;
            if let Some((_, received)) = &mut again {
                received.push((header.zxid, event));
            } else if knows_events {
                truth.advance(header.zxid);
                let is_due = !truth.due.is_empty() && truth.due[0] == (header.zxid, event.clone());
                let due = &truth.due;
                assert!(is_due, "{talk}: {event:?} of {:#x} where {due:?} are due", header.zxid);
                truth.due.remove(0);
            }
            continue;
        }
        let (xid, request) = requests.next().expect("a request for each reply");
        trail.note(format!("{:#x} {request:?}: {}", header.zxid, header.err));
        let is_ping = *request == Request::Ping;
        let expected_xid = if is_ping { -2 } else { *xid };
        assert_eq!(header.xid, expected_xid, "{talk}: the reply to {request:?}");
        seen.replies += 1;
        if matches!(request, Request::Auth(_)) {
            let code = ErrorCode::try_from(header.err).expect("a known code");
            assert_eq!((header.zxid, code), (0, ErrorCode::Ok), "{talk}: {request:?}");
            continue;
        }
        let zxid = header.zxid;
        assert!(
            zxid >= last,
            "{talk}: the reply to {request:?} goes back from {last:#x} to {zxid:#x}"
        );
        last = zxid;
        truth.advance(zxid);
        let code = ErrorCode::try_from(header.err).expect("a known code");
        if let Request::SetWatches2(_) = request {
            let (watches, received) = again.take().expect("it is the first request");
            seen.resumptions += 1;
            knows_events = set_again(talk, &mut truth, &watches, &received, seen);
            assert_eq!(code, ErrorCode::Ok, "{talk}");
            continue;
        }
        let before_watches = again.is_some();
        assert!(
            !before_watches,
            "{talk}: {request:?} is answered before the watches are set again"
        );
        if knows_events {
            let due = &truth.due;
            assert!(due.is_empty(), "{talk}: {due:?} are due before the reply to {request:?}");
        }
        truth.due.clear();
        let answered = match code {
            ErrorCode::Ok => (code, text(request, body.clone())),
            code => (code, NOTHING.to_owned()),
        };
        let happened = has_happened(request, code, body);
        let expected = if happened {
            seen.acknowledged += 1;
            let moved = talk.moved_at.is_some_and(|moved| zxid > moved);
            assert!(!moved, "{talk}: {request:?} was executed although the session had moved");
            let mut after = truth.before.as_it_is();
            let expected = after.ask(0, request, zxid);
            let there = history.0.get(&zxid);
            assert!(
                there.is_some(),
                "{talk}: {request:?} was acknowledged with {zxid:#x}, where nothing changed"
            );
            let different = truth.model.differs(&after);
            assert!(
                different.is_none(),
                "{talk}: {request:?} was acknowledged with {zxid:#x}, where {there:?} happened: {different:?}"
            );
            expected
        } else if *request == Request::CloseSession {
            is_last = true;
            (ErrorCode::Ok, NOTHING.to_owned())
        } else if knows_watches(request) || knows_events {
            let mut asked = truth.model.as_it_is();
            let expected = asked.ask(0, request, zxid);
            if !is_write(request) {
                truth.model.clients = asked.clients;
            }
            expected
        } else {
            continue;
        };
        assert_eq!(answered, expected, "{talk}: {request:?} at {zxid:#x}");
    }
}

/// Whether the reply depends on nothing but the znodes.
fn knows_watches(request: &Request) -> bool {
    !matches!(request, Request::CheckWatches(_) | Request::RemoveWatches(_))
}

/// Compares the events before the reply to setWatches with what was missed. Returns whether it is known which
/// watches are set now.
fn set_again(
    talk: &Talk,
    truth: &mut Truth<'_>,
    watches: &Watches,
    received: &[(i64, Event)],
    seen: &mut Seen,
) -> bool {
    let all: BTreeSet<(i32, String)> =
        received.iter().map(|(_, (kind, path))| ((*kind).into(), path.clone())).collect();
    let count = |of: &[(i64, Event)], one: &(i64, Event)| of.iter().filter(|it| *it == one).count();
    let (lasting, happened) =
        (truth.model.lasting_since(0, talk.seen), truth.model.since(talk.seen));
    // A persistent watch gets each change once, however many watches there are.
    for event in received.iter().filter(|(zxid, _)| *zxid > 0) {
        let most = count(&happened, event);
        assert!(count(received, event) <= most, "{talk}: {event:?} comes more than {most} times");
    }
    for event in &lasting {
        let is_there = count(received, event) == count(&lasting, event);
        assert!(is_there, "{talk}: {event:?} is lost, of {watches:?}");
    }
    let until = truth.zxid;
    let missed = truth.model.missed(0, talk.seen);
    seen.missed += all.len();
    truth.due.clear();
    if truth.history.has_changes(talk.opened_at, until) {
        return false;
    }
    let (seen, from) = (talk.seen, talk.opened_at);
    if all != missed {
        for (z, c) in truth.history.0.range(..) {
            println!("HIST {z:#x} {c:?}");
        }
    }
    assert_eq!(all, missed, "{talk}: missed since {seen:#x}, known at {from:#x}, of {watches:?}");
    true
}
