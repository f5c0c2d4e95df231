//! The content of a data directory, for people and programs.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::copy::{self, Found, Held};
use super::{Recovery, dir_unusable, moment, time};
use crate::node::stored::Identity;
use crate::storage::{Marks, StorageError};
use crate::types::error::{Error, Result};
use crate::types::znode::Zxid;

/// The owner and the content of a data directory: [`Recovery::inspect`].
///
/// ```
/// use quorate::recovery::Recovery;
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let (file, dir) = (directory.path().join("backup"), directory.path().join("data"));
/// # quorate::testing::Cluster::new(1).node(0).backup(&file).wait()?;
/// # Recovery::new().restore(&file, &dir, "10.0.0.1:7400")?;
/// let inspection = Recovery::new().inspect(&dir)?;
/// assert_eq!(inspection.address, "10.0.0.1:7400");
/// assert_eq!((inspection.damaged, inspection.removed), (None, None));
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Inspection {
    /// The directory.
    pub dir: PathBuf,
    /// The cluster; 0 if the member has none yet.
    #[serde(serialize_with = "crate::types::serde_form::hex")]
    pub cluster: u64,
    /// The member's id.
    #[serde(serialize_with = "crate::types::serde_form::hex")]
    pub node: u64,
    /// A random number that distinguishes this directory from other directories of the same
    /// instance.
    #[serde(serialize_with = "crate::types::serde_form::hex")]
    pub incarnation: u64,
    /// The address by which its peers know it.
    pub address: String,
    /// The reason why it is no longer a member, if it was removed.
    pub removed: Option<String>,
    /// The damage found by this inspection.
    pub damaged: Option<String>,
    /// The damage that the member found at its last start. If `damaged` is `None`, all checks pass
    /// now, and it can start again.
    pub found_damaged: Option<String>,
    /// The content, if it is proven to be complete. That is possible even in a damaged directory.
    pub contents: Option<Contents>,
    /// Otherwise the longest undamaged prefix of the content. The rest is lost, and its amount is
    /// unknown.
    pub part: Option<Contents>,
}

/// The content of a member's disk: see [`Inspection`].
///
/// ```
/// use quorate::recovery::Recovery;
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let (file, dir) = (directory.path().join("backup"), directory.path().join("data"));
/// # quorate::testing::Cluster::new(1).node(0).backup(&file).wait()?;
/// # Recovery::new().restore(&file, &dir, "10.0.0.1:7400")?;
/// let inspection = Recovery::new().inspect(&dir)?;
/// let contents = inspection.contents.expect("nothing is damaged");
/// assert_eq!(contents.voters, [inspection.node]);
/// println!("{contents}");
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Contents {
    /// Raft's term.
    pub term: u64,
    /// The id of the member for which it voted in that term; 0 for none.
    #[serde(serialize_with = "crate::types::serde_form::hex")]
    pub vote: u64,
    /// The index of the last entry known to be committed.
    pub commit: u64,
    /// The index of the last entry.
    pub last_index: u64,
    /// The term of that entry.
    pub last_term: u64,
    /// The zxid of the last write up to `commit`. That write was acknowledged, or could have been.
    pub committed_zxid: Zxid,
    /// The time of that write, by the leader's clock; `None` if nothing was ever written.
    #[serde(serialize_with = "super::millis_if_any")]
    pub committed_time: Option<SystemTime>,
    /// The zxid of the last write, including writes after `commit`.
    pub zxid: Zxid,
    /// The number of znodes, as of that write.
    pub znodes: usize,
    /// The number of sessions.
    pub sessions: usize,
    /// The voters, as of the last checkpoint; during a change, those before and those after it.
    #[serde(serialize_with = "crate::types::serde_form::each_in_hex")]
    pub voters: Vec<u64>,
    /// The other members.
    #[serde(serialize_with = "crate::types::serde_form::each_in_hex")]
    pub learners: Vec<u64>,
    /// Whether the membership was changed after the last checkpoint.
    pub membership_changes: bool,
}

pub(super) fn inspect_with(dir: &Path, options: &Recovery) -> Result<Inspection> {
    match look(dir, options)? {
        (inspection, None) => Ok(inspection),
        (_, Some(error)) => Err(error),
    }
}

/// The inspection of a directory, and the error if its log is elsewhere and cannot be found.
pub(super) fn look(dir: &Path, options: &Recovery) -> Result<(Inspection, Option<Error>)> {
    if !dir.is_dir() {
        return Err(dir_unusable(dir, "there is no such directory"));
    }
    let (found, marks) = copy::read(dir, options)?;
    let absent = match &marks.log {
        None | Some(StorageError::Corrupt { .. }) => None,
        Some(error) => Some(error.clone().into_error(dir.to_owned())),
    };
    Ok((Inspection::new(dir, &found, marks), absent))
}

impl Inspection {
    pub(super) fn new(dir: &Path, found: &Found, marks: Marks) -> Inspection {
        let Identity { cluster, node, incarnation, address, .. } = found.identity.clone();
        Inspection {
            dir: dir.to_owned(),
            cluster,
            node,
            incarnation,
            address,
            removed: marks.removed,
            damaged: found.damage.clone(),
            found_damaged: marks.quarantined,
            contents: found.whole.as_ref().map(Contents::new),
            part: found.part.as_ref().map(Contents::new),
        }
    }
}

impl Contents {
    fn new(held: &Held) -> Contents {
        let Held { boot, machine, committed, last, membership_changes } = held;
        let voting = &boot.checkpoint.voting;
        let mut voters = [voting.voters.clone(), voting.voters_outgoing.clone()].concat();
        voters.sort_unstable();
        voters.dedup();
        Contents {
            term: boot.hard_state.term,
            vote: boot.hard_state.vote,
            commit: boot.hard_state.commit.max(boot.checkpoint.index),
            last_index: last.1,
            last_term: last.0,
            committed_zxid: committed.0,
            committed_time: (committed.1 > 0).then(|| time(committed.1)),
            zxid: machine.zxid(),
            znodes: machine.tree().len(),
            sessions: machine.session_count(),
            voters,
            learners: voting.learners.clone(),
            membership_changes: *membership_changes || !voting.voters_outgoing.is_empty(),
        }
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inspection { dir, cluster, node, incarnation, address, .. } = self;
        writeln!(f, "{}", dir.display())?;
        match cluster {
            0 => writeln!(f, "  cluster      none yet")?,
            cluster => writeln!(f, "  cluster      {cluster:016x}")?,
        }
        writeln!(f, "  member       {node:016x} at {address}")?;
        write!(f, "  incarnation  {incarnation:016x}")?;
        if let Some(reason) = &self.removed {
            write!(f, "\n  removed      {reason}")?;
        }
        match (&self.damaged, &self.found_damaged) {
            (Some(reason), _) => write!(f, "\n  damaged      {reason}")?,
            (None, Some(reason)) => {
                write!(f, "\n  sound        all checks pass; a start found it damaged: {reason}")?;
            }
            (None, None) => {}
        }
        if let Some(contents) = &self.contents {
            return write!(f, "\n{contents}");
        }
        match &self.part {
            Some(part) => write!(f, "\n  in part      what came after this is lost:\n{part}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  term         {}, vote for {:016x}", self.term, self.vote)?;
        let Contents { last_index, last_term, commit, .. } = self;
        writeln!(
            f,
            "  log          to index {last_index} of term {last_term}, committed to {commit}"
        )?;
        write!(f, "  writes       to zxid {}, committed to {}", self.zxid, self.committed_zxid)?;
        if let Some(time) = self.committed_time {
            write!(f, ", {}", moment(time))?;
        }
        writeln!(f, "\n  holds        {} znodes, {} sessions", self.znodes, self.sessions)?;
        let list = |members: &[u64]| -> String {
            let members: Vec<String> = members.iter().map(|node| format!("{node:016x}")).collect();
            if members.is_empty() { "none".to_owned() } else { members.join(" ") }
        };
        write!(f, "  voters       {}", list(&self.voters))?;
        if !self.learners.is_empty() {
            write!(f, "\n  learners     {}", list(&self.learners))?;
        }
        if self.membership_changes {
            write!(f, "\n               and changes of these that are not finished here")?;
        }
        Ok(())
    }
}
