//! The content of the screen, computed from the members' replies. It uses no clock, cluster or terminal:
//! [`Now`], [`Update`] and [`Action`] are inputs, and [`Ask`] is the next read that the model needs.

mod changes;
mod history;
mod listing;
mod payload;
mod tree;

#[cfg(test)]
pub(super) mod samples;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quorate::Stat;
use quorate::acl::Acl;
use quorate::operate::{MemberReport, SessionInfo};
use quorate::recipes::Contended;

use self::changes::Changes;
use self::history::History;
pub(super) use self::history::KEPT;
pub(super) use self::listing::{Column, Listing, Mark, Row};
use self::tree::Tree;
use super::super::locks::sort;

/// How old figures may be before they are read again.
const REFRESH: Duration = Duration::from_secs(1);
/// The pause between two walks over all znodes for locks, as a multiple of the duration of the last
/// walk.
const WALK_SHARE: u32 = 4;
/// The longest filter.
const FILTER_CHARS_MAX: usize = 60;

/// The time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    /// Since the program started, by a clock that never goes back.
    pub(super) since: Duration,
    /// Since the Unix epoch.
    pub(super) unix: Duration,
}

/// The present view. The names are shown as they are here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum View {
    #[default]
    Members,
    Sessions,
    Locks,
    Tree,
    Log,
}

impl View {
    pub(super) const ALL: [View; 5] =
        [View::Members, View::Sessions, View::Locks, View::Tree, View::Log];

    fn beside(self, forward: bool) -> View {
        let step = if forward { 1 } else { View::ALL.len() - 1 };
        View::ALL[(self as usize + step) % View::ALL.len()]
    }
}

/// A znode that was read.
#[derive(Clone, Debug)]
pub(super) struct Znode {
    pub(super) data: Arc<[u8]>,
    pub(super) stat: Stat,
    pub(super) acl: Vec<Acl>,
}

/// The result of a read. Errors are texts for the user.
#[derive(Debug)]
pub(super) enum Update {
    Reports(Result<Vec<MemberReport>, String>),
    Sessions(Result<Vec<SessionInfo>, String>),
    Locks {
        found: Result<Vec<Contended>, String>,
        took: Duration,
    },
    Children {
        path: String,
        listed: Result<Vec<String>, String>,
    },
    Znode {
        path: String,
        read: Result<Znode, String>,
    },
    /// All requested reads of the tree are done.
    TreeDone,
}

/// A read to do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ask {
    Locks,
    Tree { list: Vec<String>, read: String },
}

/// An action of the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Quit,
    Show(View),
    Beside { forward: bool },
    Move(isize),
    First,
    Last,
    Open,
    Close,
    Scroll(isize),
    Sort,
    Help,
    Filter,
    Type(char),
    Erase,
    Accept,
    Cancel,
}

/// Figures that are read again and again.
#[derive(Debug, Default)]
pub(super) struct Figures<T> {
    /// The last value that could be read.
    pub(super) value: T,
    /// When it was read.
    at: Option<Duration>,
    /// The error of a later attempt.
    pub(super) error: Option<String>,
}

impl<T> Figures<T> {
    fn take(&mut self, read: Result<T, String>, now: Now) {
        match read {
            Ok(value) => {
                (self.value, self.at, self.error) = (value, Some(now.since), None);
            }
            Err(error) => self.error = Some(error),
        }
    }

    /// The age of the value, and the error of a later attempt.
    pub(super) fn condition(&self, now: Now) -> (Option<Duration>, Option<String>) {
        (self.at.map(|at| now.since.saturating_sub(at)), self.error.clone())
    }
}

/// The selected row of a list. It stays selected when other rows come and go.
#[derive(Clone, Debug, Default)]
struct Selection {
    key: String,
    /// The index to select when the selected row is gone.
    index: usize,
}

#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) view: View,
    pub(super) members: Figures<Vec<MemberReport>>,
    pub(super) sessions: Figures<Vec<SessionInfo>>,
    pub(super) locks: Figures<Vec<Contended>>,
    /// The history of each member, by its id.
    pub(super) histories: BTreeMap<String, History>,
    pub(super) tree: Tree,
    changes: Changes,
    selections: [Selection; View::ALL.len()],
    filters: [String; View::ALL.len()],
    pub(super) is_typing: bool,
    pub(super) is_helping: bool,
    pub(super) is_over: bool,
    /// Whether the sessions are sorted by their last renewal, oldest first, instead of by id.
    by_renewal: bool,
    asked: Asked,
}

/// Whether a read is in flight, and when the next one is due.
#[derive(Debug, Default)]
struct Asked {
    locks: bool,
    locks_from: Duration,
    tree: bool,
    tree_from: Duration,
}

impl Model {
    /// The leader, if there is a quorum.
    pub(super) fn leader(&self) -> Option<&MemberReport> {
        // If reading the reports has failed, it is not known whether the member still leads.
        MemberReport::leader(&self.members.value).filter(|_| self.members.error.is_none())
    }

    pub(super) fn filter(&self) -> &str {
        &self.filters[self.view as usize]
    }

    /// Writes per second, computed from the zxids that the members have applied.
    pub(super) fn writes(&self) -> Option<u64> {
        let last = |member: &MemberReport| self.histories.get(&member.id)?.writes().next_back()?;
        self.members.value.iter().filter_map(last).max()
    }

    pub(super) fn update(&mut self, update: Update, now: Now) {
        match update {
            Update::Reports(read) => {
                self.changes.note(&self.members.value, &read, now);
                if let Ok(members) = &read {
                    self.histories.retain(|id, _| members.iter().any(|member| member.id == *id));
                    for member in members {
                        let history = self.histories.entry(member.id.clone()).or_default();
                        history.push(member, now.since);
                    }
                }
                self.members.take(read, now);
            }
            Update::Sessions(read) => self.sessions.take(read, now),
            Update::Locks { found, took } => {
                let sorted = found.map(|mut found| {
                    sort(&mut found);
                    found
                });
                self.locks.take(sorted, now);
                self.asked.locks = false;
                self.asked.locks_from = now.since + REFRESH.max(took * WALK_SHARE);
            }
            Update::Children { path, listed } => self.tree.take_children(&path, listed),
            Update::Znode { path, read } => self.tree.take_znode(&path, read, now),
            Update::TreeDone => {
                self.asked.tree = false;
                self.asked.tree_from = now.since + REFRESH;
            }
        }
    }

    /// The next read to do. Only the present view's data is read, and only with a quorum.
    pub(super) fn asks(&mut self, now: Now) -> Option<Ask> {
        self.leader()?;
        match self.view {
            View::Locks if !self.asked.locks && self.asked.locks_from <= now.since => {
                self.asked.locks = true;
                Some(Ask::Locks)
            }
            View::Tree if !self.asked.tree => {
                let read = self.selected(now)?.key;
                let is_known = self.tree.znode(&read).is_some();
                let is_due = self.asked.tree_from <= now.since;
                let list = self.tree.to_list(is_due);
                (is_due || !is_known || !list.is_empty()).then(|| {
                    self.asked.tree = true;
                    Ask::Tree { list, read }
                })
            }
            _ => None,
        }
    }

    /// The rows of the present view, and the selected one.
    pub(super) fn listing(&self, now: Now) -> Listing {
        let mut listing = match self.view {
            View::Members => self.list_members(),
            View::Sessions => self.list_sessions(),
            View::Locks => self.list_locks(now),
            View::Tree => self.tree.list(self.filter()),
            View::Log => self.changes.list(self.filter()),
        };
        let Selection { key, index } = &self.selections[self.view as usize];
        let place = listing.rows.iter().position(|row| row.key == *key).unwrap_or(*index);
        listing.selected = place.min(listing.rows.len().saturating_sub(1));
        listing
    }

    pub(super) fn selected(&self, now: Now) -> Option<Row> {
        let mut listing = self.listing(now);
        let at = listing.selected;
        (at < listing.rows.len()).then(|| listing.rows.swap_remove(at))
    }

    pub(super) fn act(&mut self, action: Action, now: Now) {
        let view = self.view as usize;
        match action {
            Action::Quit => self.is_over = true,
            Action::Show(view) => self.view = view,
            Action::Beside { forward } => self.view = self.view.beside(forward),
            Action::First => self.select(now, |_, _| 0),
            Action::Last => self.select(now, |_, count| count),
            Action::Open | Action::Close if self.view != View::Tree => {}
            Action::Open => {
                if let Some(row) = self.selected(now) {
                    self.tree.open(&row.key);
                }
            }
            Action::Close => {
                let row = self.selected(now);
                if let Some(parent) = row.and_then(|row| self.tree.close(&row.key)) {
                    self.selections[view].key = parent;
                }
            }
            Action::Scroll(by) if self.view == View::Tree => self.tree.scroll(by),
            Action::Move(by) | Action::Scroll(by) => {
                self.select(now, |at, _| at.saturating_add_signed(by));
            }
            Action::Sort => self.by_renewal = !self.by_renewal,
            Action::Help => self.is_helping = !self.is_helping,
            Action::Filter => self.is_typing = true,
            Action::Type(letter) => {
                let filter = &mut self.filters[view];
                if filter.chars().count() < FILTER_CHARS_MAX {
                    filter.push(letter);
                }
            }
            Action::Erase => drop(self.filters[view].pop()),
            Action::Accept => self.is_typing = false,
            Action::Cancel if self.is_helping => self.is_helping = false,
            Action::Cancel => {
                self.is_typing = false;
                self.filters[view].clear();
            }
        }
    }

    fn select(&mut self, now: Now, to: impl FnOnce(usize, usize) -> usize) {
        let mut listing = self.listing(now);
        let last = listing.rows.len().saturating_sub(1);
        let index = to(listing.selected, last).min(last);
        if index < listing.rows.len() {
            let key = listing.rows.swap_remove(index).key;
            self.selections[self.view as usize] = Selection { key, index };
            self.tree.scroll(isize::MIN);
        }
    }
}

#[cfg(test)]
mod tests;
