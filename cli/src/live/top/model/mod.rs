//! The content of the screen, computed from the members' replies. It uses no clock, cluster or terminal:
//! [`Clocks`], [`Update`] and [`UserAction`] are inputs, and [`ReadRequest`] is the next read that the model needs.

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
use quorate::operate::Contended;
use quorate::operate::{MemberReport, SessionInfo};

use self::changes::ChangeLog;
pub(super) use self::history::KEPT;
use self::history::MemberHistory;
pub(super) use self::listing::{Column, Listing, Mark, Row};
use self::tree::TreeView;
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
pub(super) struct Clocks {
    /// Since the program started, by a clock that never goes back.
    pub(super) since: Duration,
    /// Since the Unix epoch.
    pub(super) unix: Duration,
}

/// The present view. The names are shown as they are here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ScreenView {
    #[default]
    Members,
    Sessions,
    Locks,
    Tree,
    Log,
}

impl ScreenView {
    pub(super) const ALL: [ScreenView; 5] = [
        ScreenView::Members,
        ScreenView::Sessions,
        ScreenView::Locks,
        ScreenView::Tree,
        ScreenView::Log,
    ];

    fn beside(self, forward: bool) -> ScreenView {
        let step = if forward { 1 } else { ScreenView::ALL.len() - 1 };
        ScreenView::ALL[(self as usize + step) % ScreenView::ALL.len()]
    }
}

/// The order of the sessions.
#[derive(Clone, Copy, Debug, Default)]
enum SessionOrder {
    #[default]
    Id,
    /// The one that asks most first.
    Requests,
    /// By the last renewal, the oldest first.
    Renewal,
}

/// A znode that was read.
#[derive(Clone, Debug)]
pub(super) struct ShownZnode {
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
        read: Result<ShownZnode, String>,
    },
    /// All requested reads of the tree are done.
    TreeDone,
}

/// A read to do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReadRequest {
    Locks,
    Tree { list: Vec<String>, read: String },
}

/// An action of the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UserAction {
    Quit,
    Show(ScreenView),
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
    fn take(&mut self, read: Result<T, String>, now: Clocks) {
        match read {
            Ok(value) => {
                (self.value, self.at, self.error) = (value, Some(now.since), None);
            }
            Err(error) => self.error = Some(error),
        }
    }

    /// The age of the value, and the error of a later attempt.
    pub(super) fn condition(&self, now: Clocks) -> (Option<Duration>, Option<String>) {
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
    pub(super) view: ScreenView,
    pub(super) members: Figures<Vec<MemberReport>>,
    pub(super) sessions: Figures<Vec<SessionInfo>>,
    pub(super) locks: Figures<Vec<Contended>>,
    /// The history of each member, by its id.
    pub(super) histories: BTreeMap<String, MemberHistory>,
    pub(super) tree: TreeView,
    changes: ChangeLog,
    selections: [Selection; ScreenView::ALL.len()],
    filters: [String; ScreenView::ALL.len()],
    pub(super) is_typing: bool,
    pub(super) is_helping: bool,
    pub(super) is_over: bool,
    order: SessionOrder,
    asked: ReadsInFlight,
}

/// Whether a read is in flight, and when the next one is due.
#[derive(Debug, Default)]
struct ReadsInFlight {
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

    pub(super) fn update(&mut self, update: Update, now: Clocks) {
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
    pub(super) fn asks(&mut self, now: Clocks) -> Option<ReadRequest> {
        self.leader()?;
        match self.view {
            ScreenView::Locks if !self.asked.locks && self.asked.locks_from <= now.since => {
                self.asked.locks = true;
                Some(ReadRequest::Locks)
            }
            ScreenView::Tree if !self.asked.tree => {
                let read = self.selected(now)?.key;
                let is_known = self.tree.znode(&read).is_some();
                let is_due = self.asked.tree_from <= now.since;
                let list = self.tree.to_list(is_due);
                (is_due || !is_known || !list.is_empty()).then(|| {
                    self.asked.tree = true;
                    ReadRequest::Tree { list, read }
                })
            }
            _ => None,
        }
    }

    /// The rows of the present view, and the selected one.
    pub(super) fn listing(&self, now: Clocks) -> Listing {
        let mut listing = match self.view {
            ScreenView::Members => self.list_members(),
            ScreenView::Sessions => self.list_sessions(),
            ScreenView::Locks => self.list_locks(now),
            ScreenView::Tree => self.tree.list(self.filter()),
            ScreenView::Log => self.changes.list(self.filter()),
        };
        let Selection { key, index } = &self.selections[self.view as usize];
        let place = listing.rows.iter().position(|row| row.key == *key).unwrap_or(*index);
        listing.selected = place.min(listing.rows.len().saturating_sub(1));
        listing
    }

    pub(super) fn selected(&self, now: Clocks) -> Option<Row> {
        let mut listing = self.listing(now);
        let at = listing.selected;
        (at < listing.rows.len()).then(|| listing.rows.swap_remove(at))
    }

    pub(super) fn act(&mut self, action: UserAction, now: Clocks) {
        let view = self.view as usize;
        match action {
            UserAction::Quit => self.is_over = true,
            UserAction::Show(view) => self.view = view,
            UserAction::Beside { forward } => self.view = self.view.beside(forward),
            UserAction::First => self.select(now, |_, _| 0),
            UserAction::Last => self.select(now, |_, count| count),
            UserAction::Open | UserAction::Close if self.view != ScreenView::Tree => {}
            UserAction::Open => {
                if let Some(row) = self.selected(now) {
                    self.tree.open(&row.key);
                }
            }
            UserAction::Close => {
                let row = self.selected(now);
                if let Some(parent) = row.and_then(|row| self.tree.close(&row.key)) {
                    self.selections[view].key = parent;
                }
            }
            UserAction::Scroll(by) if self.view == ScreenView::Tree => self.tree.scroll(by),
            UserAction::Move(by) | UserAction::Scroll(by) => {
                self.select(now, |at, _| at.saturating_add_signed(by));
            }
            UserAction::Sort => {
                self.order = match self.order {
                    SessionOrder::Id => SessionOrder::Requests,
                    SessionOrder::Requests => SessionOrder::Renewal,
                    SessionOrder::Renewal => SessionOrder::Id,
                }
            }
            UserAction::Help => self.is_helping = !self.is_helping,
            UserAction::Filter => self.is_typing = true,
            UserAction::Type(letter) => {
                let filter = &mut self.filters[view];
                if filter.chars().count() < FILTER_CHARS_MAX {
                    filter.push(letter);
                }
            }
            UserAction::Erase => drop(self.filters[view].pop()),
            UserAction::Accept => self.is_typing = false,
            UserAction::Cancel if self.is_helping => self.is_helping = false,
            UserAction::Cancel => {
                self.is_typing = false;
                self.filters[view].clear();
            }
        }
    }

    fn select(&mut self, now: Clocks, to: impl FnOnce(usize, usize) -> usize) {
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
