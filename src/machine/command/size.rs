//! How many bytes a command takes.

use super::{Command, Op, OpError};
use crate::types::encoding;
use crate::types::log_form::Written;
use crate::types::znode::OpResult;

/// About as many bytes as the result of an operation takes, besides a path.
const RESULT_BYTES: usize = 44;

impl Command {
    /// About how many bytes a request with this command takes in the log.
    pub(crate) fn size(&self) -> usize {
        const OVERHEAD: usize = 40;
        let of = |op: &Op| {
            let id = if let Op::Put { order, .. } = op { order.id.len() } else { 0 };
            op.path().len() + op.content_bytes() + id + 16
        };
        OVERHEAD
            + match self {
                Command::Op(op) => of(op),
                Command::Multi(ops) => ops.iter().map(of).sum(),
                Command::Open { .. }
                | Command::Resume { .. }
                | Command::Close
                | Command::RaiseVersion { .. }
                | Command::Expire { .. } => 32,
                Command::Reap { path } => path.len(),
                Command::Configure { seats, .. } => seats
                    .iter()
                    .map(|seat| 40 + seat.member.address.len() + seat.member.zone.len())
                    .sum(),
                Command::Authenticate { ids } => {
                    ids.iter().map(|id| id.scheme.len() + id.id.len() + 2).sum()
                }
            }
    }

    /// Whether it may make the state larger, or is a user's write that other members must store.
    pub(crate) fn takes_room(&self) -> bool {
        let frees = |op: &Op| match op {
            Op::Delete { .. } | Op::DeleteTree { .. } | Op::Check { .. } => true,
            Op::Take { claims, .. } => !claims,
            _ => false,
        };
        match self {
            Command::Multi(ops) => !ops.iter().all(frees),
            Command::Op(op) => !frees(op),
            _ => false,
        }
    }

    /// The error if the command takes more bytes than this, or the results of its operations do.
    pub(crate) fn too_large(&self, limit: usize) -> Option<OpError> {
        // Most commands are small, and need not be measured: none takes more than ten times its `size`.
        if self.size() <= limit / 10 {
            return None;
        }
        let of = |op: &Op| encoding::size(op) + RESULT_BYTES;
        let bytes = match self {
            Command::Multi(ops) => ops.iter().map(of).sum(),
            single => encoding::size(single),
        };
        if bytes <= limit {
            return None;
        }
        let error = |op: Option<&Op>| {
            let path = op.map_or("/", |op| op.path()).to_owned();
            OpError::TooLarge { path, size: bytes as u64, limit: limit as u64 }
        };
        let Command::Multi(ops) = self else { return Some(error(self.ops().first())) };
        // As elsewhere, the operation that exceeds the limit fails, with the size of all.
        let mut so_far = 0;
        let index = ops.iter().position(|op| {
            so_far += of(op);
            so_far > limit
        })?;
        Some(error(ops.get(index)).in_multi(index))
    }
}

impl OpResult {
    /// How many bytes it takes, or some more.
    pub(crate) fn size(&self) -> usize {
        match self {
            // Its data are not counted one by one.
            OpResult::Taken { path, data, claim } => {
                const LENGTHS: usize = 16;
                LENGTHS + path.len() + data.len() + encoding::size(&Written(claim))
            }
            other => encoding::size(&Written(other)),
        }
    }
}
