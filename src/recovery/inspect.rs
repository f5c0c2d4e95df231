//! What a data directory holds, for people and programs.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::Serialize;

use super::copy::{self, Found, Held};
use super::{dir_unusable, moment, time};
use crate::node::stored::Identity;
use crate::storage::Marks;
use crate::types::error::Result;
use crate::types::znode::Zxid;

/// Whose a data directory is and what it holds: [`inspect`].
///
/// ```
/// use quorate::recovery;
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let (file, dir) = (directory.path().join("backup"), directory.path().join("data"));
/// # quorate::testing::Cluster::new(1).node(0).backup(&file)?;
/// # recovery::restore(&file, &dir, "10.0.0.1:7400")?;
/// let inspection = recovery::inspect(&dir)?;
/// assert_eq!(inspection.address, "10.0.0.1:7400");
/// assert_eq!((inspection.damaged, inspection.removed), (None, None));
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Inspection {
    /// The directory.
    pub dir: PathBuf,
    /// The cluster; 0 if the member has none yet.
    pub cluster: u64,
    /// The member's id.
    pub node: u64,
    /// Drawn for this directory: tells it from others that the same instance had.
    pub incarnation: u64,
    /// The address that its peers know it by.
    pub address: String,
    /// Why it is no member any more, if it was removed.
    pub removed: Option<String>,
    /// What is damaged now.
    pub damaged: Option<String>,
    /// What the member found damaged when it last started. If `damaged` is `None`, all checks pass now,
    /// and it can start again.
    pub found_damaged: Option<String>,
    /// What it holds, if that is proven to be whole. A directory that is damaged may be whole in this.
    pub contents: Option<Contents>,
    /// What else it holds: as much as is as it was written, from the beginning on. What came after that
    /// is lost, and nobody knows how much it was.
    pub part: Option<Contents>,
}

/// What a member has on its disk: see [`Inspection`].
///
/// ```
/// use quorate::recovery;
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let (file, dir) = (directory.path().join("backup"), directory.path().join("data"));
/// # quorate::testing::Cluster::new(1).node(0).backup(&file)?;
/// # recovery::restore(&file, &dir, "10.0.0.1:7400")?;
/// let inspection = recovery::inspect(&dir)?;
/// let contents = inspection.contents.expect("nothing is damaged");
/// assert_eq!(contents.voters, [inspection.node]);
/// println!("{contents}");
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Contents {
    /// Raft's term.
    pub term: u64,
    /// Whom it has voted for in that term; 0 for nobody.
    pub vote: u64,
    /// The last entry that it knew to be committed.
    pub commit: u64,
    /// The index of the last entry that it has.
    pub last_index: u64,
    /// The term of that entry.
    pub last_term: u64,
    /// The last write up to `commit`: it was acknowledged, or could have been.
    pub committed_zxid: Zxid,
    /// When that was, by the leader's clock; `None` if nothing was ever written.
    pub committed_time: Option<SystemTime>,
    /// The last write of all, if those after `commit` are counted.
    pub zxid: Zxid,
    /// How many znodes there are, as of that write.
    pub znodes: usize,
    /// How many sessions.
    pub sessions: usize,
    /// The members that vote, as of the last checkpoint; in the middle of a change those of before
    /// and after it.
    pub voters: Vec<u64>,
    /// The members that do not.
    pub learners: Vec<u64>,
    /// Whether the membership was changed after the last checkpoint.
    pub membership_changes: bool,
}

/// Tells what a data directory holds. Nothing is changed there; it is locked while it is copied to
/// the system's directory for temporary files, where it is read, checked and removed again.
///
/// Blocks as long as that takes.
///
/// # Errors
/// [`Error::DataDirInUse`](crate::Error::DataDirInUse) if an instance runs with it;
/// [`Error::DataDirUnusable`](crate::Error::DataDirUnusable) if it is no data directory or cannot be
/// read; [`Error::DataDirMismatch`](crate::Error::DataDirMismatch) if it is of a version that is too
/// new; [`Error::Corrupt`](crate::Error::Corrupt) only if not even whose it is can be read.
pub fn inspect(dir: impl AsRef<Path>) -> Result<Inspection> {
    let dir = dir.as_ref();
    if !dir.is_dir() {
        return Err(dir_unusable(dir, "there is no such directory"));
    }
    let (found, marks) = copy::read(dir)?;
    Ok(Inspection::new(dir, &found, marks))
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
