//! Checks the tree's invariants.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::{Fields, RESERVED, Tree};
use crate::types::quota::Usage;
use crate::types::{path, quota};

impl Tree {
    /// Checks the invariants, including the hashes, and returns the number of ephemerals.
    pub(in crate::machine) fn check(&self) -> Result<usize, String> {
        if let Some(missing) = RESERVED.iter().find(|path| self.get(path).is_none()) {
            return Err(format!("no znode {missing}"));
        }
        let (mut seen, mut ephemerals, mut due, mut hash) = (0, 0, 0, 0u64);
        let (mut restricted, mut counted) = (0, 0);
        for (path, znode) in self.iter_from("/") {
            seen += 1;
            ephemerals += usize::from(znode.fields.owner().is_some());
            restricted += usize::from(znode.acl.is_some());
            if let Some(at) = znode.due() {
                due += 1;
                if !self.due.contains(&(at, Arc::from(path))) {
                    return Err(format!("{path}: it is due at {at}, and nobody knows"));
                }
            }
            if let Some(of) = quota::of_stats(path) {
                counted += 1;
                if !self.counted.contains(of) {
                    return Err(format!("{path} is there, and nobody counts {of}"));
                }
                let (told, found) = (Usage::parse(&znode.data), self.usage(of));
                if told != found {
                    return Err(format!("{path} tells {told}, and there is {found}"));
                }
            }
            hash = hash.wrapping_add(znode.hash);
            if xxh3_64(&znode.data) != znode.data_hash || znode.compute_hash(path) != znode.hash {
                return Err(format!("{path}: its hash is not the hash of its contents"));
            }
            if znode.fields.owner().is_some() && znode.has_children() {
                return Err(format!("{path}: an ephemeral with children"));
            }
            // The children that the tree starts with were never counted.
            let genesis = RESERVED.iter().filter(|child| path::parent(child) == Some(path));
            let children = znode.children.size().saturating_sub(genesis.count()) as u64;
            let Fields { creates, cversion, .. } = znode.fields;
            if cversion.wrapping_add(children) != creates.wrapping_mul(2) {
                return Err(format!(
                    "{path}: {creates} creates, {children} children, but cversion {cversion}"
                ));
            }
        }
        // The walk looks up each child in the map, and stops at one that is missing. So equal
        // numbers mean that the map and the sets of children agree.
        if seen != self.len() {
            return Err(format!("{seen} znodes in the tree, but {} in the map", self.len()));
        }
        if due != self.due.size() {
            return Err(format!("{due} znodes are due, but {} are known", self.due.size()));
        }
        if counted != self.counted.size() {
            let known = self.counted.size();
            return Err(format!("{counted} paths are counted, but {known} are known"));
        }
        if restricted != self.restricted {
            let known = self.restricted;
            return Err(format!("{restricted} access lists, but {known} are known"));
        }
        if hash != self.hash {
            return Err("the hash is not the sum of the znodes' hashes".to_owned());
        }
        Ok(ephemerals)
    }
}
