//! What is to be done for which sessions.
//!
//! A session may be on the agenda for any number of tasks, for each of them once. Sessions of one task come in
//! the order of their ids. A session that is forgotten may stay on the agenda: whoever takes it looks it up.

use std::collections::BTreeSet;

use crate::types::znode::SessionId;

/// What is to be done for a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SessionTask {
    /// It has something to send.
    Send,
    /// Its writes are sent only up to a number: see `LocalSessions::set_send_limit`.
    LiftSendLimit,
    /// Its next write needs a later version than the gate allows.
    AwaitVersion,
    /// It has requests at the leader, which are sent again if they make no progress.
    AwaitOutcome,
    /// Its local deadline has passed, and it may still owe answers.
    Settle,
    /// Its waits may be answerable now.
    Answer,
    /// Its next wait is a sync or a watch for which this replica must catch up.
    CatchUp,
}

const TASKS: usize = SessionTask::CatchUp as usize + 1;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    sessions: [BTreeSet<SessionId>; TASKS],
}

impl Agenda {
    /// Returns whether the session was not on the agenda for this task.
    pub(super) fn add(&mut self, task: SessionTask, session: SessionId) -> bool {
        self.sessions[task as usize].insert(session)
    }

    pub(super) fn remove(&mut self, task: SessionTask, session: SessionId) {
        self.sessions[task as usize].remove(&session);
    }

    pub(super) fn has(&self, task: SessionTask) -> bool {
        !self.sessions[task as usize].is_empty()
    }

    /// Takes all sessions off the agenda for this task.
    pub(super) fn take(&mut self, task: SessionTask) -> BTreeSet<SessionId> {
        std::mem::take(&mut self.sessions[task as usize])
    }

    /// Puts sessions back that were taken.
    pub(super) fn put_back(&mut self, task: SessionTask, mut sessions: BTreeSet<SessionId>) {
        self.sessions[task as usize].append(&mut sessions);
    }

    /// All sessions of one task are on the agenda for the other task instead.
    pub(super) fn turn(&mut self, from: SessionTask, to: SessionTask) {
        let sessions = self.take(from);
        self.put_back(to, sessions);
    }
}
