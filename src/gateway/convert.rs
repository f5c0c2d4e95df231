//! Conversion of values that ZooKeeper represents differently.

use std::sync::Arc;
use std::time::Duration;

use crate::api::support::Answer;
use crate::gateway::wire::codes::{CreateFlags, ErrorCode};
use crate::gateway::wire::request;
use crate::gateway::wire::response;
use crate::types::acl::{Acl, Id, Permissions};
use crate::types::error::Error;
use crate::types::znode::{CreateMode, Stat, Zxid};

pub(super) fn zxid(zxid: Zxid) -> i64 {
    zxid.cast_signed()
}

/// A version of 32 bits, which wraps as in ZooKeeper.
fn version(version: u64) -> i32 {
    (version as u32).cast_signed()
}

fn count(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

pub(super) fn stat(stat: &Stat) -> response::Stat {
    response::Stat {
        czxid: zxid(stat.czxid),
        mzxid: zxid(stat.mzxid),
        ctime: stat.ctime.cast_signed(),
        mtime: stat.mtime.cast_signed(),
        version: version(stat.version),
        cversion: version(stat.cversion),
        aversion: version(stat.aversion),
        // ZooKeeper shows clients no owner of containers and of znodes with a time to live.
        ephemeral_owner: stat.ephemeral_owner.map_or(0, |owner| owner.0.cast_signed()),
        data_length: count(stat.data_length),
        num_children: count(stat.num_children),
        pzxid: zxid(stat.pzxid),
    }
}

/// What clients see of `/zookeeper/config`: no data, as at a standalone server.
///
/// Clients follow what it says: Curator connects to the addresses for clients that it names, and reports an
/// error if there are none. No member knows the others' gateways.
pub(super) fn without_members(mut answer: Answer) -> Answer {
    match &mut answer {
        Answer::Data { data, stat, .. } => {
            *data = Arc::default();
            stat.data_length = 0;
        }
        Answer::Exists(Some(stat)) | Answer::Children(_, Some(stat)) | Answer::Acl(_, stat) => {
            stat.data_length = 0;
        }
        _ => {}
    }
    answer
}

/// An id, as whoAmI shows it: without the hash of a password.
pub(super) fn client_info(Id { scheme, id }: Id) -> response::ClientInfo {
    let user = match scheme.as_str() {
        "digest" => id.split(':').next().unwrap_or_default().to_owned(),
        _ => id,
    };
    response::ClientInfo { scheme, user }
}

/// The version that a write demands: -1 is any. No znode has another negative version, nor the largest
/// number.
pub(super) fn expected(version: i32) -> Option<u64> {
    (version != -1).then(|| u64::try_from(version).unwrap_or(u64::MAX))
}

/// The mode of a create without a time to live.
pub(super) fn mode(flags: i32) -> Result<CreateMode, ErrorCode> {
    match CreateFlags::try_from(flags) {
        // Only createContainer makes containers.
        Ok(CreateFlags::Persistent | CreateFlags::Container) => Ok(CreateMode::Persistent),
        Ok(CreateFlags::Ephemeral) => Ok(CreateMode::Ephemeral),
        Ok(CreateFlags::PersistentSequential) => Ok(CreateMode::PersistentSequential),
        Ok(CreateFlags::EphemeralSequential) => Ok(CreateMode::EphemeralSequential),
        _ => Err(ErrorCode::BadArguments),
    }
}

pub(super) fn container_mode(flags: i32) -> Result<CreateMode, ErrorCode> {
    match CreateFlags::try_from(flags) {
        Ok(CreateFlags::Persistent | CreateFlags::Ephemeral | CreateFlags::Container) => {
            Ok(CreateMode::Container)
        }
        _ => Err(ErrorCode::BadArguments),
    }
}

pub(super) fn ttl_mode(flags: i32, ttl: i64) -> Result<CreateMode, ErrorCode> {
    let ttl = u64::try_from(ttl).map_err(|_| ErrorCode::BadArguments)?;
    let ttl = Duration::from_millis(ttl);
    match CreateFlags::try_from(flags) {
        Ok(CreateFlags::PersistentWithTtl) => Ok(CreateMode::PersistentWithTtl(ttl)),
        Ok(CreateFlags::PersistentSequentialWithTtl) => {
            Ok(CreateMode::PersistentSequentialWithTtl(ttl))
        }
        _ => Err(ErrorCode::BadArguments),
    }
}

/// An access list of a create or of a setACL.
pub(super) fn acl_asked(acl: Option<Vec<request::Acl>>) -> Result<Vec<Acl>, ErrorCode> {
    let entries = acl.filter(|entries| !entries.is_empty()).ok_or(ErrorCode::InvalidAcl)?;
    let entry = |entry: request::Acl| {
        let (scheme, id) = match (entry.scheme, entry.id) {
            (Some(scheme), Some(id)) => (scheme, id),
            // The id of the scheme `auth` is ignored.
            (Some(scheme), None) if scheme == "auth" => (scheme, String::new()),
            (Some(_), None) => return Err(ErrorCode::MarshallingError),
            (None, _) => return Err(ErrorCode::InvalidAcl),
        };
        // Unknown bits are dropped.
        let bits = (entry.perms & i32::from(Permissions::ALL.bits())) as u8;
        let permissions = Permissions::from_bits(bits).ok_or(ErrorCode::InvalidAcl)?;
        Ok(Acl::new(permissions, Id::new(scheme, id)))
    };
    entries.into_iter().map(entry).collect()
}

/// Whether everybody may do everything, as with a create without an access list.
pub(super) fn is_open(acl: &[Acl]) -> bool {
    matches!(acl, [only] if *only == Acl::open()[0])
}

pub(super) fn acl(entry: Acl) -> request::Acl {
    let Acl { permissions, id: Id { scheme, id } } = entry;
    let perms = i32::from(permissions.bits());
    request::Acl { perms, scheme: Some(scheme), id: Some(id) }
}

/// The code of an error. `None`: no reply is sent, and the connection is closed.
pub(super) fn code(error: &Error) -> Option<ErrorCode> {
    Some(match error {
        Error::NoNode { .. } => ErrorCode::NoNode,
        Error::NodeExists { .. } => ErrorCode::NodeExists,
        Error::NotEmpty { .. } => ErrorCode::NotEmpty,
        Error::BadVersion { .. } | Error::Unmet { .. } => ErrorCode::BadVersion,
        Error::NoAuth { .. } => ErrorCode::NoAuth,
        Error::QuotaExceeded { .. } => ErrorCode::QuotaExceeded,
        Error::InvalidAcl { .. } => ErrorCode::InvalidAcl,
        // Of a client's requests, only one more id is refused.
        Error::AuthFailed { .. } | Error::Refused { .. } => ErrorCode::AuthFailed,
        Error::NoChildrenForEphemerals { .. } => ErrorCode::NoChildrenForEphemerals,
        Error::InvalidSetting { .. }
        | Error::InvalidPath { .. }
        | Error::Reserved { .. }
        | Error::TooLarge { .. } => ErrorCode::BadArguments,
        Error::NoWatch { .. } => ErrorCode::NoWatcher,
        Error::Unsupported { .. } | Error::NeedsReplica { .. } => ErrorCode::Unimplemented,
        Error::SessionExpired { .. } | Error::SessionClosed { .. } => ErrorCode::SessionExpired,
        Error::Busy { .. } => ErrorCode::ThrottledOp,
        Error::Multi { error, .. } => return code(error),
        // The outcome of the write is not known here; another instance may know it.
        Error::SessionMoved { .. }
        | Error::SessionDetached { .. }
        | Error::OutcomeUnknown { .. }
        | Error::Stopped { .. } => return None,
        _ => ErrorCode::SystemError,
    })
}
