//! Founding a new cluster from the remains of an old one.

use std::fmt;
use std::path::{Path, PathBuf};

use super::backup::ReadBackup;
use super::calls::Recovery;
use super::copy::{self, Temporary};
use super::inspect::Inspection;
use super::plan::Plan;
use crate::addressing::peers::check_address;
use crate::machine::snapshot::ChunkWriter;
use crate::machine::{Machine, State};
use crate::node::stored::{HardState, Identity, SnapshotMeta};
use crate::runtime::entropy;
use crate::storage::{DiskStore, FsPath, LogStore, Replacement, StorageError, identity_of};
use crate::types::error::{Error, Result};
use crate::types::membership::{Genesis, Member, node_id};
use crate::types::start_error::StartError;
use crate::types::znode::Zxid;

/// A new cluster of one member, made by [`Plan::found_anew`] or [`Recovery::restore`].
///
/// ```
/// use quorate::recovery::Recovery;
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let (file, dir) = (directory.path().join("backup"), directory.path().join("data"));
/// # quorate::testing::Cluster::new(1).node(0).backup(&file).wait()?;
/// let founded = Recovery::new().restore(&file, &dir, "10.0.0.1:7400")?;
/// assert_eq!((founded.dir, founded.before), (dir, None));
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Founded {
    /// Its data directory.
    pub dir: PathBuf,
    /// The new cluster's id.
    #[serde(serialize_with = "crate::types::serde_form::hex")]
    pub cluster: u64,
    /// The member's id.
    #[serde(serialize_with = "crate::types::serde_form::hex")]
    pub node: u64,
    /// The member's address: start it with this one.
    pub address: String,
    /// The zxid of its last write.
    pub zxid: Zxid,
    /// The directory of the old files, if there were any.
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
    /// Founds a new cluster of one member in the best directory, from its checkpoint and its whole
    /// log. The member has the former address, or `address` if that is given.
    ///
    /// The cluster and the member have new ids, so members of the old cluster cannot connect to it.
    /// Further members join later, with empty directories. The old files stay where they
    /// are, as a former incarnation. Writes in the log that were never acknowledged
    /// take effect. Sessions of the old cluster expire, unless they are resumed.
    ///
    /// Everything is read and checked again before anything is written, and a crash leaves the old
    /// or the new state. Blocks until it is done.
    ///
    /// # Errors
    /// [`StartError::Unrecoverable`] if the directory has changed since the plan was made;
    /// [`StartError::InvalidPeer`]; [`StartError::DataDirInUse`], [`StartError::DataDirUnusable`].
    pub fn found_anew(&self, address: Option<&str>) -> Result<Founded> {
        let dir = &self.best.dir;
        let in_dir = |error: StorageError| error.into_error(dir.clone());
        if let Some(address) = address {
            check_address(address)?;
        }
        let options = self.options.0.store().map_err(in_dir)?;
        let mut replacement =
            Replacement::begin(&FsPath::system(dir), options.clone()).map_err(in_dir)?;
        let copy = Temporary::new()?;
        let copied = FsPath::system(copy.path());
        replacement.copy_to(&copied).map_err(in_dir)?;
        let marks = replacement.marks().map_err(in_dir)?;
        let found = copy::read_copy(&copied, &options, &marks).map_err(in_dir)?;
        let now = Inspection::new(dir, &found, marks);
        let before = found.identity;
        let (Some(mut held), true) = (found.whole.or(found.part), now == self.best) else {
            let reason = format!("{} has changed since it was looked at", dir.display());
            return Err(Error::Start(StartError::Unrecoverable { reason }));
        };
        let address = address.unwrap_or(&before.address);
        let identity = new_identity(before.uid, address)?;
        self.options.0.set_time(&mut held.machine);
        let zxid = held.machine.zxid();
        let (hard_state, meta, state) = start(&identity, &held.machine);
        let mut chunks = ChunkWriter::full(state);
        replacement.found(&identity, hard_state, &meta, &mut chunks).map_err(in_dir)?;
        let founded = replacement.dir().path().to_owned();
        let before = replacement.finish().map_err(in_dir)?;
        Ok(Founded::new(&founded, identity, zxid, before.map(|before| before.path().to_owned())))
    }
}

pub(super) fn restore_with(
    file: &Path,
    dir: &Path,
    address: &str,
    options: &Recovery,
) -> Result<Founded> {
    check_address(address)?;
    let ReadBackup { mut machine, .. } = super::read(file, options.at_rest.as_ref())?;
    options.set_time(&mut machine);
    let in_dir = |error: StorageError| error.into_error(dir.to_owned());
    // Checked before the store is opened, since opening a database writes to it.
    let place = FsPath::system(dir);
    let owner = if dir.is_dir() { identity_of(&place).map_err(in_dir)? } else { None };
    if let Some(owner) = owner {
        return Err(Error::Start(StartError::DataDirMismatch {
            dir: dir.to_owned(),
            reason: format!(
                "it is that of {}; a backup is restored into an empty directory",
                owner.address
            ),
        }));
    }
    let options = options.store().map_err(in_dir)?;
    let mut store = DiskStore::open(&place, options).map_err(in_dir)?;
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

/// The identity of the only member of a new cluster.
fn new_identity(uid: u64, address: &str) -> Result<Identity> {
    let incarnation = drawn()?;
    let (cluster, node) = (drawn()?, node_id(uid, incarnation));
    Ok(Identity { cluster, node, incarnation, address: address.to_owned(), uid })
}

/// Returns a random number other than 0, which would mean "none".
fn drawn() -> Result<u64> {
    Ok(entropy::number()?.max(1))
}
