//! Planning a recovery: which of the remaining directories is best, and what may be lost.

use std::cmp::Reverse;
use std::fmt;
use std::path::Path;
use std::time::SystemTime;

use super::inspect::{Contents, Inspection, look};
use super::{Recovery, moment};
use crate::types::error::{Error, Result};
use crate::types::start_error::StartError;
use crate::types::znode::Zxid;

/// The proposal of [`Recovery::recover`]. Nothing is changed before [`Plan::found_anew`].
///
/// ```
/// use quorate::recovery::Recovery;
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let (file, dir) = (directory.path().join("backup"), directory.path().join("data"));
/// # quorate::testing::Cluster::new(1).node(0).backup(&file).wait()?;
/// # Recovery::new().restore(&file, &dir, "10.0.0.1:7400")?;
/// let plan = Recovery::new().recover([&dir])?;
/// println!("{plan}");
/// // Once the operator agrees:
/// let founded = plan.found_anew(Some("10.0.0.2:7400"))?;
/// assert_ne!(founded.cluster, plan.best.cluster);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Plan {
    /// The directory to continue from.
    pub best: Inspection,
    /// The others, best first; those that cannot be used come last.
    pub others: Vec<Inspection>,
    /// The writes that may be lost.
    pub loss: Loss,
    #[serde(skip)]
    pub(super) options: PlanOptions,
}

/// The settings of a plan. They are no part of what it says.
#[derive(Clone, Debug, Default)]
pub(super) struct PlanOptions(pub(super) Recovery);

impl PartialEq for PlanOptions {
    fn eq(&self, _: &PlanOptions) -> bool {
        true
    }
}

impl Eq for PlanOptions {}

/// The writes that may be missing in the new cluster: see [`Plan`].
///
/// ```
/// use quorate::recovery::{Loss, Recovery};
///
/// # let directory = tempfile::tempdir().unwrap();
/// # let (file, dir) = (directory.path().join("backup"), directory.path().join("data"));
/// # quorate::testing::Cluster::new(1).node(0).backup(&file).wait()?;
/// # Recovery::new().restore(&file, &dir, "10.0.0.1:7400")?;
/// let plan = Recovery::new().recover([&dir])?;
/// // The only voter has everything that was acknowledged.
/// assert_eq!(plan.loss, Loss::Nothing);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Loss {
    /// No acknowledged write is lost: every majority of the voters includes one of the directories.
    Nothing,
    /// Writes after this one may be lost, if they were acknowledged by voters whose directories are
    /// not given. This write and all before it are preserved.
    After {
        /// The zxid of the last write that any of the directories' members knew to be committed.
        zxid: Zxid,
        /// The time of that write, by the leader's clock.
        #[serde(serialize_with = "super::millis_if_any")]
        time: Option<SystemTime>,
    },
}

/// `damaged`: as [`Recovery::recover_damaged`].
pub(super) fn recover_with<P: AsRef<Path>>(
    dirs: impl IntoIterator<Item = P>,
    damaged: bool,
    options: &Recovery,
) -> Result<Plan> {
    let mut inspections = Vec::new();
    let mut first_absent = None;
    for dir in dirs {
        let (inspection, absent) = look(dir.as_ref(), options)?;
        inspections.push(inspection);
        first_absent = first_absent.or(absent);
    }
    // Without a log, a directory is a line of the plan. If there is nothing else, its error says more.
    let is_empty = |one: &Inspection| one.contents.is_none() && one.part.is_none();
    if let Some(absent) = first_absent
        && inspections.iter().all(is_empty)
    {
        return Err(absent);
    }
    let plan = plan(inspections, damaged)?;
    Ok(Plan { options: PlanOptions(options.clone()), ..plan })
}

fn plan(mut inspections: Vec<Inspection>, damaged: bool) -> Result<Plan> {
    let taken = |one: &Inspection| usable(one).or_else(|| part(one).filter(|_| damaged)).cloned();
    let refuse = |reason: String| Err(Error::Start(StartError::Unrecoverable { reason }));
    for (place, one) in inspections.iter().enumerate() {
        if let Some(other) = inspections[..place].iter().find(|other| other.node == one.node) {
            let (one, other) = (one.dir.display(), other.dir.display());
            return refuse(format!("{other} and {one} are of the same member"));
        }
        let first = &inspections[0];
        if one.cluster != first.cluster {
            return refuse(format!(
                "{} is of cluster {:016x} and {} of cluster {:016x}",
                first.dir.display(),
                first.cluster,
                one.dir.display(),
                one.cluster
            ));
        }
    }
    inspections.sort_by_key(|one| {
        let place = taken(one).map(|contents| (contents.last_term, contents.last_index));
        // Of two directories with the same last entry, an undamaged one is better.
        Reverse((place, usable(one).is_some()))
    });
    let Some((best, contents)) =
        inspections.first().and_then(|best| Some((best.clone(), taken(best)?)))
    else {
        return refuse(match inspections.len() {
            0 => "none is given".to_owned(),
            _ if inspections.iter().any(|one| part(one).is_some()) => {
                "none is sound; a part of what a damaged one holds can be taken: `quorate recover \
                 --damaged`, or recovery::recover_damaged"
                    .to_owned()
            }
            _ => "each is damaged, that of a removed member, or that of a member which never had \
                  a cluster"
                .to_owned(),
        });
    };
    let contents = &contents;
    let seen =
        |voter: &&u64| inspections.iter().any(|one| one.node == **voter && usable(one).is_some());
    let missing = contents.voters.len() - contents.voters.iter().filter(seen).count();
    // The missing voters are no majority. If the voters had changed since the checkpoint, the best
    // log would contain the change.
    let nothing = missing < contents.voters.len() / 2 + 1 && !contents.membership_changes;
    let loss = if nothing {
        Loss::Nothing
    } else {
        // The best log contains everything that any of them knows to be committed.
        let known = inspections.iter().filter_map(taken);
        let last = known.max_by_key(|contents| contents.committed_zxid).unwrap_or(contents.clone());
        Loss::After { zxid: last.committed_zxid, time: last.committed_time }
    };
    Ok(Plan { best, others: inspections.split_off(1), loss, options: PlanOptions::default() })
}

/// The content of a directory, if a cluster may be founded from it.
fn usable(inspection: &Inspection) -> Option<&Contents> {
    inspection.contents.as_ref().filter(|contents| founds(inspection, contents))
}

/// As [`usable`], for a prefix of the content.
fn part(inspection: &Inspection) -> Option<&Contents> {
    inspection.part.as_ref().filter(|contents| founds(inspection, contents))
}

fn founds(inspection: &Inspection, contents: &Contents) -> bool {
    inspection.cluster != 0 && inspection.removed.is_none() && !contents.voters.is_empty()
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "best: {}", self.best)?;
        for other in &self.others {
            writeln!(f, "{}: {other}", if usable(other).is_some() { "other" } else { "not used" })?;
        }
        write!(f, "{}", self.loss)
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Loss::Nothing => write!(f, "nothing that was acknowledged is lost"),
            Loss::After { zxid, time } => {
                write!(
                    f,
                    "every write up to zxid {zxid} is kept; writes that were acknowledged after it"
                )?;
                if let Some(time) = time {
                    write!(f, ", {},", moment(*time))?;
                }
                write!(f, " may be lost")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(node: u64, last: (u64, u64), voters: &[u64]) -> Inspection {
        Inspection {
            dir: format!("dir-{node}").into(),
            cluster: 7,
            node,
            incarnation: node,
            address: format!("10.0.0.{node}:7400"),
            removed: None,
            damaged: None,
            found_damaged: None,
            part: None,
            contents: Some(Contents {
                term: last.0,
                vote: 0,
                commit: last.1 - 1,
                last_index: last.1,
                last_term: last.0,
                committed_zxid: last.1 - 2,
                committed_time: None,
                zxid: last.1 - 1,
                znodes: 3,
                sessions: 0,
                voters: voters.to_vec(),
                learners: Vec::new(),
                membership_changes: false,
            }),
        }
    }

    const FIVE: [u64; 5] = [1, 2, 3, 4, 5];

    #[test]
    fn a_later_term_beats_a_longer_log() {
        let plan = plan(vec![
            directory(1, (3, 90), &FIVE),
            directory(2, (4, 20), &FIVE),
            directory(3, (4, 19), &FIVE),
        ]);
        let plan = plan.unwrap();
        let order: Vec<u64> = plan.others.iter().map(|other| other.node).collect();
        assert_eq!((plan.best.node, order), (2, vec![3, 1]));
    }

    #[test]
    fn nothing_is_lost_only_if_every_majority_is_seen() {
        let loss = |nodes: &[u64]| {
            let dirs = nodes.iter().map(|node| directory(*node, (4, 20), &FIVE)).collect();
            plan(dirs).unwrap().loss
        };
        let after = Loss::After { zxid: 18, time: None };
        assert_eq!(loss(&[1]), after);
        assert_eq!(loss(&[1, 2]), after);
        assert_eq!(loss(&[1, 2, 3]), Loss::Nothing);
        // A member without a vote has no influence on what was acknowledged.
        assert_eq!(loss(&[1, 2, 9]), after);
        let mut changed = directory(1, (4, 20), &[1]);
        assert_eq!(plan(vec![changed.clone()]).unwrap().loss, Loss::Nothing);
        changed.contents.as_mut().unwrap().membership_changes = true;
        assert_eq!(plan(vec![changed]).unwrap().loss, after);
        // A damaged directory may have lost what it had acknowledged.
        let damaged = |last| {
            let whole = directory(3, last, &FIVE);
            let damaged = Some("a record".to_owned());
            Inspection { damaged, part: whole.contents.clone(), contents: None, ..whole }
        };
        let dirs =
            |last| vec![directory(1, (4, 20), &FIVE), damaged(last), directory(2, (4, 20), &FIVE)];
        let plan = plan(dirs((9, 90))).unwrap();
        assert_eq!((plan.best.node, plan.loss), (1, after));
        assert_eq!(plan.others[1].node, 3);
        // On request it is used if it has more writes, but it still does not count as complete.
        let with_damaged = super::plan(dirs((9, 90)), true).unwrap();
        let known = Loss::After { zxid: 88, time: None };
        assert_eq!((with_damaged.best.node, with_damaged.loss), (3, known));
        assert_eq!(super::plan(dirs((4, 20)), true).unwrap().best.node, 1);
    }

    fn plan(inspections: Vec<Inspection>) -> Result<Plan> {
        super::plan(inspections, false)
    }

    #[test]
    fn a_commit_index_of_a_shorter_log_is_kept() {
        let mut shorter = directory(1, (4, 19), &FIVE);
        shorter.contents.as_mut().unwrap().committed_zxid = 19;
        let plan = plan(vec![directory(2, (4, 20), &FIVE), shorter]).unwrap();
        assert_eq!((plan.best.node, plan.loss), (2, Loss::After { zxid: 19, time: None }));
    }

    #[test]
    fn directories_that_do_not_fit_are_refused() {
        let refused = |dirs: Vec<Inspection>, what: &str| {
            let error = plan(dirs).unwrap_err();
            assert!(matches!(error, Error::Start(StartError::Unrecoverable { .. })), "{error}");
            assert!(error.to_string().contains(what), "{error}");
        };
        refused(Vec::new(), "none is given");
        let good = directory(1, (4, 20), &FIVE);
        refused(vec![good.clone(), good.clone()], "dir-1 and dir-1 are of the same member");
        let foreign = Inspection { cluster: 8, ..directory(2, (4, 20), &FIVE) };
        refused(vec![good.clone(), foreign], "of cluster 0000000000000008");
        let removed = Inspection { removed: Some("gone".to_owned()), ..good.clone() };
        refused(vec![removed], "removed member");
        refused(vec![Inspection { cluster: 0, ..good }], "never had a cluster");
    }
}
