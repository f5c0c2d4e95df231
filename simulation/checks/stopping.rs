//! All instances that are closed at the same time, where nothing else goes wrong: they hold few elections, and
//! close their sessions.

use std::collections::BTreeSet;

use super::{Violation, require};
use crate::node::Node;
use crate::simulation::clock::Nanos;
use crate::types::znode::SessionId;

#[derive(Debug, Default)]
pub(crate) struct Stopping(Option<Stop>);

#[derive(Debug)]
struct Stop {
    /// The term before.
    term: u64,
    members: u64,
    /// The sessions that the members hold.
    held: BTreeSet<SessionId>,
    /// When the closes that begin at one moment must have ended.
    until: Option<Nanos>,
    /// The last applied entry of all members that have ended, and which of these sessions are open there.
    last: (u64, Vec<SessionId>),
}

impl Stopping {
    /// All instances are about to be closed. `until`: they begin at one moment, and must have ended by then.
    pub(crate) fn begins(
        &mut self,
        term: u64,
        members: u64,
        held: BTreeSet<SessionId>,
        until: Option<Nanos>,
    ) {
        self.0 = Some(Stop { term, members, held, until, last: (0, Vec::new()) });
    }

    /// M4: a member has ended.
    pub(crate) fn ended(&mut self, node: &Node, now: Nanos) -> Result<(), Violation> {
        let Some(stop) = &mut self.0 else { return Ok(()) };
        let applied = node.applied().index;
        if applied >= stop.last.0 {
            let open = node.machine().sessions().map(|(session, _)| session);
            stop.last = (applied, open.filter(|open| stop.held.contains(open)).collect());
        }
        // A leader may hand over to one that does not know yet that it is to be closed, and that one too.
        let (elections, members) = (node.leadership().0 - stop.term, stop.members);
        require(elections <= members, "M4 few elections when all are closed", || {
            format!("{elections} elections of {members} members")
        })?;
        let is_late = stop.until.is_some_and(|until| now > until);
        require(!is_late, "M4 a close of all is short", || {
            format!("{:x} has ended at {now} ns, after {:?}", node.id(), stop.until)
        })
    }

    /// M4: all members have ended. Those that began at one moment have closed their sessions.
    pub(crate) fn all_ended(
        &mut self,
        is_detached: impl Fn(SessionId) -> bool,
    ) -> Result<(), Violation> {
        let Some(Stop { until, last: (_, mut open), .. }) = self.0.take() else { return Ok(()) };
        open.retain(|session| !is_detached(*session));
        require(until.is_none() || open.is_empty(), "M4 who is closed closes its sessions", || {
            format!("these were left open: {open:?}")
        })
    }
}
