//! Whether a cluster can make decisions, and how many more failures it tolerates.

use std::fmt;

use crate::types::reason::Reason;

/// How many more failures a cluster tolerates, as an instance sees it:
/// [`Coordinator::availability`].
///
/// There are three questions, with separate answers. Should the *process* be restarted?
/// [`Status::stopped`]. Can *this instance* serve now? [`Coordinator::is_ready`]. Can *the cluster*
/// make decisions? This type.
///
/// ```
/// use quorate::{Availability, testing::Cluster};
///
/// let cluster = Cluster::new(3);
/// let coordinator = cluster.node(0);
/// coordinator.session().sync().wait()?;
/// assert_eq!(coordinator.availability(), Availability::Healthy { spare: 1 });
/// # Ok::<(), quorate::Error>(())
/// ```
///
/// [`Coordinator::availability`]: crate::Coordinator::availability
/// [`Coordinator::is_ready`]: crate::Coordinator::is_ready
/// [`Status::stopped`]: crate::operate::Status::stopped
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Availability {
    /// All voters are reachable and have room on their disks, and writes succeed.
    Healthy {
        /// How many voters may still be lost before writes end: 0 of one or two, 1 of three
        /// or four, 2 of five.
        spare: usize,
    },
    /// Writes succeed, but some voters are not reachable, or their disks are nearly full: while most voters have
    /// room, they write without the others.
    AtRisk {
        /// Which voters these are, and what the loss of another one would mean.
        reason: Reason,
    },
    /// There is a quorum, and writes are refused with [`Error::DiskLow`](crate::Error::DiskLow). Reads,
    /// sessions, locks that are held, and deletes work.
    WritesRefused {
        /// Whose disks are nearly full.
        reason: Reason,
    },
    /// Nothing can be written: there is no leader that a majority of the voters follows, or this
    /// instance cannot reach it.
    NoQuorum {
        /// What is missing.
        reason: Reason,
    },
}

impl fmt::Display for Availability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Availability::Healthy { spare: 0 } => f.write_str("working; no voter may be lost"),
            Availability::Healthy { spare } => {
                write!(f, "healthy: the cluster survives the loss of {spare} more")
            }
            Availability::AtRisk { reason } => write!(f, "at risk: {reason}"),
            Availability::WritesRefused { reason } => write!(f, "writes are refused: {reason}"),
            Availability::NoQuorum { reason } => write!(f, "no quorum: {reason}"),
        }
    }
}
