//! A client's handles. They wrap the library's own handles, record each call and compare each reply
//! with the oracle's.

mod reads;
mod watches;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use super::checks::order::{self, is_definite};
use super::checks::{Violation, require, versions};
use super::clock::MILLI;
use super::kernel::Kernel;
use super::random::Random;
use crate::api::coordinator::Coordinator;
use crate::api::multi::Multi;
use crate::api::session::Session;
use crate::machine::command::Reply;
use crate::node::query::Answer;
use crate::runtime::ask::when;
use crate::runtime::entropy;
use crate::runtime::pending::Pending;
use crate::types::acl::{Acl, Id};
use crate::types::error::{Error, Result};
use crate::types::session::SessionState;
use crate::types::znode::{CreateMode, Created, OpResult, SessionId, Stat, Zxid};

pub(crate) use watches::CheckedWatch;

/// A reply that is checked when it arrives.
pub(crate) type CheckedReply<T> = Pin<Box<dyn Future<Output = T>>>;

/// One client: a task of a process.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) kernel: Rc<Kernel>,
    pub(crate) place: usize,
    pub(crate) coordinator: Coordinator,
    pub(crate) random: Rc<Random>,
}

/// The data that resumes a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket {
    pub(crate) id: SessionId,
    pub(crate) password: [u8; 16],
    pub(crate) floor: Zxid,
}

impl Client {
    pub(crate) async fn think(&self) {
        let time = self.random.around(self.kernel.plan.think);
        self.kernel.sleep(time.max(MILLI)).await;
    }

    /// Opens one session after another and calls `act` repeatedly in each, until the session is
    /// over.
    pub(crate) async fn in_sessions(&self, mut act: impl AsyncFnMut(&Rc<Handle>)) {
        while !self.kernel.is_stopping() {
            self.think().await;
            let Ok((handle, _opened)) = self.open(None) else { return };
            while !self.kernel.is_stopping() && !handle.is_over() {
                self.think().await;
                act(&handle).await;
            }
        }
    }

    /// Opens or resumes a session. The second value is the reply to that.
    pub(crate) fn open(
        &self,
        resume: Option<Ticket>,
    ) -> Result<(Rc<Handle>, CheckedReply<Result<()>>)> {
        let drawn = entropy::simulated::peek();
        let known = resume.map(|ticket| (ticket.id, ticket.password));
        let usual = self.kernel.plan.session_timeout;
        let timeout = if self.random.percent(70) {
            usual
        } else {
            usual / 2 * self.random.within(1..5) as u32
        };
        // Half of the holders keep the session's timeout.
        let keeps = self.kernel.plan.detaches && known.is_some() && drawn.is_multiple_of(2);
        let timeout = (!keeps).then_some(timeout);
        let begun = self.kernel.checks.borrow().order.floor().zxid;
        let (session, pending) = self.coordinator.begin_session(timeout, known)?;
        let handle = Rc::new(Handle {
            kernel: Rc::clone(&self.kernel),
            place: self.place,
            holder: session.holder(),
            session,
            issued: Cell::new(0),
            refused: RefCell::default(),
            floor: Cell::new(resume.map_or(0, |ticket| ticket.floor)),
            begun,
            order: RefCell::default(),
            closing: Cell::new(false),
            syncs: Cell::new(0),
            ids: RefCell::default(),
        });
        self.kernel.checks.borrow_mut().sessions.asked_for(&handle);
        let name = if resume.is_some() { "resume" } else { "open" };
        let waits = self.kernel.wait(name, self.place);
        let (kernel, place, id) = (Rc::clone(&self.kernel), self.place, handle.session.id());
        let opened = Box::pin(async move {
            let _waits = waits;
            let result = pending.await;
            kernel.count(name);
            kernel.trace.note([3, id.number(), u64::from(result.is_ok())]);
            kernel.trace.log(format_args!("node {place}: {name} session {id}: {result:?}"));
            result
        });
        Ok((handle, opened))
    }
}

/// A session, as one holder has it.
#[derive(Debug)]
pub(crate) struct Handle {
    kernel: Rc<Kernel>,
    place: usize,
    session: Session,
    holder: u64,
    /// The number of the last write sent.
    issued: Cell<u64>,
    /// Writes refused because disks are nearly full. They have no number in the log.
    refused: RefCell<BTreeSet<u64>>,
    /// The lowest zxid that a later read may show.
    floor: Cell<Zxid>,
    /// The last zxid that anybody had a reply for when the session was asked for.
    begun: Zxid,
    order: RefCell<Order>,
    closing: Cell<bool>,
    /// The number of outstanding syncs.
    syncs: Cell<u32>,
    /// The ids with which the session has authenticated.
    ids: RefCell<Vec<Id>>,
}

/// I4: replies come in the order of the requests. A write is the exception: it does not wait for
/// the reads and syncs before it.
#[derive(Debug, Default)]
struct Order {
    asked: u64,
    /// Requests without a reply, each with whether it is a write.
    open: BTreeMap<u64, bool>,
}

impl Handle {
    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    pub(crate) fn place(&self) -> usize {
        self.place
    }

    pub(crate) fn holder(&self) -> u64 {
        self.holder
    }

    pub(crate) fn is_over(&self) -> bool {
        self.session.state().is_final() || self.closing.get()
    }

    pub(crate) fn ticket(&self) -> Ticket {
        let (id, password) = (self.session.id(), self.session.password());
        Ticket { id, password, floor: self.floor.get() }
    }

    /// S4: a session shows everything that anybody had a reply for before it was asked for.
    fn shows_what_was_acknowledged(&self, what: &str, zxid: Zxid) -> Result<(), Violation> {
        require(zxid >= self.begun, "S4 a read shows what was acknowledged", || {
            let (id, begun) = (self.session.id(), self.begun);
            format!("{what} of session {id} shows zxid {zxid}; {begun} was answered before it")
        })
    }

    /// The same, for what the next read of a session shows once it is open; `None` before.
    pub(crate) fn opened(&self) -> Option<Result<(), Violation>> {
        let state = self.session.state();
        let is_open = state != SessionState::Connecting && !state.is_final();
        let shown = self.shown();
        let checked = require(!is_open || shown >= self.begun, "S4 open means caught up", || {
            let (id, begun) = (self.session.id(), self.begun);
            format!("session {id} is open at zxid {shown}; {begun} was answered before it")
        });
        (state != SessionState::Connecting).then_some(checked)
    }

    fn raise(&self, zxid: Zxid) {
        self.floor.set(self.floor.get().max(zxid));
    }

    fn installs(&self) -> u64 {
        self.kernel.installs.borrow()[self.place]
    }

    /// The zxid that reads show now. Without a replica, it is the zxid up to which everything was
    /// received: a member sends a reply together with the zxid of the state that it shows, or with
    /// a later one.
    pub(crate) fn shown(&self) -> Zxid {
        match self.session.has_replica() {
            true => self.session.shared().tree().zxid(),
            false => self.kernel.seen.borrow()[self.place],
        }
    }

    fn ask(&self, writes: bool) -> u64 {
        let mut order = self.order.borrow_mut();
        order.asked += 1;
        let number = order.asked;
        order.open.insert(number, writes);
        number
    }

    /// The chroot through which a session uses this path, if it does: the path's first part, in a
    /// third of the sessions.
    fn root_of<'a>(&self, path: &'a str) -> Option<&'a str> {
        let end = path.get(1..)?.find('/')? + 1;
        let through = self.session.id().number().is_multiple_of(3) && path.len() > end + 1;
        through.then(|| &path[..end])
    }

    /// The handle for this path, and the path relative to it.
    fn at<'a>(&self, path: &'a str) -> (Session, &'a str) {
        match self.root_of(path) {
            Some(root) => {
                let below = self.session.chroot(root).expect("the first part of a path is one");
                (below.in_turn(), &path[root.len()..])
            }
            None => (self.session.in_turn(), path),
        }
    }

    /// I4: all earlier requests have a reply, unless the session is over.
    fn answered<T>(&self, number: u64, what: &'static str, result: &Result<T>) {
        self.kernel.count(what);
        let mut order = self.order.borrow_mut();
        let wrote = order.open.remove(&number) == Some(true);
        let mut before = order.open.range(..number).filter(|(_, writes)| **writes || !wrote);
        let earlier = before.next().map(|(number, _)| *number);
        // Such an error need not wait for the replies before it.
        let at_once = |error: &Error| {
            error.is_session_lost() || matches!(error, Error::Busy { .. } | Error::DiskLow { .. })
        };
        let lost = result.as_ref().is_err_and(at_once);
        self.kernel.check(require(lost || earlier.is_none(), "I4 answers in order", || {
            let session = self.session.id();
            format!("{what} {number} of session {session} is answered before {earlier:?}")
        }));
    }

    fn note<T: Debug>(&self, what: &'static str, path: &str, result: &Result<T>) {
        let id = self.session.id();
        let kind = match result {
            Ok(_) => 1,
            Err(error) => 2 + u64::from(error.is_outcome_unknown()),
        };
        self.kernel.trace.note([2, id.number() ^ what.len() as u64, kind]);
        let place = self.place;
        self.kernel.trace.log(format_args!("node {place}: {what} {path} by {id}: {result:?}"));
    }

    /// Checks a write that has just been sent.
    fn write<T: Debug + PartialEq + 'static>(
        self: &Rc<Self>,
        what: &'static str,
        path: &str,
        pending: Pending<'static, T>,
        convert: impl FnOnce(Answer) -> Option<T> + 'static,
        changes: fn(&T) -> bool,
    ) -> CheckedReply<Result<T>> {
        let asked = self.kernel.checks.borrow().order.floor();
        let waits = self.kernel.wait(what, self.place);
        let version = self.session.shared().readiness.status().version;
        let refused = pending.has_failed();
        if !refused {
            self.issued.set(self.issued.get() + 1);
        }
        let (seq, number) = (self.issued.get(), self.ask(true));
        let path = path.to_owned();
        let handle = Rc::clone(self);
        Box::pin(async move {
            let _waits = waits;
            let result = pending.await;
            handle.answered(number, what, &result);
            handle.note(what, &path, &result);
            if matches!(result, Err(Error::DiskLow { .. })) {
                handle.kernel.count_event("writes refused for full disks");
                handle.refused.borrow_mut().insert(seq);
            } else if !refused {
                let seq = seq - handle.refused.borrow().range(..seq).count() as u64;
                let root = handle.root_of(&path);
                let asked = (asked, version, root);
                let checked = handle.check_write(seq, asked, &result, convert, changes);
                handle.kernel.check(checked.map_err(|violation| Violation {
                    what: format!("{what} {path}: {}", violation.what),
                    ..violation
                }));
            }
            result
        })
    }

    /// I9, I10: the reply matches the log, and a write that was refused for good has not happened.
    fn check_write<T: Debug + PartialEq>(
        &self,
        seq: u64,
        (asked, version, root): (order::Floor, u16, Option<&str>),
        result: &Result<T>,
        convert: impl FnOnce(Answer) -> Option<T>,
        changes: fn(&T) -> bool,
    ) -> Result<(), Violation> {
        let mut checks = self.kernel.checks.borrow_mut();
        let id = self.session.id();
        let outcome = checks.oracle.outcome(id, self.holder, seq).cloned();
        if let Err(error) = result {
            if !is_definite(error) {
                return Ok(());
            }
            if error.is_session_lost() && !matches!(error, Error::Multi { .. }) {
                let happened = outcome.is_some_and(|outcome| outcome.is_done());
                checks.order.never(id, self.holder, seq);
                return require(!happened, "I10 refused is not done", || {
                    format!("request {seq} of session {id} failed with {error}, and was done")
                });
            }
        }
        let Some(outcome) = outcome else {
            let what = format!("request {seq} of session {id} was answered {result:?}");
            return Err(Violation::new("I9 answered is in the log", what));
        };
        if let Some(refusal) = versions::refusal(result) {
            self.kernel.count_event("writes refused for their version");
            versions::refused(refusal, version, &outcome)?;
            return checks.order.answered(asked, &outcome, false);
        }
        let expected = match outcome.result.clone() {
            Ok(reply) => {
                Ok(convert(Answer::Reply(reply)).expect("the log has a reply of the write's kind"))
            }
            Err(error) => Err(error.into_error(id)),
        };
        let same = match root {
            None => expected == *result,
            Some(root) => seen_from(root, &format!("{expected:?}")) == format!("{result:?}"),
        };
        require(same, "I9 the answer of the log", || {
            format!("request {seq} of session {id} got {result:?}, not {expected:?}")
        })?;
        checks.order.answered(asked, &outcome, result.as_ref().is_ok_and(changes))?;
        if result.as_ref().is_ok_and(changes) {
            self.raise(outcome.zxid);
        }
        Ok(())
    }

    pub(crate) fn create(
        self: &Rc<Self>,
        path: &str,
        data: &[u8],
        mode: CreateMode,
    ) -> CheckedReply<Result<Created>> {
        let (session, below) = self.at(path);
        let pending = session.create(below, data, mode);
        self.write(
            "create",
            path,
            pending,
            when!(Answer::Reply(Reply::Created(created)) => created),
            |_| true,
        )
    }

    /// Authenticates as this user before any other request, so that the session's permissions are
    /// fixed from then on.
    pub(crate) async fn add_auth(self: &Rc<Self>, user: &str) {
        let pending = self.session.add_auth("digest", format!("{user}:1"));
        let convert = when!(Answer::Reply(Reply::Ids(_)) => ());
        if self.write("add auth", user, pending, convert, |()| false).await.is_ok() {
            self.ids.borrow_mut().push(Id::digest(user, "1"));
        }
    }

    pub(crate) fn create_with_acl(
        self: &Rc<Self>,
        path: &str,
        mode: CreateMode,
        acl: &[Acl],
    ) -> CheckedReply<Result<Created>> {
        let (session, below) = self.at(path);
        let pending = session.create_with_acl(below, b"", mode, acl);
        self.write(
            "create with acl",
            path,
            pending,
            when!(Answer::Reply(Reply::Created(created)) => created),
            |_| true,
        )
    }

    pub(crate) fn create_or_set(
        self: &Rc<Self>,
        path: &str,
        data: &[u8],
        mode: CreateMode,
    ) -> CheckedReply<Result<Created>> {
        let (session, below) = self.at(path);
        let pending = session.create_or_set(below, data, mode);
        let at = path.to_owned();
        self.write(
            "create or set",
            path,
            pending,
            move |answer| created_or_set(&at, answer),
            |_| true,
        )
    }

    /// Takes over an ephemeral of another session.
    pub(crate) fn take_over(
        self: &Rc<Self>,
        path: &str,
        data: &[u8],
        from: SessionId,
    ) -> CheckedReply<Result<Created>> {
        let (session, below) = self.at(path);
        let pending = session.take_over(below, data, from);
        let at = path.to_owned();
        self.write("take over", path, pending, move |answer| created_or_set(&at, answer), |_| true)
    }

    pub(crate) fn set_acl(
        self: &Rc<Self>,
        path: &str,
        acl: &[Acl],
        version: Option<u64>,
    ) -> CheckedReply<Result<Stat>> {
        let (session, below) = self.at(path);
        let session = session;
        let pending = match version {
            Some(version) => session.set_acl_if(below, acl, version),
            None => session.set_acl(below, acl),
        };
        self.write("set acl", path, pending, when!(Answer::Reply(Reply::Set(stat)) => stat), |_| {
            true
        })
    }

    pub(crate) fn set(
        self: &Rc<Self>,
        path: &str,
        data: &[u8],
        version: Option<u64>,
    ) -> CheckedReply<Result<Stat>> {
        let (session, below) = self.at(path);
        let session = session;
        let pending = match version {
            Some(version) => session.set_if(below, data, version),
            None => session.set(below, data),
        };
        let what = if version.is_some() { "set_if" } else { "set" };
        self.write(what, path, pending, when!(Answer::Reply(Reply::Set(stat)) => stat), |_| true)
    }

    pub(crate) fn invented(self: &Rc<Self>, path: &str, data: &[u8]) -> CheckedReply<Result<Stat>> {
        let (session, below) = self.at(path);
        let pending = session.invented(below, data);
        self.write(
            "invented",
            path,
            pending,
            when!(Answer::Reply(Reply::Set(stat)) => stat),
            |_| true,
        )
    }

    pub(crate) fn delete(
        self: &Rc<Self>,
        path: &str,
        version: Option<u64>,
    ) -> CheckedReply<Result<()>> {
        let (session, below) = self.at(path);
        let session = session;
        let pending = match version {
            Some(version) => session.delete_if(below, version),
            None => session.delete(below),
        };
        let what = if version.is_some() { "delete_if" } else { "delete" };
        self.write(what, path, pending, when!(Answer::Reply(Reply::Done) => ()), |()| true)
    }

    pub(crate) fn delete_recursive(self: &Rc<Self>, path: &str) -> CheckedReply<Result<()>> {
        let (session, below) = self.at(path);
        let pending = session.delete_recursive(below);
        self.write("delete all", path, pending, when!(Answer::Reply(Reply::Done) => ()), |()| true)
    }

    pub(crate) fn multi(
        self: &Rc<Self>,
        build: impl FnOnce(Multi<'_>) -> Multi<'_>,
    ) -> CheckedReply<Result<Vec<OpResult>>> {
        let pending = build(self.session.multi()).commit();
        let changes = |results: &Vec<OpResult>| {
            results.iter().any(|result| !matches!(result, OpResult::Checked))
        };
        self.write(
            "multi",
            "",
            pending,
            when!(Answer::Reply(Reply::Multi(results)) => results),
            changes,
        )
    }

    /// Closes the session. No result of that is an error.
    pub(crate) fn close(self: &Rc<Self>) -> CheckedReply<()> {
        self.closing.set(true);
        let waits = self.kernel.wait("close", self.place);
        let pending = self.session.close();
        let number = self.ask(true);
        let handle = Rc::clone(self);
        Box::pin(async move {
            let _waits = waits;
            let result = pending.await;
            handle.answered(number, "close", &result);
            handle.note("close", "", &result);
        })
    }

    /// Detaches the session and leaves it open, as `Session::detach` does.
    pub(crate) fn detach(self: &Rc<Self>) -> CheckedReply<()> {
        let waits = self.kernel.wait("detach", self.place);
        let pending = self.session.who_am_i();
        let handle = Rc::clone(self);
        Box::pin(async move {
            let _waits = waits;
            let is_known = pending.await.is_ok();
            let closes = planted!(DetachCloses);
            if planted!(DetachCloses) {
                drop(handle.session.close());
            }
            if is_known && (closes || handle.session.let_go()) {
                handle.kernel.checks.borrow_mut().sessions.detached(&handle);
                handle.kernel.count("detach");
                handle.note("detach", "", &Ok(()));
            }
        })
    }

    /// I2: reads after the sync show every write that any client had a reply for before it.
    pub(crate) fn sync(self: &Rc<Self>) -> CheckedReply<Result<Zxid>> {
        let asked = self.kernel.checks.borrow().order.floor();
        let waits = self.kernel.wait("sync", self.place);
        let pending = self.session.sync();
        let (number, handle) = (self.ask(false), Rc::clone(self));
        self.syncs.set(self.syncs.get() + 1);
        Box::pin(async move {
            let _waits = waits;
            let result = pending.await;
            handle.syncs.set(handle.syncs.get() - 1);
            handle.answered(number, "sync", &result);
            handle.note("sync", "", &result);
            if let Ok(zxid) = result {
                handle.kernel.check(require(zxid >= asked.zxid, "I2 sync sees all", || {
                    format!("it gave {zxid} and was asked for after {} was answered", asked.zxid)
                }));
                handle.raise(asked.zxid);
            }
            result
        })
    }
}

/// Formats a reply with paths relative to a chroot.
fn seen_from(root: &str, answer: &str) -> String {
    let in_path = |c: char| c.is_alphanumeric() || matches!(c, '/' | '-' | '_' | '.');
    let mut seen = String::with_capacity(answer.len());
    let mut rest = answer;
    while let Some(at) = rest.find(root) {
        let (before, found) = rest.split_at(at);
        let after = &found[root.len()..];
        seen.push_str(before);
        let starts = !seen.ends_with(in_path);
        seen.push_str(match after.chars().next() {
            Some('/') if starts => "",
            Some(next) if in_path(next) => root,
            _ if starts => "/",
            _ => root,
        });
        rest = after;
    }
    seen + rest
}

fn created_or_set(path: &str, answer: Answer) -> Option<Created> {
    let (created, stat) = match answer {
        Answer::Reply(Reply::Created(Created { path, stat })) => (Some(path), stat),
        Answer::Reply(Reply::Set(stat)) => (None, stat),
        _ => return None,
    };
    Some(Created { path: created.unwrap_or_else(|| path.to_owned()), stat })
}
