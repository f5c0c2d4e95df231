//! Checks the tree's invariants.

use std::sync::Arc;

use super::{RESERVED, Tree};
use crate::types::quota::{self, Quota, Usage};

impl Tree {
    /// Checks the invariants that the znodes of a snapshot may break. It walks over all znodes only for the
    /// paths whose usage is counted.
    pub(in crate::machine) fn check_contents(&self) -> Result<(), String> {
        if let Some(missing) = RESERVED.iter().find(|path| self.get(path).is_none()) {
            return Err(format!("no znode {missing}"));
        }
        if self.unsound > 0 {
            let unsound = self.iter_from("/").find(|(_, znode)| !znode.is_sound());
            let path = unsound.map_or("", |(path, _)| path);
            return Err(format!("the counters or the kind of {path} do not fit its children"));
        }
        for of in &self.counted {
            let stats = self.get(&Quota::stats_path(of));
            let (stored, found) = (stats.map(|znode| Usage::parse(znode.data())), self.usage(of));
            if stored != Some(found) {
                return Err(format!("the stored usage of {of} is {stored:?}, but it is {found}"));
            }
        }
        Ok(())
    }

    /// Checks all invariants, including the hashes, and returns the number of ephemerals.
    pub(crate) fn check(&self) -> Result<usize, String> {
        self.check_contents()?;
        let (mut seen, mut ephemerals, mut due, mut hash) = (0, 0, 0, 0u64);
        let (mut restricted, mut counted, mut unsound, mut bytes, mut unclaimed) = (0, 0, 0, 0, 0);
        for (path, znode) in self.iter_from("/") {
            seen += 1;
            ephemerals += usize::from(znode.fields().owner().is_some());
            bytes += path.len() + znode.data().len();
            restricted += usize::from(znode.acl().is_some());
            if let Some(at) = znode.due() {
                due += 1;
                if !self.due.contains(&(at, Arc::from(path))) {
                    return Err(format!("{path}: it is due at {at}, but not listed as due"));
                }
            }
            if let Some(of) = quota::of_stats(path) {
                counted += 1;
                if !self.counted.contains(of) {
                    return Err(format!("{path} exists, but the usage of {of} is not counted"));
                }
            }
            hash = hash.wrapping_add(znode.hash());
            if znode.compute_hash() != znode.hash() {
                return Err(format!("{path}: its hash is not the hash of its contents"));
            }
            unsound += usize::from(!znode.is_sound());
            if let Some((item, true)) = self.item_at(path) {
                unclaimed += 1;
                if !self.unclaimed.contains(&item) {
                    return Err(format!("{path} has no claim, but is not listed as such"));
                }
            }
        }
        for (what, found, known) in [
            // The walk looks up each child in the table, and stops at one that is missing. So equal
            // numbers mean that the table and the sets of children agree.
            ("znodes are in the tree", seen, self.len()),
            ("znodes are due", due, self.due.size()),
            ("paths are counted", counted, self.counted.size()),
            ("items have no claim", unclaimed, self.unclaimed.size()),
            ("access lists are there", restricted, self.restricted),
            ("bytes are there", bytes, self.bytes as usize),
            ("znodes are not sound", unsound, self.unsound),
        ] {
            if found != known {
                return Err(format!("{found} {what}, but {known} are known"));
            }
        }
        if hash != self.hash {
            return Err("the hash is not the sum of the znodes' hashes".to_owned());
        }
        Ok(ephemerals)
    }
}
