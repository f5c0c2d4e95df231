//! Sessions end when they must and not before (I18, I19, I21, I22).

use std::collections::BTreeSet;
use std::rc::{Rc, Weak};

use super::{Violation, require};
use crate::simulation::client::Handle;
use crate::simulation::kernel::Phase;
use crate::simulation::oracle::{End, Oracle};
use crate::znode::SessionId;

#[derive(Debug)]
pub(crate) struct Sessions {
    fair_clocks: bool,
    handles: Vec<Weak<Handle>>,
    /// Sessions that were expired by order, whatever their holders could know.
    forced: BTreeSet<SessionId>,
    /// Sessions that are over, with the holder that it concerns.
    over: BTreeSet<(SessionId, u64)>,
}

impl Sessions {
    pub(crate) fn new(fair_clocks: bool) -> Sessions {
        Sessions {
            fair_clocks,
            handles: Vec::new(),
            forced: BTreeSet::new(),
            over: BTreeSet::new(),
        }
    }

    pub(crate) fn opened(&mut self, handle: &Rc<Handle>) {
        self.handles.retain(|handle| handle.strong_count() > 0);
        self.handles.push(Rc::downgrade(handle));
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

    /// Some session that a client holds, chosen by `pick` among so many.
    pub(crate) fn any(&self, pick: impl FnOnce(usize) -> usize) -> Option<SessionId> {
        let live: Vec<Rc<Handle>> = self.live().collect();
        let place = pick(live.len());
        live.get(place).map(|handle| handle.session().id())
    }

    /// I19, I22: at the moment when a session's end is first applied anywhere, its holder does not
    /// take it for alive any more; and where nothing is wrong, no session expires.
    pub(crate) fn ended(&mut self, end: End, phase: Phase) -> Result<(), Violation> {
        self.over.insert((end.session, end.holder));
        if self.forced.contains(&end.session) {
            return Ok(());
        }
        for handle in self.live() {
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
        }
        Ok(())
    }

    /// The same at any later moment: what is over stays so.
    pub(crate) fn sweep(&self) -> Result<(), Violation> {
        for handle in self.live() {
            let session = handle.session();
            let over = self.over.contains(&(session.id(), handle.holder()));
            let excused = !self.fair_clocks || self.forced.contains(&session.id());
            require(excused || !over || !session.is_alive(), "I22 alive means not ended", || {
                format!("session {} is alive again after its end", session.id())
            })?;
        }
        Ok(())
    }

    /// I21: once everybody has finished, and time enough has passed, no session is left.
    pub(crate) fn settled(oracle: &Oracle) -> Result<(), Violation> {
        let left = oracle.sessions();
        require(left.is_empty(), "I21 sessions of the dead end", || {
            format!("{} sessions are left, {} the first", left.len(), left[0])
        })
    }
}
