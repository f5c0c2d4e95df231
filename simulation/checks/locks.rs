//! A lock has one holder at a time (I22, I23), and fencing tokens grow.

use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use super::{Violation, require};
use crate::recipes::LockGuard;
use crate::types::znode::SessionId;

#[derive(Debug)]
pub(crate) struct Locks {
    fair_clocks: bool,
    guards: BTreeMap<String, Vec<Holding>>,
    /// The largest token of a holder, by lock.
    tokens: BTreeMap<String, u64>,
}

#[derive(Debug)]
struct Holding {
    guard: Weak<LockGuard>,
    session: SessionId,
    place: usize,
}

impl Locks {
    pub(crate) fn new(fair_clocks: bool) -> Locks {
        Locks { fair_clocks, guards: BTreeMap::new(), tokens: BTreeMap::new() }
    }

    /// I22: each new guard that is held has a larger token than those before it.
    pub(crate) fn acquired(
        &mut self,
        lock: &str,
        guard: &Rc<LockGuard>,
        session: SessionId,
        place: usize,
        forced: bool,
    ) -> Result<(), Violation> {
        let token = guard.fencing_token();
        if self.fair_clocks && !forced && guard.is_held() {
            let last = self.tokens.entry(lock.to_owned()).or_default();
            require(token > *last, "I22 tokens grow", || {
                format!("{lock} was held with token {last}, and now with {token}")
            })?;
            *last = token;
        }
        let guards = self.guards.entry(lock.to_owned()).or_default();
        guards.retain(|holding| holding.guard.strong_count() > 0);
        guards.push(Holding { guard: Rc::downgrade(guard), session, place });
        Ok(())
    }

    /// I23: at no moment of true time do two guards of a lock report that they are held.
    pub(crate) fn check(&self, excused: impl Fn(SessionId) -> bool) -> Result<(), Violation> {
        if !self.fair_clocks {
            return Ok(());
        }
        for (lock, guards) in self.guards.iter().filter(|(_, guards)| guards.len() > 1) {
            let mut held = guards.iter().filter(|holding| {
                !excused(holding.session)
                    && holding.guard.upgrade().is_some_and(|guard| guard.is_held())
            });
            if let (Some(one), Some(two)) = (held.next(), held.next()) {
                return Err(Violation::new(
                    "I23 one holder at a time",
                    format!(
                        "{lock} is held by session {} at node {} and by session {} at node {}",
                        one.session, one.place, two.session, two.place
                    ),
                ));
            }
        }
        Ok(())
    }
}
