//! Whether a cluster can decide, and what it could still lose.

use std::fmt;

use crate::node::io;

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

impl Availability {
    pub(crate) fn of(
        seen: &io::Availability,
        address: impl Fn(u64) -> String,
        waiting_for: impl FnOnce() -> String,
    ) -> Availability {
        if !seen.has_leader {
            return Availability::NoQuorum { reason: waiting_for() };
        }
        let Some(spare) = seen.spare(|voter| seen.silent.contains(&voter)) else {
            return Availability::NoQuorum { reason: waiting_for() };
        };
        if seen.silent.is_empty() {
            return Availability::Healthy { spare };
        }
        let silent: Vec<String> = seen.silent.iter().map(|node| address(*node)).collect();
        let more = match spare {
            0 => "the loss of one more stops it".to_owned(),
            spare => format!("it survives the loss of {spare} more"),
        };
        let reason = format!(
            "{} of {} voters are not heard of or store nothing ({}); {more}",
            silent.len(),
            seen.voters.len(),
            silent.join(", ")
        );
        Availability::AtRisk { reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(voters: u64, silent: &[u64], has_leader: bool) -> Availability {
        let voters: Vec<u64> = (1..=voters).collect();
        let silent = silent.to_vec();
        let (learners, outgoing) = (vec![], vec![]);
        let seen =
            io::Availability { voters, learners, outgoing, silent, has_leader, is_told: true };
        Availability::of(&seen, |node| format!("node-{node}"), || "no leader".to_owned())
    }

    #[test]
    fn what_can_be_lost_is_told() {
        assert_eq!(of(1, &[], true), Availability::Healthy { spare: 0 });
        assert_eq!(of(5, &[], true), Availability::Healthy { spare: 2 });
        let at_risk = of(5, &[2], true).to_string();
        assert_eq!(
            at_risk,
            "at risk: 1 of 5 voters are not heard of or store nothing (node-2); it survives the loss of 1 more"
        );
        let at_risk = of(3, &[2], true).to_string();
        assert!(at_risk.ends_with("the loss of one more stops it"), "{at_risk}");
        assert_eq!(of(3, &[1, 2], true).to_string(), "no quorum: no leader");
        // While a dead voter's place is taken, it still counts with those who voted before.
        let (voters, outgoing, silent) = (vec![1, 2, 4], vec![1, 2, 3], vec![3]);
        let joint =
            io::Availability { voters, outgoing, silent, has_leader: true, ..Default::default() };
        assert_eq!(joint.spare(|voter| voter == 3), Some(0));
        assert_eq!(joint.spare(|voter| [2, 3].contains(&voter)), None);
        assert_eq!(of(3, &[], false).to_string(), "no quorum: no leader");
    }
}
