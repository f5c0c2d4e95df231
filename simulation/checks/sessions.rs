//! Sessions begin with everything that was acknowledged (S4). They end when they must, and not before (I18, I19,
//! I21, I22).

use std::collections::BTreeSet;
use std::rc::{Rc, Weak};

use super::{Violation, require};
use crate::simulation::client::Handle;
use crate::simulation::kernel::Phase;
use crate::simulation::oracle::{End, Oracle};
use crate::types::znode::SessionId;

#[derive(Debug)]
pub(crate) struct Sessions {
    fair_clocks: bool,
    handles: Vec<Weak<Handle>>,
    /// Those of sessions that are not open yet.
    opening: Vec<Weak<Handle>>,
    /// Detached sessions, each with the holder that detached it.
    detached: BTreeSet<(SessionId, u64)>,
    /// Sessions that were expired by an operator. Their holders could not know.
    forced: BTreeSet<SessionId>,
    /// Handles of sessions that are over, whose holders do not know it yet.
    unaware: Vec<Weak<Handle>>,
}

impl Sessions {
    pub(crate) fn new(fair_clocks: bool) -> Sessions {
        Sessions {
            fair_clocks,
            handles: Vec::new(),
            opening: Vec::new(),
            detached: BTreeSet::new(),
            forced: BTreeSet::new(),
            unaware: Vec::new(),
        }
    }

    pub(crate) fn asked_for(&mut self, handle: &Rc<Handle>) {
        self.handles.retain(|handle| handle.strong_count() > 0);
        self.handles.push(Rc::downgrade(handle));
        self.opening.push(Rc::downgrade(handle));
    }

    pub(crate) fn detached(&mut self, handle: &Handle) {
        self.detached.insert((handle.session().id(), handle.holder()));
    }

    pub(crate) fn is_detached(&self, session: SessionId) -> bool {
        self.detached.iter().any(|(detached, _)| *detached == session)
    }

    pub(crate) fn force(&mut self, session: SessionId) {
        self.forced.insert(session);
    }

    pub(crate) fn is_forced(&self, session: SessionId) -> bool {
        self.forced.contains(&session)
    }

    fn live(&self) -> impl Iterator<Item = Rc<Handle>> {
        self.handles.iter().filter_map(Weak::upgrade)
    }

    /// A session that a client holds. `pick` chooses among so many.
    pub(crate) fn any(&self, pick: impl FnOnce(usize) -> usize) -> Option<SessionId> {
        let live: Vec<Rc<Handle>> = self.live().collect();
        let place = pick(live.len());
        live.get(place).map(|handle| handle.session().id())
    }

    /// The place of a session's holder.
    pub(crate) fn place_of(&self, session: SessionId, holder: u64) -> Option<usize> {
        let held =
            |handle: &Rc<Handle>| (handle.session().id(), handle.holder()) == (session, holder);
        self.live().find(held).map(|handle| handle.place())
    }

    /// I19, I22: when the end of a session is first applied anywhere, its holder no longer
    /// considers it alive. While nothing is wrong, no session expires.
    pub(crate) fn ended(&mut self, end: End, phase: Phase) -> Result<(), Violation> {
        let closed = !end.by_expiry && self.detached.contains(&(end.session, end.holder));
        require(!closed, "I18 a detached session stays open", || {
            format!("session {} was closed by who had detached it", end.session)
        })?;
        if self.forced.contains(&end.session) {
            return Ok(());
        }
        for handle in self.handles.iter().filter_map(Weak::upgrade) {
            let session = handle.session();
            if (session.id(), handle.holder()) != (end.session, end.holder) {
                continue;
            }
            let fair = self.fair_clocks || !end.by_expiry;
            require(!fair || !session.is_alive(), "I22 alive means not ended", || {
                format!("session {} is over, and its holder takes it for alive", session.id())
            })?;
            let calm = phase >= Phase::Calm;
            let expected = !end.by_expiry || session.state().is_final();
            require(!calm || expected, "I19 no early expiry", || {
                format!("session {} expired, and nothing was wrong", session.id())
            })?;
            if fair && !session.state().is_final() {
                self.unaware.push(Rc::downgrade(&handle));
            }
        }
        Ok(())
    }

    /// The same at any later moment, until the holder has learned of the end.
    pub(crate) fn check_unaware(&mut self) -> Result<(), Violation> {
        let mut checked = Ok(());
        self.unaware.retain(|stale| {
            let Some(handle) = stale.upgrade() else { return false };
            let session = handle.session();
            if session.is_alive() && checked.is_ok() {
                let what = format!("session {} is alive again after its end", session.id());
                checked = Err(Violation::new("I22 alive means not ended", what));
            }
            !session.state().is_final()
        });
        checked
    }

    /// S4: a session that has opened at this place can be read, and shows everything that anybody had a reply for
    /// before it was asked for.
    pub(crate) fn check_opening(&mut self, place: usize) -> Result<(), Violation> {
        let mut checked = Ok(());
        self.opening.retain(|opening| {
            let Some(handle) = opening.upgrade() else { return false };
            if handle.place() != place {
                return true;
            }
            let opened = handle.opened();
            let waits = opened.is_none();
            if checked.is_ok() {
                checked = opened.unwrap_or(Ok(()));
            }
            waits
        });
        checked
    }

    /// I21: once all clients have finished and enough time has passed, no session is left.
    pub(crate) fn settled(oracle: &Oracle) -> Result<(), Violation> {
        let left = oracle.sessions();
        require(left.is_empty(), "I21 sessions of the dead end", || {
            format!("{} sessions are left, {} the first", left.len(), left[0])
        })
    }
}
