//! The open znodes, and the selected one.

use std::collections::BTreeMap;

use super::super::super::join;
use super::{Clocks, Column, Figures, Listing, Mark, Row, ShownZnode, payload};

/// How many lists of children are read at a time.
const LISTS_MAX: usize = 64;
/// A longer list is read again only when it is opened again.
const REFRESHED_MAX: usize = 1000;

#[derive(Debug, Default)]
struct OpenZnode {
    is_open: bool,
    /// `None` until the children were read.
    children: Option<Vec<String>>,
    error: Option<String>,
}

#[derive(Debug)]
pub(in super::super) struct TreeView {
    /// The open znodes, by path.
    nodes: BTreeMap<String, OpenZnode>,
    read: String,
    znode: Figures<Option<ShownZnode>>,
    /// The type of the data, and its lines.
    pub(in super::super) data: (&'static str, Vec<String>),
    /// How many lines of the data are scrolled out at the top.
    pub(in super::super) scrolled: usize,
}

impl Default for TreeView {
    fn default() -> TreeView {
        let root = OpenZnode { is_open: true, ..OpenZnode::default() };
        TreeView {
            nodes: BTreeMap::from([("/".to_owned(), root)]),
            read: String::new(),
            znode: Figures::default(),
            data: ("", Vec::new()),
            scrolled: 0,
        }
    }
}

impl TreeView {
    /// The data of this znode, if it was read.
    pub(in super::super) fn znode(&self, path: &str) -> Option<&Figures<Option<ShownZnode>>> {
        (self.read == path).then_some(&self.znode)
    }

    pub(super) fn take_znode(&mut self, path: &str, read: Result<ShownZnode, String>, now: Clocks) {
        if self.read != path {
            (self.read, self.znode) = (path.to_owned(), Figures::default());
            self.data = ("", Vec::new());
        }
        if let Ok(znode) = &read {
            self.data = payload::lines(&znode.data);
            self.scroll(0);
        }
        self.znode.take(read.map(Some), now);
    }

    pub(super) fn take_children(&mut self, path: &str, listed: Result<Vec<String>, String>) {
        let Some(node) = self.nodes.get_mut(path) else { return };
        let children = match listed {
            Ok(mut children) => {
                children.sort_unstable();
                node.error = None;
                children
            }
            Err(error) => {
                node.error = Some(error);
                Vec::new()
            }
        };
        // A deleted znode is closed, with all below it.
        let below = join(path, "");
        self.nodes.retain(|other, _| {
            let rest = other.strip_prefix(&below).filter(|rest| !rest.is_empty());
            rest.is_none_or(|rest| {
                let name = rest.split('/').next().unwrap_or(rest);
                children.binary_search_by(|child| child.as_str().cmp(name)).is_ok()
            })
        });
        if let Some(node) = self.nodes.get_mut(path) {
            node.children = Some(children);
        }
    }

    /// The znodes whose children are to be read: newly opened ones and, if a refresh is due, all open ones.
    pub(super) fn to_list(&self, is_due: bool) -> Vec<String> {
        let wanted = self.nodes.iter().filter(|(_, node)| match &node.children {
            None => node.is_open,
            Some(children) => is_due && node.is_open && children.len() <= REFRESHED_MAX,
        });
        wanted.map(|(path, _)| path.clone()).take(LISTS_MAX).collect()
    }

    pub(super) fn open(&mut self, path: &str) {
        let node = self.nodes.entry(path.to_owned()).or_default();
        if !node.is_open {
            *node = OpenZnode { is_open: true, ..OpenZnode::default() };
        }
    }

    /// Closes a znode. If it is closed already, returns its parent, which is to be selected.
    pub(super) fn close(&mut self, path: &str) -> Option<String> {
        match self.nodes.get_mut(path).filter(|node| node.is_open) {
            Some(node) => {
                node.is_open = false;
                None
            }
            None => {
                let (parent, _) = path.rsplit_once('/')?;
                Some(if parent.is_empty() { "/" } else { parent }.to_owned())
            }
        }
    }

    pub(super) fn scroll(&mut self, by: isize) {
        let last = self.data.1.len().saturating_sub(1);
        self.scrolled = self.scrolled.saturating_add_signed(by).min(last);
    }

    pub(super) fn list(&self, filter: &str) -> Listing {
        let mut rows = Vec::new();
        // The stack's last element is the next one.
        let mut rest = vec![("/".to_owned(), 0)];
        while let Some((path, depth)) = rest.pop() {
            let node = self.nodes.get(&path).filter(|node| node.is_open);
            let name = path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("/");
            let mut cell = "  ".repeat(depth);
            cell.push_str(match node {
                Some(_) => "- ",
                None => "+ ",
            });
            cell.push_str(name);
            let mut mark = Mark::Plain;
            match node {
                Some(OpenZnode { error: Some(error), .. }) => {
                    mark = Mark::Bad;
                    cell.push_str(&format!("  ({error})"));
                }
                Some(OpenZnode { children: None, .. }) => cell.push_str("  ..."),
                _ => {}
            }
            let children = node.and_then(|node| node.children.as_deref()).unwrap_or_default();
            rest.extend(children.iter().rev().map(|name| (join(&path, name), depth + 1)));
            rows.push((depth, Row { key: path, cells: vec![cell], mark }));
        }
        // The lines that fit, and the number of lines above them.
        let mut shown = Vec::new();
        let mut wanted = 0;
        for (depth, row) in rows.into_iter().rev() {
            if row.key.contains(filter) || depth < wanted {
                wanted = depth;
                shown.push(row);
            }
        }
        shown.reverse();
        Listing::new(vec![Column::left("ZNODE", 0)], shown)
    }
}
