//! Changes of the cluster: the leader, silent members, the term.

use std::collections::{BTreeMap, VecDeque};

use quorate::operate::MemberReport;

use super::super::super::leadership::counts;
use super::{Clocks, Column, Listing, Mark, Row};

/// How many changes are kept.
const KEPT: usize = 1000;

#[derive(Debug, Default)]
pub(super) struct ChangeLog {
    /// The newest first, each with its number as its key.
    lines: VecDeque<Row>,
    count: u64,
    /// Whether the last attempt to read the reports has failed.
    is_cut_off: bool,
    /// The state at the last reports, if there were any.
    last: Option<Last>,
}

#[derive(Debug)]
struct Last {
    leader: Option<String>,
    term: u64,
}

impl ChangeLog {
    /// Compares the members' reports with the former ones.
    pub(super) fn note(
        &mut self,
        before: &[MemberReport],
        read: &Result<Vec<MemberReport>, String>,
        now: Clocks,
    ) {
        let members = match read {
            Ok(members) => members,
            Err(error) => {
                if !self.is_cut_off {
                    self.push(now, format!("no reports: {error}"), true);
                }
                self.is_cut_off = true;
                return;
            }
        };
        // A cluster that is being founded has no members yet.
        if members.is_empty() && self.last.is_none() {
            return;
        }
        let leader = MemberReport::leader(members).map(|leader| leader.address.clone());
        let term = members.iter().filter_map(|of| of.state.as_ref()).map(|of| of.term).max();
        let last = self.last.take();
        let term = term.or(last.as_ref().map(|last| last.term)).unwrap_or(0);
        if let Some(last) = last {
            if self.is_cut_off {
                self.push(now, "the members report again".to_owned(), false);
            }
            self.compare(before, members, now);
            if term != last.term {
                self.push(now, format!("term {} -> {term}", last.term), false);
            }
            match (&last.leader, &leader) {
                (Some(_), None) => self.push(now, "no leader".to_owned(), true),
                (old, Some(new)) if old.as_ref() != Some(new) => {
                    let old = old.as_ref().map_or_else(String::new, |old| format!(", not {old}"));
                    self.push(now, format!("{new} leads{old}"), false);
                }
                _ => {}
            }
        } else {
            let leads = leader.as_deref().unwrap_or("nobody");
            let (count, (_, silent)) = (members.len(), counts(members));
            let first = format!("{count} members, {silent} silent; {leads} leads in term {term}");
            self.push(now, first, leader.is_none() || silent > 0);
        }
        self.is_cut_off = false;
        self.last = Some(Last { leader, term });
    }

    fn compare(&mut self, before: &[MemberReport], after: &[MemberReport], now: Clocks) {
        let by_id = |members: &'_ [MemberReport]| -> BTreeMap<String, MemberReport> {
            members.iter().map(|member| (member.id.clone(), member.clone())).collect()
        };
        let (before, after) = (by_id(before), by_id(after));
        for (id, old) in before.iter().filter(|(id, _)| !after.contains_key(*id)) {
            self.push(now, format!("{} is a member no more (id {id})", old.address), true);
        }
        for (id, new) in &after {
            let address = &new.address;
            let Some(old) = before.get(id) else {
                self.push(now, format!("{address} is a member, a {} (id {id})", new.role), false);
                continue;
            };
            match (old.is_silent, new.is_silent) {
                (false, true) => self.push(now, format!("{address} is silent"), true),
                (true, false) => self.push(now, format!("{address} reports again"), false),
                _ => {}
            }
            match (old.votes(), new.votes()) {
                (false, true) => self.push(now, format!("{address} votes"), false),
                (true, false) => self.push(now, format!("{address} votes no more"), true),
                _ => {}
            }
        }
    }

    fn push(&mut self, now: Clocks, line: String, is_bad: bool) {
        self.count += 1;
        let mark = if is_bad { Mark::Bad } else { Mark::Plain };
        let row = Row { key: self.count.to_string(), cells: vec![clock(now), line], mark };
        self.lines.push_front(row);
        self.lines.truncate(KEPT);
    }

    pub(super) fn list(&self, filter: &str) -> Listing {
        let header = vec![Column::left("TIME (UTC)", 0), Column::left("CHANGE", 0)];
        let lines = self.lines.iter().filter(|row| row.cells[1].contains(filter));
        Listing::new(header, lines.cloned().collect())
    }
}

/// The time of the day.
fn clock(now: Clocks) -> String {
    let seconds = now.unix.as_secs() % 86_400;
    format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}
