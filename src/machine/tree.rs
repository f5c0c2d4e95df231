//! skeleton
use crate::znode::{Stat, Zxid};
use std::sync::Arc;
#[derive(Clone, Debug)]
pub(crate) struct Tree;
#[derive(Debug)]
pub(crate) struct Znode;
impl Tree {
    pub(crate) fn get(&self, _path: &str) -> Option<&Znode> {
        todo!()
    }
    pub(crate) fn zxid(&self) -> Zxid {
        todo!()
    }
    pub(crate) fn len(&self) -> usize {
        todo!()
    }
}
impl Znode {
    pub(crate) fn data(&self) -> &Arc<[u8]> {
        todo!()
    }
    pub(crate) fn stat(&self) -> Stat {
        todo!()
    }
    pub(crate) fn children(&self) -> impl Iterator<Item = &str> {
        [].into_iter()
    }
}
