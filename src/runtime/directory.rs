//! The data directory of an instance, at its start: opened, made, or begun anew.
//!
//! | what is found | what becomes of it |
//! | --- | --- |
//! | nothing | a store of a node without a cluster, with an id that was never there before |
//! | a member's store | it goes on, under whatever address it has now |
//! | one marked `REMOVED` | it is begun anew: another member, which can only join the same cluster |
//! | one that is damaged | the same, if there are peers that may have its data; else an error |
//!
//! What is begun anew is put aside in the directory, see `storage::anew`.

use std::path::Path;
use std::sync::OnceLock;

use super::{boot, entropy};
use crate::error::{Error, Result};
use crate::machine::snapshot::ChunkWriter;
use crate::membership::{node_id, nothing};
use crate::node::io::Now;
use crate::node::{Node, NodeConfig};
use crate::storage::{Identity, LogStore, SledOptions, SledStore, StorageError};

/// Opens the directory and starts the node that it is of.
pub(crate) fn start(
    dir: &Path,
    address: &str,
    config: &NodeConfig,
    now: Now,
) -> Result<(SledStore, Node)> {
    check_not_forked(dir)?;
    let in_dir = |error: StorageError| error.into_error(dir.to_owned());
    let has_peers = config.peers.iter().any(|peer| peer != address);
    let opened = match open(dir, address, config, now) {
        Err(Failure::Store(StorageError::Removed { reason })) => {
            tracing::info!(dir = %dir.display(), reason, "beginning the data directory anew");
            anew(dir, address, config, now)
        }
        Err(Failure::Store(StorageError::Corrupt { what })) if has_peers => {
            tracing::error!(
                dir = %dir.display(),
                what,
                "the data directory is damaged: it is put aside, and this instance joins as a new \
                 member in the place of the one that it was"
            );
            match anew(dir, address, config, now) {
                // Not even whose it was can be told.
                Err(Failure::Store(StorageError::Corrupt { .. })) => {
                    Err(Failure::Store(StorageError::Corrupt { what }))
                }
                other => other,
            }
        }
        other => other,
    };
    opened.map_err(|failure| match failure {
        Failure::Store(error) => in_dir(error),
        Failure::Other(error) => error,
    })
}

/// sled has threads for the whole process, which do not run in a fork: opening a store there would
/// wait for them for ever.
fn check_not_forked(dir: &Path) -> Result<()> {
    static PROCESS: OnceLock<u32> = OnceLock::new();
    let first = *PROCESS.get_or_init(std::process::id);
    if first == std::process::id() {
        return Ok(());
    }
    let reason = format!(
        "this process is a fork of process {first}, which has used the store already; join here as \
         a client, or fork before the first member is started"
    );
    Err(Error::DataDirUnusable { dir: dir.to_owned(), reason })
}

enum Failure {
    Store(StorageError),
    Other(Error),
}

impl From<StorageError> for Failure {
    fn from(error: StorageError) -> Failure {
        Failure::Store(error)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Other(error)
    }
}

fn open(
    dir: &Path,
    address: &str,
    config: &NodeConfig,
    now: Now,
) -> std::result::Result<(SledStore, Node), Failure> {
    let mut store = SledStore::open(dir, SledOptions::default())?;
    match store.identity().cloned() {
        Some(identity) if identity.address != address => {
            tracing::info!(from = identity.address, to = address, "this instance has moved");
            store.set_identity(&Identity { address: address.to_owned(), ..identity })?;
        }
        Some(_) => {}
        None => {
            let (uid, incarnation) = (entropy::number()?.max(1), entropy::number()?);
            let node = node_id(uid, incarnation);
            let address = address.to_owned();
            let identity = Identity { cluster: 0, node, incarnation, address, uid };
            let (hard_state, meta, state) = nothing();
            store.found(&identity, hard_state, &meta, &mut ChunkWriter::full(state))?;
            tracing::info!(node, "a new data directory");
        }
    }
    let node = boot(&mut store, config.clone(), now)?;
    Ok((store, node))
}

fn anew(
    dir: &Path,
    address: &str,
    config: &NodeConfig,
    now: Now,
) -> std::result::Result<(SledStore, Node), Failure> {
    let (hard_state, meta, state) = nothing();
    let incarnation = entropy::number()?;
    let chunks = &mut ChunkWriter::full(state);
    let options = SledOptions::default();
    drop(SledStore::begin_anew(dir, options, incarnation, hard_state, &meta, chunks)?);
    open(dir, address, config, now)
}
