//! The way of the disk's results to the node.

use std::sync::Arc;

use crate::machine::snapshot::ChunkReader;
use crate::node::io::Input;
use crate::node::stored::LogEntry;
use crate::storage::Rot;
use crate::types::znode::Zxid;

/// Receives the inputs for the node. The store's threads use it too.
#[derive(Clone)]
pub(crate) struct Reports {
    receive: Arc<dyn Fn(Input) + Send + Sync>,
}

impl Reports {
    pub(crate) fn new(receive: impl Fn(Input) + Send + Sync + 'static) -> Reports {
        Reports { receive: Arc::new(receive) }
    }

    pub(super) fn send(&self, input: Input) {
        (self.receive)(input);
    }

    /// Reports the result of a read.
    pub(super) fn entries_read(&self, from: u64, read: Result<Vec<LogEntry>, Rot>) {
        match read {
            Ok(entries) => self.send(Input::Read { from, entries }),
            Err(rot) => self.rotten(rot),
        }
    }

    pub(super) fn rotten(&self, Rot { what, below }: Rot) {
        self.send(Input::Rotten { what, below });
    }

    /// Completes and checks a state from a leader's chunks, and reports it.
    pub(super) fn build(&self, transfer: u64, reader: ChunkReader, zxid: Zxid, hash: u64) {
        let machine = reader.finish(zxid, hash).map(Box::new);
        self.send(Input::Built { transfer, machine });
    }
}
