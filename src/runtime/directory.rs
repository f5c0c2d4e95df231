//! The data directory of an instance at its start: opened, created, or set aside.
//!
//! | content | result |
//! | --- | --- |
//! | nothing | a store of a node without a cluster, with a new id |
//! | a member's store | the member continues, with its current address |
//! | one marked `REMOVED` | the directory is set aside; a new member replaces it, which can only join the same cluster |
//! | a damaged one | the instance runs as a new member; the directory is set aside when a leader has admitted that member |
//! | a damaged one of an instance alone on its list | nothing, and an error |
//! | a damaged one of a node that never had a cluster | it holds no data: it is set aside |
//!
//! What is set aside stays where it is, as a former incarnation, see `storage::directory`. If `IDENTITY`
//! of a damaged directory cannot be read, the instance joins the cluster of its peers, like an instance
//! with an empty disk, but takes no part in founding a cluster.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use once_cell::sync::OnceCell;

use super::{boot, entropy};
use crate::encryption::{AtRest, KeyError};
use crate::machine::snapshot::ChunkWriter;
use crate::node::bootstrap::genesis::nothing;
use crate::node::io::Now;
use crate::node::stored::Identity;
use crate::node::{Node, NodeConfig};
use crate::storage::{
    Begin, DiskStore, FsPath, LogStore, Provisional, Replacement, StorageError, StoreOptions,
};
use crate::types::error::{Error, Result};
use crate::types::membership::Named;
use crate::types::membership::node_id;
use crate::types::start_error::StartError;

/// What to report about the data directory of a running instance.
#[derive(Debug)]
pub(crate) struct DataDirectory {
    path: FsPath,
    options: StoreOptions,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    damage: Option<String>,
    /// Each with whether its member was removed, and not damaged.
    former: Vec<(PathBuf, bool)>,
    /// Where the log is, if there is a store.
    log: Option<PathBuf>,
}

impl DataDirectory {
    /// No code panics while it holds the lock.
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn path(&self) -> &Path {
        self.path.path()
    }

    /// The damage, until the directory was set aside.
    pub(crate) fn damage(&self) -> Option<String> {
        self.known().damage.clone()
    }

    /// The directory of the log, unless there is no store yet.
    #[cfg(feature = "gateway")]
    pub(crate) fn log(&self) -> Option<PathBuf> {
        self.known().log.clone()
    }

    /// How many of those below were damaged.
    pub(crate) fn damaged_count(&self) -> u64 {
        self.known().former.iter().filter(|(_, was_removed)| !was_removed).count() as u64
    }

    /// The directories that were set aside.
    pub(crate) fn former(&self) -> Vec<PathBuf> {
        self.known().former.iter().map(|(former, _)| former.clone()).collect()
    }
}

/// A start that finds so many directories with former data logs a warning.
const FORMER_MANY: usize = 4;

/// A node that is ready to run.
pub(crate) struct Opened {
    pub(crate) store: Box<dyn LogStore>,
    pub(crate) node: Node,
    pub(crate) directory: Arc<DataDirectory>,
}

/// Opens the directory and starts its node. `log_dir`: the directory for its log, if that is to be elsewhere.
pub(crate) fn start(
    dir: &Path,
    address: &str,
    at_rest: Option<&AtRest>,
    log_dir: Option<&Path>,
    config: &NodeConfig,
    now: Now,
) -> Result<Opened> {
    PROCESS.get_or_init(std::process::id);
    check_not_forked(dir)?;
    let unused = new_identity(address)?;
    let path = FsPath::system(dir);
    let opened = store_options(at_rest, log_dir)
        .and_then(|options| start_as(unused, path, options, config, now));
    opened.map_err(|error| error.into_error(dir.to_owned()))
}

/// The settings of a store with these keys, which are read now, and with this directory for logs.
pub(crate) fn store_options(
    at_rest: Option<&AtRest>,
    log_dir: Option<&Path>,
) -> Result<StoreOptions, StorageError> {
    let keys = at_rest.map(AtRest::ring).transpose();
    let keys = keys.map_err(|KeyError(what)| StorageError::Key { what })?.map(Arc::new);
    let random = entropy::number().map_err(|error| StorageError::Io {
        what: "starting the store".to_owned(),
        reason: error.to_string(),
    })?;
    let log_dir = log_dir.map(Path::to_owned);
    Ok(StoreOptions { keys, log_dir, random, ..StoreOptions::default() })
}

/// Opens the directory, whose member gets this unused identity if it has none, and starts its node.
pub(crate) fn start_as(
    unused: Identity,
    path: FsPath,
    options: StoreOptions,
    config: &NodeConfig,
    now: Now,
) -> Result<Opened, StorageError> {
    let has_peers = config.peers.iter().any(|peer| *peer != unused.address);
    let directory = Arc::new(DataDirectory { path, options, known: Mutex::default() });
    let (store, node) = match directory.open(&unused, config, now) {
        Err(StorageError::Removed { reason }) => {
            tracing::info!(
                dir = %directory.path,
                reason,
                "the data directory is put aside, and this instance joins as a new member"
            );
            directory.rejoin(&unused, config, now)
        }
        Err(StorageError::Corrupt { what }) if has_peers => {
            directory.replace(what, unused, config, now)
        }
        other => other,
    }?;
    if directory.damage().is_none() {
        directory.known().former = directory.list_former()?;
    }
    let former = directory.former().len();
    if former >= FORMER_MANY {
        tracing::warn!(
            dir = %directory.path,
            former,
            "many directories with former data are kept: the disk may be bad, and with eight this instance does \
             not start; see docs/recovery.md"
        );
    }
    Ok(Opened { store, node, directory })
}

/// The process that has opened a store first.
static PROCESS: OnceCell<u32> = OnceCell::new();

/// Fails in a fork of a process that has opened a store. sled's threads do not run there: opening a store
/// would wait for them for ever.
pub(crate) fn check_not_forked(dir: &Path) -> Result<()> {
    let Some(first) = PROCESS.get().filter(|first| **first != std::process::id()) else {
        return Ok(());
    };
    let reason = format!(
        "this process is a fork of process {first}, which has used the store already; join here as \
         a client, or fork before the first member is started"
    );
    Err(Error::Start(StartError::DataDirUnusable { dir: dir.to_owned(), reason }))
}

/// An identity that was never used before.
fn new_identity(address: &str) -> Result<Identity> {
    let (uid, incarnation) = (entropy::number()?.max(1), entropy::number()?);
    let (node, address) = (node_id(uid, incarnation), address.to_owned());
    Ok(Identity { cluster: 0, node, incarnation, address, uid })
}

type Started = std::result::Result<(Box<dyn LogStore>, Node), StorageError>;

impl DataDirectory {
    fn list_former(&self) -> Result<Vec<(PathBuf, bool)>, StorageError> {
        let former = DiskStore::former(&self.path)?;
        let of = |former: &FsPath| (former.path().to_owned(), DiskStore::was_removed(former));
        Ok(former.iter().map(of).collect())
    }

    /// Opens the directory, which gets the unused identity if it is blank.
    fn open(&self, unused: &Identity, config: &NodeConfig, now: Now) -> Started {
        let address = &unused.address;
        let mut store = DiskStore::open(&self.path, self.options.clone())?;
        match store.identity().cloned() {
            Some(identity) if identity.address != *address => {
                tracing::info!(from = identity.address, to = address, "this instance has moved");
                store.set_identity(&Identity { address: address.clone(), ..identity })?;
            }
            Some(_) => {}
            None => {
                let (hard_state, meta, state) = nothing();
                store.found(unused, hard_state, &meta, &mut ChunkWriter::full(state))?;
                tracing::info!(node = %Named::of(unused.node), "a new data directory");
            }
        }
        self.known().log = store.log();
        let node = boot(&mut store, config.clone(), now)?;
        let (unapplied, znodes) = (node.unapplied(), node.machine().tree().len());
        tracing::info!(dir = %self.path, znodes, unapplied, "the data directory is open");
        Ok((Box::new(store), node))
    }

    /// Sets aside the directory of a member that was removed.
    fn rejoin(&self, unused: &Identity, config: &NodeConfig, now: Now) -> Started {
        let (hard_state, meta, state) = nothing();
        drop(DiskStore::found_replacement(
            &self.path,
            unused.incarnation,
            hard_state,
            &meta,
            &mut ChunkWriter::full(state),
            self.options.clone(),
        )?);
        self.open(unused, config, now)
    }

    /// Starts a new member in place of the one whose directory is damaged.
    fn replace(
        self: &Arc<DataDirectory>,
        what: String,
        unused: Identity,
        config: &NodeConfig,
        now: Now,
    ) -> Started {
        let replacement = Replacement::begin(&self.path, self.options.clone())?;
        replacement.check_room()?;
        let mut config = config.clone();
        let identity = match replacement.before() {
            Some(before) => {
                Identity { address: unused.address, ..before.with_incarnation(unused.incarnation) }
            }
            None => {
                // The directory may contain a promise that cannot be read, so this instance may only
                // join.
                config.peers.retain(|peer| *peer != unused.address);
                unused
            }
        };
        if replacement.before().is_some_and(|before| before.cluster == 0) {
            tracing::error!(
                dir = %self.path,
                what,
                "the data directory is damaged: it is put aside. This instance never had a cluster, so \
                 there is no data in it"
            );
            drop(self.put_aside(replacement, &identity)?);
            return self.open(&identity, &config, now);
        }
        tracing::error!(
            dir = %self.path,
            what,
            "the data directory is damaged: nothing in it is changed for now. This instance joins as a new \
             member, and the directory is put aside when a leader of its cluster has admitted it"
        );
        *self.known() = Known { damage: Some(what), former: self.list_former()?, log: None };
        let shared = Arc::clone(self);
        let begin: Begin = Box::new(move |identity| {
            let (mut store, before) = shared.put_aside(replacement, identity)?;
            store.load(&mut |_| Ok(()))?;
            tracing::warn!(
                before = before.as_ref().map(tracing::field::display),
                "a leader has admitted this instance as a new member: the damaged data was put aside"
            );
            let (former, log) = (shared.list_former()?, store.log());
            *shared.known() = Known { damage: None, former, log };
            Ok(Box::new(store))
        });
        let mut store = Provisional::new(identity, begin)?;
        let node = boot(&mut store, config, now)?;
        Ok((Box::new(store), node))
    }

    /// Sets the existing content aside and creates an empty store. Also returns the directory of the
    /// former content.
    fn put_aside(
        &self,
        mut replacement: Replacement,
        identity: &Identity,
    ) -> Result<(DiskStore, Option<FsPath>), StorageError> {
        let (hard_state, meta, state) = nothing();
        let chunks = &mut ChunkWriter::full(state);
        replacement.found(identity, hard_state, &meta, chunks)?;
        let before = replacement.finish()?;
        Ok((DiskStore::open(&self.path, self.options.clone())?, before))
    }
}
