//! The names of a znode's children, in order.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;

use rpds::RedBlackTreeSetSync;

/// A longer page is divided, unless it has a single name.
const PAGE_BYTES: usize = 512;

/// A persistent, ordered set of names. Many names share one allocation, a page, so a name takes
/// little more than its own bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Children {
    pages: RedBlackTreeSetSync<NamePage>,
    len: usize,
}

/// Consecutive names, separated by slashes, which no name contains. Pages are ordered by their first
/// names, so the length of that one is known without a search for its end.
#[derive(Clone, Debug)]
struct NamePage {
    names: Arc<str>,
    first: u32,
}

impl Children {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &str> {
        self.pages.iter().flat_map(NamePage::names)
    }

    /// The names after this one, which need not be in the set.
    pub(super) fn after<'a>(&'a self, name: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        let page = self.page_for(name);
        let (first, from) = page.map_or(("", ""), |page| (page.first(), page.divide(name).1));
        let after = if first_of(from) == name { without_first(from) } else { from };
        let names = after.split('/').filter(|name| !name.is_empty());
        let pages = self.pages.range::<str, _>((Excluded(first), Unbounded));
        names.chain(pages.flat_map(NamePage::names))
    }

    /// Does nothing if the name is in the set.
    pub(super) fn insert(&mut self, name: &str) {
        let Some(page) = self.page_for(name).cloned() else {
            self.pages.insert_mut(NamePage::of([name]));
            self.len += 1;
            return;
        };
        let (before, from) = page.divide(name);
        if first_of(from) == name {
            return;
        }
        self.len += 1;
        if before.is_empty() {
            self.pages.remove_mut(page.first());
        }
        if page.names.len() + 1 + name.len() <= PAGE_BYTES {
            self.pages.insert_mut(NamePage::of([before, name, from]));
        } else if from.is_empty() {
            // Names often grow: the page before stays full, and a new one begins.
            self.pages.insert_mut(NamePage::of([name]));
        } else {
            self.pages.insert_mut(NamePage::of([before, name]));
            self.pages.insert_mut(NamePage::of([from]));
        }
    }

    /// Inserts all of these names. Names after all those in the set fill whole pages.
    pub(super) fn insert_all(&mut self, mut names: Vec<&str>) {
        names.sort_unstable();
        names.dedup();
        let last = self.pages.last().cloned();
        let comes_after = |last: &NamePage| last.names().next_back() < names.first().copied();
        if !last.as_ref().is_none_or(comes_after) {
            return names.into_iter().for_each(|name| self.insert(name));
        }
        self.len += names.len();
        let mut page = last.map_or(String::new(), |last| last.names.to_string());
        for name in names {
            if page.len() + 1 + name.len() > PAGE_BYTES && !page.is_empty() {
                self.pages.insert_mut(NamePage::of([&page]));
                page.clear();
            }
            if !page.is_empty() {
                page.push('/');
            }
            page.push_str(name);
        }
        if !page.is_empty() {
            self.pages.insert_mut(NamePage::of([&page]));
        }
    }

    /// Does nothing if the name is not in the set.
    pub(super) fn remove(&mut self, name: &str) {
        let Some(page) = self.page_for(name).cloned() else { return };
        let (before, from) = page.divide(name);
        if first_of(from) != name {
            return;
        }
        self.len -= 1;
        let after = without_first(from);
        if before.is_empty() {
            self.pages.remove_mut(page.first());
        }
        if !(before.is_empty() && after.is_empty()) {
            self.pages.insert_mut(NamePage::of([before, after]));
        }
    }

    /// The only page that may have the name: the last one that does not begin after it, or else the first.
    fn page_for(&self, name: &str) -> Option<&NamePage> {
        // Growing names are usual, and looking at the end takes no iterator.
        let last = self.pages.last().filter(|last| last.first() <= name);
        last.or_else(|| self.pages.range::<str, _>((Unbounded, Included(name))).next_back())
            .or_else(|| self.pages.first())
    }
}

impl NamePage {
    /// Some of the parts may be empty.
    fn of<const N: usize>(parts: [&str; N]) -> NamePage {
        let mut names = String::with_capacity(parts.iter().map(|part| part.len() + 1).sum());
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            if !names.is_empty() {
                names.push('/');
            }
            names.push_str(part);
        }
        // A name is not longer than a request, whose length is a `u32`.
        let first = first_of(&names).len() as u32;
        NamePage { names: Arc::from(names), first }
    }

    fn names(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.names.split('/')
    }

    fn first(&self) -> &str {
        &self.names[..self.first as usize]
    }

    /// The names before this one, and the others.
    fn divide(&self, name: &str) -> (&str, &str) {
        let bytes = self.names.as_bytes();
        // The names that begin before `low` are smaller, and those from `high` on are not.
        let (mut low, mut high) = (0, bytes.len());
        while low < high {
            let middle = low.midpoint(high);
            let slash = bytes[low..middle].iter().rposition(|byte| *byte == b'/');
            let start = slash.map_or(low, |slash| low + slash + 1);
            let known = bytes[start..].split(|byte| *byte == b'/').next().unwrap_or_default();
            if known < name.as_bytes() {
                low = start + known.len() + 1;
            } else {
                high = start;
            }
        }
        match low {
            0 => ("", &self.names),
            end => (&self.names[..end - 1], self.names.get(end..).unwrap_or_default()),
        }
    }
}

fn first_of(names: &str) -> &str {
    names.split('/').next().unwrap_or_default()
}

fn without_first(names: &str) -> &str {
    names.split_once('/').map_or("", |(_, rest)| rest)
}

impl Borrow<str> for NamePage {
    fn borrow(&self) -> &str {
        self.first()
    }
}

impl PartialEq for NamePage {
    fn eq(&self, other: &NamePage) -> bool {
        self.first() == other.first()
    }
}

impl Eq for NamePage {}

impl PartialOrd for NamePage {
    fn partial_cmp(&self, other: &NamePage) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for NamePage {
    fn cmp(&self, other: &NamePage) -> Ordering {
        self.first().cmp(other.first())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn name() -> impl Strategy<Value = String> {
        prop_oneof![
            (0..1000u32).prop_map(|n| format!("item-{n:010}")),
            "[a-c]{1,3}",
            "[ !é.-]{1,2}",
            (100..700usize).prop_map(|len| "x".repeat(len)),
        ]
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(String),
        InsertAll(Vec<String>),
        /// Names after all others.
        Append(Vec<u32>),
        Remove(String),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            60 => name().prop_map(Step::Insert),
            1 => prop::collection::vec(name(), 0..40).prop_map(Step::InsertAll),
            1 => prop::collection::vec(any::<u32>(), 0..100).prop_map(Step::Append),
            30 => name().prop_map(Step::Remove),
        ]
    }

    proptest! {
        #[test]
        fn behaves_as_a_set(steps in prop::collection::vec(step(), 0..400), after in name()) {
            let (mut children, mut set) = (Children::default(), BTreeSet::new());
            let mut before = None;
            for (place, step) in steps.into_iter().enumerate() {
                if place == 200 {
                    before = Some((children.clone(), set.clone()));
                }
                match step {
                    Step::Insert(name) => {
                        children.insert(&name);
                        set.insert(name);
                    }
                    Step::InsertAll(names) => {
                        children.insert_all(names.iter().map(|name| &**name).collect());
                        set.extend(names);
                    }
                    Step::Append(numbers) => {
                        let names = numbers.iter().map(|n| format!("~{place:03}-{n}"));
                        let names: Vec<String> = names.collect();
                        children.insert_all(names.iter().map(|name| &**name).collect());
                        set.extend(names);
                    }
                    Step::Remove(name) => {
                        children.remove(&name);
                        set.remove(&name);
                    }
                }
            }
            for (children, set) in [(children, set)].into_iter().chain(before) {
                prop_assert_eq!(children.len(), set.len());
                prop_assert!(children.iter().eq(set.iter()));
                let late = set.iter().filter(|name| **name > after);
                prop_assert!(children.after(&after).eq(late));
            }
        }
    }

    #[test]
    fn growing_names_fill_their_pages() {
        let mut children = Children::default();
        let names: Vec<String> = (0..20_000).map(|n| format!("{n:09}")).collect();
        for name in &names[..10_000] {
            children.insert(name);
        }
        assert!(children.pages.size() < 10_000 * 10 / PAGE_BYTES + 10);
        for names in names[10_000..].chunks(700) {
            children.insert_all(names.iter().map(|name| &**name).collect());
        }
        assert!(children.iter().eq(&names));
        assert!(children.pages.size() < 20_000 * 10 / PAGE_BYTES + 10);
    }
}
