//! Partitions as an operator sees them, who knows the path and not the settings.

use super::member::PartitionMember;
use super::settings::Settings;
use super::{MEMBERS, Partitions};
use crate::api::session::Session;
use crate::recipes::errors::if_exists;
use crate::runtime::pending::Pending;
use crate::types::error::{Error, Result};
use crate::types::path;
use crate::types::znode::SessionId;

/// The [`Partitions`] at a path, at one moment: see [`partitions_status`].
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct PartitionsStatus {
    /// The path.
    pub path: String,
    /// The members, by name.
    pub members: Vec<PartitionMemberStatus>,
    /// The partitions, by number.
    pub partitions: Vec<PartitionStatus>,
}

/// A member in [`PartitionsStatus`].
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct PartitionMemberStatus {
    /// Its name.
    pub name: String,
    /// Its weight. It is 0 while it leaves.
    pub weight: u32,
    /// Its zone; empty if it has none.
    pub zone: String,
    /// Its session; `None` if somebody has created the znode by hand.
    pub session: Option<SessionId>,
    /// When it joined: milliseconds since the Unix epoch, in the log's time.
    pub since: u64,
    /// Since when it [is silent](PartitionMember::is_silent), as `since`; `None` if it is not.
    pub silent_since: Option<u64>,
}

/// A partition in [`PartitionsStatus`].
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct PartitionStatus {
    /// Its name, or its number as text.
    pub name: String,
    /// The member for which it is planned.
    pub planned: Option<String>,
    /// The member that owns it. `None`: it is an orphan.
    pub owner: Option<String>,
    /// Since when the owner has it: milliseconds since the Unix epoch, in the log's time.
    pub since: Option<u64>,
}

impl PartitionStatus {
    /// Whether its owner is to hand it over to another member, or to nobody.
    pub fn is_draining(&self) -> bool {
        self.owner.is_some() && self.owner != self.planned
    }
}

/// Returns who the members of the [`Partitions`] at a path are and who owns what, as this replica has it at one
/// moment. Needs no settings.
///
/// # Errors
/// [`Error::NoNode`] if there is no znode at the path; [`Error::InvalidData`] if there are no partitions, or somebody else
/// has written among them; the errors of a session that is over; [`Error::NoAuth`].
///
/// ```
/// use quorate::operate::partitions_status;
/// use quorate::recipes::Partitions;
///
/// let session = quorate::testing::Cluster::new(1).node(0).session();
/// let mut share = Partitions::new(&session, "/mails", 2)?.join("host-0").wait()?;
/// let _partition = share.take().wait()?;
/// let status = partitions_status(&session, "/mails").wait()?;
/// assert_eq!((status.members[0].name.as_str(), status.members[0].silent_since), ("host-0", None));
/// let partition = &status.partitions[0];
/// assert_eq!((partition.owner.as_deref(), partition.is_draining()), (Some("host-0"), false));
/// # Ok::<(), quorate::Error>(())
/// ```
pub fn partitions_status<'a>(session: &'a Session, path: &'a str) -> Pending<'a, PartitionsStatus> {
    session.steps("partitions_status", path, reading(session, path))
}

async fn reading(session: &Session, path: &str) -> Result<PartitionsStatus> {
    path::validate(path)?;
    let snapshot = session.snapshot_of(path).await?;
    let (data, _) = snapshot.get(path)?;
    let settings = Settings::decoded(path, &data).ok_or_else(|| Error::InvalidData {
        path: path.to_owned(),
        reason: "it has no settings of partitions".to_owned(),
    })?;
    let of = Partitions::of(session, path, settings)?;
    let plan = of.parse_plan(&snapshot.get(&of.part(super::PLAN))?.0)?;
    let present = of.group.members_in(&snapshot)?;
    let mut members = Vec::new();
    for ((name, member), stored) in present.iter().zip(of.parse_members(&present)?) {
        let stat = snapshot.exists(&path::join(&of.part(MEMBERS), name))?;
        let PartitionMember { name, weight, zone, is_silent } = stored.member;
        members.push(PartitionMemberStatus {
            name,
            weight,
            zone,
            session: member.session,
            since: stat.map_or(0, |stat| stat.ctime),
            silent_since: stat.filter(|_| is_silent).map(|stat| stat.mtime),
        });
    }
    let partition = |number| {
        let owner = if_exists(snapshot.get(&of.owner_path(number)))?;
        let name = |data: &[u8]| String::from_utf8_lossy(data).into_owned();
        Ok(PartitionStatus {
            name: of.settings.name_of(number),
            planned: plan.member_of(number).map(str::to_owned),
            since: owner.as_ref().map(|(_, stat)| stat.ctime),
            owner: owner.map(|(data, _)| name(&data)),
        })
    };
    let partitions = (0..plan.partitions()).map(partition).collect::<Result<_>>()?;
    Ok(PartitionsStatus { path: path.to_owned(), members, partitions })
}
