//! New clusters from what is left of old ones.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::copy::{self, Temporary};
use super::inspect::Inspection;
use super::plan::Plan;
use crate::machine::snapshot::ChunkWriter;
use crate::machine::{Machine, State};
use crate::node::stored::{HardState, Identity, SnapshotMeta};
use crate::runtime::entropy;
use crate::storage::{LogStore, Replacement, SledOptions, SledStore, StorageError, identity_of};
use crate::transport::peers::check_address;
use crate::types::error::{Error, Result};
use crate::types::membership::{Genesis, Member, node_id};
use crate::types::znode::Zxid;

/// A new cluster of one member, made by [`Plan::found_anew`] or [`restore`].
///
/// ```
/// use quorate::recovery;
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let (file, dir) = (directory.path().join("backup"), directory.path().join("data"));
/// # quorate::testing::Cluster::new(1).node(0).backup(&file)?;
/// let founded = recovery::restore(&file, &dir, "10.0.0.1:7400")?;
/// assert_eq!((founded.dir, founded.before), (dir, None));
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Founded {
    /// Its data directory.
    pub dir: PathBuf,
    /// The new cluster's id.
    pub cluster: u64,
    /// The member's id.
    pub node: u64,
    /// Its address: the member is to be started with this one.
    pub address: String,
    /// The last write that it has.
    pub zxid: Zxid,
    /// Where the old files are, if there were any.
    pub before: Option<PathBuf>,
}

impl fmt::Display for Founded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "founded cluster {:016x} in {}, with member {:016x} at {} and all writes up to zxid {}",
            self.cluster,
            self.dir.display(),
            self.node,
            self.address,
            self.zxid
        )?;
        match &self.before {
            Some(before) => write!(f, "; the old files are in {}", before.display()),
            None => Ok(()),
        }
    }
}

impl Plan {
    /// Founds a new cluster from the best directory's checkpoint and its whole log, in that same
    /// directory, with its member as the only one; at another address, if one is given.
    ///
    /// It is another cluster, by its id, and another member: nothing of the old one can talk to it.
    /// The others join it later, with directories of their own that are empty. The old files are kept
    /// in a directory `before-<incarnation>` in it. Writes that were in the log and never
    /// acknowledged take effect. Sessions of the old cluster expire, unless they are resumed.
    ///
    /// All is read and checked again before anything is written, and a crash leaves the old or the
    /// new. Blocks as long as that takes.
    ///
    /// # Errors
    /// [`Error::Unrecoverable`] if the directory is not what it was when the plan was made;
    /// [`Error::InvalidPeer`]; [`Error::DataDirInUse`], [`Error::DataDirUnusable`].
    pub fn found_anew(&self, address: Option<&str>) -> Result<Founded> {
        let dir = &self.best.dir;
        let in_dir = |error: StorageError| error.into_error(dir.clone());
        if let Some(address) = address {
            check_address(address)?;
        }
        let options = SledOptions::default();
        let mut replacement = Replacement::begin(dir, options).map_err(in_dir)?;
        let copy = Temporary::new()?;
        replacement.copy_to(copy.path()).map_err(in_dir)?;
        let found = copy::read_copy(copy.path()).map_err(in_dir)?;
        let marks = replacement.marks().map_err(in_dir)?;
        let now = Inspection::new(dir, &found, marks);
        let before = found.identity;
        let (Some(held), true) = (found.whole.or(found.part), now == self.best) else {
            let reason = format!("{} has changed since it was looked at", dir.display());
            return Err(Error::Unrecoverable { reason });
        };
        let address = address.unwrap_or(&before.address);
        let identity = new_identity(before.uid, address)?;
        let zxid = held.machine.zxid();
        let (hard_state, meta, state) = start(&identity, &held.machine);
        let mut chunks = ChunkWriter::full(state);
        replacement.found(&identity, hard_state, &meta, &mut chunks).map_err(in_dir)?;
        let before = replacement.finish().map_err(in_dir)?;
        Ok(Founded::new(dir, identity, zxid, Some(before)))
    }
}

/// Founds a new cluster from a backup, in an empty directory, with one member at this address
/// (`host:port`). Others join it later.
///
/// It has nothing to do with the cluster that the backup is of: neither can talk to the other.
/// Sessions of that one expire, unless they are resumed. The backup is read to its end and checked
/// before anything is written, and a crash leaves an empty directory or the new cluster. Blocks as
/// long as that takes.
///
/// # Errors
/// As [`verify`](super::verify); [`Error::InvalidPeer`]; [`Error::DataDirMismatch`] if the directory
/// is a member's already; [`Error::DataDirInUse`], [`Error::DataDirUnusable`], [`Error::Corrupt`].
pub fn restore(file: impl AsRef<Path>, dir: impl AsRef<Path>, address: &str) -> Result<Founded> {
    let (file, dir) = (file.as_ref(), dir.as_ref());
    check_address(address)?;
    let (_, machine, _) = super::read(file)?;
    let in_dir = |error: StorageError| error.into_error(dir.to_owned());
    // Before the store is opened: a database writes even then.
    let owner = if dir.is_dir() { identity_of(dir).map_err(in_dir)? } else { None };
    if let Some(owner) = owner {
        return Err(Error::DataDirMismatch {
            dir: dir.to_owned(),
            reason: format!(
                "it is that of {}; a backup is restored into an empty directory",
                owner.address
            ),
        });
    }
    let mut store = SledStore::open(dir, SledOptions::default()).map_err(in_dir)?;
    let identity = new_identity(drawn()?, address)?;
    let (hard_state, meta, state) = start(&identity, &machine);
    store.found(&identity, hard_state, &meta, &mut ChunkWriter::full(state)).map_err(in_dir)?;
    Ok(Founded::new(dir, identity, machine.zxid(), None))
}

impl Founded {
    fn new(dir: &Path, identity: Identity, zxid: Zxid, before: Option<PathBuf>) -> Founded {
        let Identity { cluster, node, address, .. } = identity;
        Founded { dir: dir.to_owned(), cluster, node, address, zxid, before }
    }
}

fn start(identity: &Identity, machine: &Machine) -> (HardState, SnapshotMeta, State) {
    let Identity { cluster, node, uid, ref address, .. } = *identity;
    let member = Member { uid, ..Member::new(node, address.clone()) };
    Genesis { cluster, members: vec![member] }.start_from(machine.state())
}

/// The only member of a cluster that never was before.
fn new_identity(uid: u64, address: &str) -> Result<Identity> {
    let incarnation = drawn()?;
    let (cluster, node) = (drawn()?, node_id(uid, incarnation));
    Ok(Identity { cluster, node, incarnation, address: address.to_owned(), uid })
}

/// A random number that is not 0, which stands for nothing.
fn drawn() -> Result<u64> {
    Ok(entropy::number()?.max(1))
}
