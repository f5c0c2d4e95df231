//! The memory of what waits for the clients of a gateway, and the bound for all of it.
//!
//! A client's own bytes are counted by its connection. The data of a znode that several clients wait for are
//! counted once, and so is an event. A client that waits for much is disconnected when all clients together pass
//! the bound: the one that holds most goes first. (It counts as if it shared nothing.)

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The bound by default: what 16 clients need that leave as many events unread as one client may.
pub(super) const BYTES_MAX: usize = 256 << 20;
/// A client that holds less is not disconnected: that would free nothing.
pub(super) const LEAST: usize = 4 << 10;

/// The data that clients wait for, each once.
#[derive(Debug, Default)]
pub(super) struct Memory(Mutex<UseCounts>);

#[derive(Debug, Default)]
struct UseCounts {
    /// By their address, which they keep while they are here: how many use them.
    uses: BTreeMap<usize, usize>,
    bytes: usize,
}

/// Data that a client waits for.
#[derive(Debug)]
pub(super) struct SharedData {
    data: Arc<[u8]>,
    memory: Arc<Memory>,
}

impl Memory {
    pub(super) fn bytes(&self) -> usize {
        self.shared().bytes
    }

    pub(super) fn share(self: &Arc<Memory>, data: &Arc<[u8]>) -> SharedData {
        let mut shared = self.shared();
        let uses = shared.uses.entry(address(data)).or_default();
        *uses += 1;
        if *uses == 1 {
            shared.bytes += data.len();
        }
        drop(shared);
        SharedData { data: Arc::clone(data), memory: Arc::clone(self) }
    }

    fn shared(&self) -> MutexGuard<'_, UseCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn address(data: &Arc<[u8]>) -> usize {
    Arc::as_ptr(data).cast::<u8>() as usize
}

impl AsRef<[u8]> for SharedData {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Drop for SharedData {
    fn drop(&mut self) {
        let mut shared = self.memory.shared();
        let address = address(&self.data);
        if let Some(uses) = shared.uses.get_mut(&address) {
            *uses -= 1;
            if *uses == 0 {
                shared.uses.remove(&address);
                shared.bytes -= self.data.len();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn data_that_several_clients_wait_for_are_counted_once() {
        let memory = Arc::new(Memory::default());
        let (one, other): (Arc<[u8]>, Arc<[u8]>) = (vec![1; 100].into(), vec![2; 10].into());
        let first = Bytes::from_owner(memory.share(&one));
        let rest = (memory.share(&one), memory.share(&other));
        assert_eq!(memory.bytes(), 110);
        drop(first);
        assert_eq!(memory.bytes(), 110);
        drop(rest);
        assert_eq!(memory.bytes(), 0);
        assert!(memory.shared().uses.is_empty());
    }
}
