//! Everything that is not deterministic: threads, clocks, random numbers, and
//! the start of a node from its disk.

pub(crate) mod clock;
pub(crate) mod disk;
pub(crate) mod driver;
pub(crate) mod entropy;
pub(crate) mod expect;
pub(crate) mod host;
pub(crate) mod session;
mod uptime;
pub(crate) mod watchdog;

use crate::machine::snapshot::ChunkReader;
use crate::node::io::Now;
use crate::node::{Node, NodeConfig};
use crate::storage::{LogStore, StorageError};
use crate::version;

/// Starts a node from what its store holds.
pub(crate) fn boot(
    store: &mut dyn LogStore,
    config: NodeConfig,
    now: Now,
) -> Result<Node, StorageError> {
    let corrupt = |what: String| StorageError::Corrupt { what };
    let Some(id) = store.identity().map(|identity| identity.node) else {
        return Err(corrupt("no identity".to_owned()));
    };
    let mut reader = ChunkReader::new();
    let newest = config.version;
    // What is only too new is not damaged, and the store must not take it for that.
    let loaded = store.load(&mut |chunk| match reader.push(chunk) {
        Err(_) if reader.version() > newest => Ok(()),
        pushed => pushed,
    });
    if reader.version() > newest {
        return Err(StorageError::Version { what: version::too_old(reader.version(), newest) });
    }
    let boot = loaded?;
    let machine = reader.finish(boot.checkpoint.zxid, boot.checkpoint.hash).map_err(corrupt)?;
    let voting = &boot.checkpoint.voting;
    if !voting.voters.contains(&id) && !voting.learners.contains(&id) {
        return Err(corrupt("the cluster's configuration is without this member".to_owned()));
    }
    Node::new(config, id, boot, machine, now).map_err(corrupt)
}
