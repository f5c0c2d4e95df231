//! Whether a cluster can decide, and what it could still lose.

use std::fmt;

/// How much a cluster can still lose, as an instance sees it: [`Coordinator::availability`].
///
/// Three questions have three answers. Whether the *process* should be restarted:
/// [`Status::stopped`]. Whether *this instance* can serve now: [`Coordinator::is_ready`]. Whether *the
/// cluster* can decide: this.
///
/// ```
/// use quorate::{Availability, testing::Cluster};
///
/// let cluster = Cluster::new(3);
/// let coordinator = cluster.node(0);
/// coordinator.session().sync()?;
/// assert_eq!(coordinator.availability(), Availability::Healthy { spare: 1 });
/// # Ok::<(), quorate::Error>(())
/// ```
///
/// [`Coordinator::availability`]: crate::Coordinator::availability
/// [`Coordinator::is_ready`]: crate::Coordinator::is_ready
/// [`Status::stopped`]: crate::Status::stopped
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Availability {
    /// All voters are there.
    Healthy {
        /// How many of them could be lost before nothing can be decided: 0 of one or two, 1 of three
        /// or four, 2 of five.
        spare: usize,
    },
    /// Writes go on, but some voters are not there.
    AtRisk {
        /// Which, and what the loss of one more would mean.
        reason: String,
    },
    /// Nothing can be written: there is no leader that most of the voters follow, or this instance
    /// cannot reach it.
    NoQuorum {
        /// What is missing.
        reason: String,
    },
}

impl fmt::Display for Availability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Availability::Healthy { spare } => {
                write!(f, "healthy: the cluster survives the loss of {spare} more")
            }
            Availability::AtRisk { reason } => write!(f, "at risk: {reason}"),
            Availability::NoQuorum { reason } => write!(f, "no quorum: {reason}"),
        }
    }
}
