//! Why something does not work yet, or not any more.

use std::fmt;

/// Why an instance or a cluster does not work yet, or not any more: for programs and for people.
///
/// The reason is made where it is known, and is the same everywhere: in [`Status::not_ready`],
/// [`Availability`], [`MemberState`], errors, and what the program `quorate` prints.
///
/// ```
/// use quorate::operate::ReasonKind;
/// use quorate::testing::Cluster;
///
/// let cluster = Cluster::new(3);
/// let coordinator = cluster.node(0);
/// cluster.isolate(0);
/// cluster.advance(std::time::Duration::from_secs(10));
/// let reason = coordinator.status().not_ready.expect("it is cut off");
/// assert_eq!(reason.kind, ReasonKind::VotersMissing);
/// println!("not ready: {reason}");
/// ```
///
/// [`Availability`]: crate::Availability
/// [`MemberState`]: crate::operate::MemberState
/// [`Status::not_ready`]: crate::operate::Status::not_ready
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Reason {
    /// What kind of reason it is.
    pub kind: ReasonKind,
    /// The reason, with the addresses that it is about, and what to do if that is known.
    pub text: String,
}

/// The kind of a [`Reason`]. A person has to act, except where it says that it passes.
///
/// ```
/// let coordinator = quorate::testing::Cluster::new(1).node(0);
/// coordinator.wait_ready(std::time::Duration::from_secs(10)).wait()?;
/// assert_eq!(coordinator.status().not_ready, None);
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReasonKind {
    /// The instance has stopped: see [`Coordinator::wait_stopped`](crate::Coordinator::wait_stopped).
    Stopped,
    /// The data directory is damaged, and no leader has admitted the instance as a new member yet.
    Damaged,
    /// There is no cluster yet: instances that are to found it are missing, or differ in something. Passes
    /// while all of them start.
    Founding,
    /// The instance is not a member yet, and no leader has admitted it. Passes if there is one.
    Joining,
    /// A peer and the instance refuse each other: they have different secrets, authorities or clusters, or
    /// one is too old. Waiting does not help.
    Refused,
    /// A peer cannot be reached. It may come back.
    Unreachable,
    /// Most of the voters cannot be reached, so nobody can lead.
    VotersMissing,
    /// There is no leader, and most of the voters are reached: they are electing one. Passes, within a
    /// second or two.
    Election,
    /// Nothing has come from the leader lately, or the member that serves this client knows none.
    NoLeader,
    /// No member serves this client.
    NoMember,
    /// The replica is not up to date. Passes.
    CatchingUp,
    /// The replica is up to date, and it is not settled yet whether the instance votes. Passes.
    Unplaced,
    /// Some voters are unreachable or store nothing, and the others are a majority.
    VotersSilent,
    /// The disks of voters are nearly full: of so many that writes are refused, or, in
    /// [`Availability::AtRisk`](crate::Availability::AtRisk), of some.
    DisksFull,
}

impl Reason {
    pub(crate) fn new(kind: ReasonKind, text: impl Into<String>) -> Reason {
        Reason { kind, text: text.into() }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
