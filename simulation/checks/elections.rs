//! The election recipe has one leader at a time, and fencing tokens grow. Observers of the election
//! and of groups end up with the present state.

use std::rc::{Rc, Weak};

use super::{Violation, require};
use crate::recipes::Leadership;
use crate::types::znode::{SessionId, Zxid};

#[derive(Debug)]
pub(crate) struct Elections {
    fair_clocks: bool,
    leaderships: Vec<(Weak<Leadership>, SessionId, usize)>,
    /// The largest token of a leader.
    token: Zxid,
}

impl Elections {
    pub(crate) fn new(fair_clocks: bool) -> Elections {
        Elections { fair_clocks, leaderships: Vec::new(), token: 0 }
    }

    /// A client leads now. Its token is larger than all before, and no other client believes that
    /// it leads.
    pub(crate) fn leads(
        &mut self,
        leadership: &Rc<Leadership>,
        session: SessionId,
        place: usize,
        excused: impl Fn(SessionId) -> bool,
    ) -> Result<(), Violation> {
        if !self.fair_clocks {
            return Ok(());
        }
        let token = leadership.fencing_token();
        if !excused(session) && leadership.is_held() {
            require(token > self.token, "elections: tokens grow", || {
                format!("token {} has led, and now {token} does", self.token)
            })?;
            self.token = token;
        }
        self.leaderships.retain(|(other, ..)| other.strong_count() > 0);
        self.leaderships.push((Rc::downgrade(leadership), session, place));
        let leading: Vec<(SessionId, usize)> = self
            .leaderships
            .iter()
            .filter(|(other, session, _)| {
                !excused(*session) && other.upgrade().is_some_and(|other| other.is_held())
            })
            .map(|(_, session, place)| (*session, *place))
            .collect();
        require(leading.len() < 2, "elections: one leader at a time", || {
            format!("sessions at these nodes say that they lead: {leading:?}")
        })
    }
}

/// The notifications of an observer, in order.
#[derive(Debug, Default)]
pub(crate) struct Notifications {
    last: Option<Option<Zxid>>,
    token: Zxid,
}

impl Notifications {
    /// Each notification differs from the one before, and tokens grow.
    pub(crate) fn record(&mut self, token: Option<Zxid>) -> Result<(), Violation> {
        let last = self.last.replace(token);
        require(last != Some(token), "elections: reported once", || {
            format!("{token:?} is reported again")
        })?;
        if let Some(token) = token {
            let before = std::mem::replace(&mut self.token, token);
            require(token > before, "elections: reported in order", || {
                format!("{token} after {before}")
            })?;
        }
        Ok(())
    }

    pub(crate) fn last(&self) -> Option<Option<Zxid>> {
        self.last
    }
}
