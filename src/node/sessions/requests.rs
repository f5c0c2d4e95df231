//! The open of a session and its writes, until the log has decided them.

use std::collections::VecDeque;
use std::time::Duration;

use super::{WINDOW, WINDOW_BYTES};
use crate::machine::command::{Command, OpError, Reply};
use crate::node::io::{Effects, RequestId, Time};
use crate::node::query::Answer;
use crate::node::versions::Gate;
use crate::types::error::Error;
use crate::types::version::is_above;
use crate::types::znode::{SessionId, Zxid};

/// Which number each write has, which of them were sent and may be sent now, and which are done.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// The open (or resume) that is not decided yet.
    opening: Option<Opening>,
    /// When it was first sent. The leader's deadline for the session cannot count from earlier.
    first_sent: Option<Time>,
    /// The writes after `applied`.
    writes: VecDeque<PendingWrite>,
    issued: u64,
    /// The last number sent to the present leader; `None`: nothing, not even the open.
    sent: Option<u64>,
    /// The bytes of writes that were sent to the leader and are not answered yet.
    under_way: usize,
    /// The last number ever sent to any leader.
    ever_sent: u64,
    applied: u64,
    /// The last number whose result a request has acknowledged. The state machine keeps the later
    /// results.
    acknowledged: u64,
    /// When its requests last moved, and how long to wait before they are sent again.
    moved_at: Time,
    patience: Duration,
    /// Whether the session may have been resumed, used and ended within the entries of an installed
    /// snapshot.
    unseen: bool,
    /// The last number that may be sent for now.
    send_limit: u64,
}

#[derive(Debug)]
pub(super) struct Opening {
    pub(super) request: RequestId,
    pub(super) command: Command,
}

#[derive(Debug)]
pub(super) struct PendingWrite {
    pub(super) request: RequestId,
    pub(super) command: Command,
    size: usize,
    /// The error to refuse it with, if the cluster's version has no such command. Then `command`
    /// does nothing and only takes its place in the session's sequence.
    pub(super) refused: Option<OpError>,
}

impl PendingWrite {
    /// Refuses the write if it needs a later version than this.
    fn refuse(&mut self, version: u16) {
        if let Some(error) = self.command.unsupported(version) {
            self.command = Command::Multi(Vec::new());
            self.refused = Some(error);
        }
    }

    /// Answers it, since its session is over. A close succeeds then.
    fn fail(self, error: &Error, effects: &mut Effects) {
        let answer = match self.command {
            Command::Close => Ok(Answer::Reply(Reply::Done)),
            _ => Err(error.clone()),
        };
        effects.reply(self.request, answer);
    }
}

impl Requests {
    pub(super) fn new(opening: Opening, patience: Duration) -> Requests {
        let opening = Some(opening);
        Requests { opening, patience, send_limit: u64::MAX, ..Requests::default() }
    }

    pub(super) fn opening(&self) -> Option<&Opening> {
        self.opening.as_ref()
    }

    pub(super) fn first_sent(&self) -> Option<Time> {
        self.first_sent
    }

    /// The number of the last write.
    pub(super) fn issued(&self) -> u64 {
        self.issued
    }

    /// The number of the last write that is done.
    pub(super) fn applied(&self) -> u64 {
        self.applied
    }

    /// How many results the state machine keeps, if no write is to come that acknowledges them.
    pub(super) fn kept(&self) -> u64 {
        if self.writes.is_empty() { self.applied - self.acknowledged } else { 0 }
    }

    pub(super) fn is_unseen(&self) -> bool {
        self.unseen
    }

    /// A snapshot was installed that does not show the outcome of the open.
    pub(super) fn note_unseen(&mut self) {
        self.unseen = self.ever_sent > self.applied;
    }

    /// Whether anything is not decided yet.
    pub(super) fn is_open(&self) -> bool {
        self.opening.is_some() || !self.writes.is_empty()
    }

    pub(super) fn has_unsent(&self) -> bool {
        self.sent.is_none_or(|sent| sent < self.issued) && self.is_open()
    }

    /// Whether the open is sent next.
    pub(super) fn sends_opening(&self) -> bool {
        self.opening.is_some() && self.sent.is_none()
    }

    /// Gives a write the next number.
    pub(super) fn push(&mut self, request: RequestId, command: Command) {
        self.issued += 1;
        let size = command.size();
        self.writes.push_back(PendingWrite { request, command, size, refused: None });
    }

    /// Holds back the writes after this one, or none any more.
    pub(super) fn limit(&mut self, upto: Option<u64>) {
        self.send_limit = upto.map_or(u64::MAX, |upto| self.send_limit.min(upto));
    }

    /// Hands out what may be sent to the leader now, in order: numbers, the number from which on results are still
    /// needed, and commands. Returns whether a write waits for a version. `begins`: nothing was waited for before.
    pub(super) fn take_unsent(
        &mut self,
        gate: Gate,
        now: Time,
        begins: bool,
        mut send: impl FnMut(u64, u64, &Command),
    ) -> bool {
        if begins || self.sent.is_none() {
            self.moved_at = now;
        }
        let needed_from = self.applied + 1;
        if let Some(opening) = self.opening.as_ref().filter(|_| self.sent.is_none()) {
            send(0, needed_from, &opening.command);
            self.first_sent.get_or_insert(now);
        }
        let from = self.sent.unwrap_or(0).max(self.applied);
        let most = self.issued.min(self.applied + WINDOW).min(self.send_limit.max(from));
        let (mut upto, mut waits) = (from, false);
        while upto < most {
            let write = &mut self.writes[(upto - self.applied) as usize];
            let needs = write.command.version();
            if is_above(needs, gate.version) {
                if needs <= gate.possible {
                    waits = true;
                    break;
                }
                write.refuse(gate.version);
            }
            if self.under_way > 0 && self.under_way + write.size > WINDOW_BYTES {
                break;
            }
            upto += 1;
            self.acknowledged = self.applied;
            self.under_way += write.size;
            send(upto, needed_from, &write.command);
        }
        self.sent = Some(upto);
        self.ever_sent = self.ever_sent.max(upto);
        waits
    }

    /// Forgets what was sent: it may be lost.
    pub(super) fn forget_sent(&mut self) {
        self.sent = self.sent.filter(|_| planted!(ResendForgotten));
        self.under_way = 0;
    }

    /// The requests have moved. They are sent again if they do not for as long as `patience`.
    pub(super) fn moved(&mut self, now: Time, patience: Duration) {
        (self.moved_at, self.patience) = (now, patience);
    }

    /// Whether an answer to what was sent is waited for.
    pub(super) fn is_waiting(&self) -> bool {
        self.sent.is_some() && self.is_open()
    }

    /// If nothing has moved for too long, all is sent again, and next time after a longer while. Returns whether it is.
    pub(super) fn send_stuck_again(&mut self, now: Time, patience_max: Duration) -> bool {
        let is_stuck = now >= self.moved_at + self.patience;
        if is_stuck {
            self.moved(now, (self.patience * 2).min(patience_max));
            self.forget_sent();
        }
        is_stuck
    }

    /// The zxid at which the session did not exist, if it is being opened.
    fn base(&mut self) -> Option<&mut Zxid> {
        match &mut self.opening {
            Some(Opening { command: Command::Open { base, .. }, .. }) => Some(base),
            _ => None,
        }
    }

    /// Bases an open that was never sent on this zxid.
    pub(super) fn rest_on(&mut self, zxid: Zxid) {
        if self.first_sent.is_none()
            && let Some(base) = self.base()
        {
            *base = zxid.max(*base);
        }
    }

    /// No entry that this replica, which has `zxid`, has applied opened the session: the open is sent again.
    /// Returns whether there is one.
    pub(super) fn open_again(&mut self, zxid: Zxid) -> bool {
        if let Some(base) = self.base() {
            *base = zxid;
        }
        if self.opening.is_some() {
            self.forget_sent();
        }
        self.opening.is_some()
    }

    /// The open is decided.
    pub(super) fn opened(&mut self, now: Time, patience: Duration) -> Option<Opening> {
        let opening = self.opening.take()?;
        self.moved(now, patience);
        Some(opening)
    }

    /// The write of this number is decided. Returns it, if it is the next one.
    pub(super) fn decided(
        &mut self,
        seq: u64,
        now: Time,
        patience: Duration,
    ) -> Option<PendingWrite> {
        // Before the session is open, a write is refused only because its open was, as `StaleOpen`.
        // Both are sent again.
        if seq != self.applied + 1 || self.opening.is_some() {
            return None;
        }
        let write = self.writes.pop_front()?;
        self.applied = seq;
        // A write that was answered without having been sent to this leader is not counted.
        self.under_way = self.under_way.saturating_sub(write.size);
        if self.sent.is_none_or(|sent| sent <= seq) {
            self.under_way = 0;
        }
        self.moved(now, patience);
        Some(write)
    }

    /// Answers the sent writes with an unknown outcome. The writes that were never sent have
    /// certainly not happened.
    pub(super) fn answer_unknown(
        &mut self,
        session: SessionId,
        reason: &str,
        effects: &mut Effects,
    ) {
        let error = Error::OutcomeUnknown { session, reason: reason.to_owned() };
        self.writes.drain(..self.sent_writes()).for_each(|write| write.fail(&error, effects));
    }

    /// How many of its first writes were ever sent to any leader.
    fn sent_writes(&self) -> usize {
        let sent = self.ever_sent.saturating_sub(self.applied);
        usize::try_from(sent).unwrap_or(usize::MAX).min(self.writes.len())
    }

    /// Answers the writes that were never sent. They cannot happen any more.
    pub(super) fn fail_unsent(&mut self, error: &Error, effects: &mut Effects) {
        let keep = unless!(SentRefused, self.sent_writes(), 0);
        for write in self.writes.drain(keep..) {
            effects.reply(write.request, Err(error.clone()));
        }
    }

    /// Answers everything: the session is over.
    pub(super) fn fail(&mut self, error: &Error, effects: &mut Effects) {
        if let Some(opening) = self.opening.take() {
            effects.reply(opening.request, Err(error.clone()));
        }
        self.writes.drain(..).for_each(|write| write.fail(error, effects));
    }

    /// Whoever waits for an answer.
    pub(super) fn askers(&self) -> impl Iterator<Item = RequestId> {
        let opening = self.opening.iter().map(|opening| opening.request);
        opening.chain(self.writes.iter().map(|write| write.request))
    }
}
