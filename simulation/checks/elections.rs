//! The election recipe has one leader at a time, and fencing tokens grow. Candidates lead in the order of their
//! priorities, and a leader that hands over is followed by the one that it has named. Observers of the election
//! and of groups end up with the present state.

use std::collections::BTreeMap;
use std::rc::{Rc, Weak};

use super::{Violation, require};
use crate::machine::command::ChangeKind;
use crate::recipes::{Candidate, Leadership, candidate_priority};
use crate::simulation::clock::{Nanos, SECOND};
use crate::simulation::oracle::Oracle;
use crate::simulation::plan::Plan;
use crate::types::znode::{SessionId, Zxid};

/// The election of the workload.
pub(crate) const PATH: &str = "/election";

/// The place of a candidate of this name: its number, and then the name.
pub(crate) fn order(name: &str) -> (&str, &str) {
    (&name[name.len().saturating_sub(10)..], name)
}

#[derive(Debug)]
pub(crate) struct Elections {
    fair_clocks: bool,
    leaderships: Vec<(Weak<Leadership>, SessionId, usize)>,
    /// The largest token of a leader.
    token: Zxid,
    /// The number of changes that were checked.
    seen: usize,
    /// The candidates that are there, each with its first znode's arrival.
    arrivals: BTreeMap<String, Nanos>,
    /// How long a candidate may take to come in front of others while nothing is wrong.
    grace: Nanos,
}

impl Elections {
    pub(crate) fn new(plan: &Plan) -> Elections {
        // The candidates of a session that has ended stay for some time.
        let timeouts =
            u64::try_from(plan.session_timeout.as_nanos()).unwrap_or(Nanos::MAX / 10) * 5;
        let grace = timeouts + 5 * SECOND + 90 * plan.sync;
        Elections {
            fair_clocks: plan.clocks_are_fair(),
            leaderships: Vec::new(),
            token: 0,
            seen: 0,
            arrivals: BTreeMap::new(),
            grace,
        }
    }

    /// Checks the changes since the last call.
    pub(crate) fn committed(
        &mut self,
        oracle: &Oracle,
        now: Nanos,
        is_calm: bool,
    ) -> Result<(), Violation> {
        for change in &oracle.changes()[self.seen..] {
            self.seen += 1;
            let name = change.path.strip_prefix(PATH).and_then(|name| name.strip_prefix('/'));
            let Some(name) = name else { continue };
            match change.kind {
                ChangeKind::Created => {
                    self.arrivals.insert(name.to_owned(), now);
                }
                ChangeKind::Deleted => {
                    self.arrivals.remove(name);
                    // In calm times, the sessions that were lost before have ended.
                    if is_calm {
                        self.next_leads(oracle, change.zxid, now)?;
                    }
                }
                _ => {}
            }
            let (before, after) =
                (candidates(oracle, change.zxid - 1), candidates(oracle, change.zxid));
            if let Some(first) = before.first().filter(|first| after.contains(first)) {
                require(
                    after.first() == Some(first),
                    "elections: nobody passes the first",
                    || {
                        format!(
                            "{first} was the first, and {:?} is after write {}",
                            after[0], change.zxid
                        )
                    },
                )?;
            }
        }
        Ok(())
    }

    /// If the first candidate is gone, the next one has the highest priority of all that are there for long enough.
    fn next_leads(&self, oracle: &Oracle, zxid: Zxid, now: Nanos) -> Result<(), Violation> {
        let (before, after) = (candidates(oracle, zxid - 1), candidates(oracle, zxid));
        let settled = now.saturating_sub(self.grace);
        if before.first() == after.first() {
            return Ok(());
        }
        let Some(next) = after.first() else { return Ok(()) };
        let passed = after.iter().find(|other| {
            candidate_priority(other) > candidate_priority(next)
                && self.arrivals.get(*other).is_some_and(|arrival| *arrival < settled)
        });
        require(passed.is_none(), "elections: in the order of their priorities", || {
            format!("{next} is next after write {zxid}, in front of {passed:?}")
        })
    }

    /// A leader has handed over to a candidate, which was the first from then on.
    pub(crate) fn handed_over(
        &self,
        oracle: &Oracle,
        from: &Leadership,
        to: &Candidate,
    ) -> Result<(), Violation> {
        let mut after = oracle.changes()[oracle.first_after(from.fencing_token())..].iter();
        let end = after.find(|it| it.kind == ChangeKind::Deleted && *it.path == *from.path());
        let Some(end) = end.map(|end| end.zxid) else { return Ok(()) };
        let first = candidates(oracle, end).into_iter().next();
        let znode = first.as_ref().and_then(|first| oracle.at(&format!("{PATH}/{first}"), end));
        let token = znode.map(|znode| znode.stat.czxid);
        require(token == to.fencing_token(), "elections: handed over to the named one", || {
            format!(
                "{to:?} was named, and {first:?} with token {token:?} is next after write {end}"
            )
        })
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

/// The candidates after a write, in their order.
fn candidates(oracle: &Oracle, zxid: Zxid) -> Vec<String> {
    let election = oracle.at(PATH, zxid);
    let mut names = election.map(|election| election.children.clone()).unwrap_or_default();
    // By such a znode a leader calls a candidate forward.
    names.retain(|name| !name.starts_with("call-"));
    names.sort_by(|one, other| order(one).cmp(&order(other)));
    names
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

    /// The largest token.
    pub(crate) fn token(&self) -> Zxid {
        self.token
    }

    pub(crate) fn last(&self) -> Option<Option<Zxid>> {
        self.last
    }
}
