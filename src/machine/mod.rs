//! skeleton
pub(crate) mod command;
pub(crate) mod snapshot;
pub(crate) mod tree;
use crate::znode::*;
use command::*;
#[derive(Debug)]
pub(crate) struct Machine;
pub(crate) struct SessionRecord;
impl SessionRecord {
    pub(crate) fn holder(&self) -> u64 {
        todo!()
    }
    pub(crate) fn owner(&self) -> NodeId {
        todo!()
    }
    pub(crate) fn last_seq(&self) -> u64 {
        todo!()
    }
    pub(crate) fn timeout_ms(&self) -> u32 {
        todo!()
    }
    pub(crate) fn result(&self, _s: u64) -> Option<&Result<Reply, OpError>> {
        todo!()
    }
}
impl Machine {
    pub(crate) fn session(&self, _s: SessionId) -> Option<&SessionRecord> {
        todo!()
    }
    pub(crate) fn sessions(&self) -> impl Iterator<Item = (SessionId, &SessionRecord)> {
        [].into_iter()
    }
    pub(crate) fn zxid(&self) -> u64 {
        todo!()
    }
    pub(crate) fn hash(&self) -> u64 {
        todo!()
    }
    pub(crate) fn tree(&self) -> tree::Tree {
        todo!()
    }
    pub(crate) fn state(&self) -> snapshot::State {
        todo!()
    }
    pub(crate) fn take_dirty(&mut self) -> snapshot::Dirty {
        todo!()
    }
    pub(crate) fn apply(&mut self, _t: u64, _b: &Batch) -> Applied {
        todo!()
    }
}
