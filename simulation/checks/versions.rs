//! Members of several versions: no member receives what it does not support (I32).

use super::membership::Membership;
use super::{Violation, require};
use crate::machine::command::{Batch, Command};
use crate::node::io::DiskOp;
use crate::node::message::PeerMessage;
use crate::simulation::clock::{Nanos, SECOND};
use crate::simulation::oracle::Outcome;
use crate::simulation::process::Process;
use crate::types::error::{Error, Result as Answered};

/// How long peers may take a process that went back to an older build for what it was. A peer
/// notices within this time.
const NOTICED: Nanos = 2 * SECOND;

/// When a leader raises the version in the log, all members support it and have reported so.
pub(crate) fn proposing(
    op: &DiskOp,
    leads_in: Option<u64>,
    processes: &[Process],
    membership: &Membership,
    now: Nanos,
) -> Result<(), Violation> {
    let DiskOp::Write { write, .. } = op else {
        return Ok(());
    };
    for entry in write.entries.iter().filter(|entry| Some(entry.term) == leads_in) {
        let Ok(batch) = Batch::decode(&entry.data) else {
            continue;
        };
        for request in batch.requests {
            let Command::RaiseVersion { version } = request.command else {
                continue;
            };
            let members = processes.iter().enumerate();
            for (place, process) in
                members.filter(|(_, process)| membership.is_member(process.member.node))
            {
                let believed = process.lowered_at.is_some_and(|at| now <= at + NOTICED);
                let can = process.epoch > 0 && process.version >= version;
                require(can || believed, "I32 raised when all can", || {
                    format!("to {version}, and node {place} can do {}", process.version)
                })?;
            }
        }
    }
    Ok(())
}

/// The receiver can decode every message, unless it went back to an older build.
pub(crate) fn sending(message: &PeerMessage, to: &Process) -> Result<(), Violation> {
    let (PeerMessage::Forward { requests } | PeerMessage::ClientForward { requests, .. }) = message
    else {
        return Ok(());
    };
    let needs = requests.iter().map(|request| request.command.version()).max().unwrap_or(0);
    let reads = needs <= to.version || to.lowered_at.is_some();
    require(reads, "I32 peers can read it", || {
        format!("a request of version {needs} to a node that can do {}", to.version)
    })
}

/// A node does not start, or has stopped, because its version is too old. It went back to an older
/// build, or the cluster has removed it and did not wait for it.
pub(crate) fn too_old(process: &Process, membership: &Membership) -> Result<(), Violation> {
    let is_waited_for = membership.is_member(process.member.node) && process.lowered_at.is_none();
    require(!is_waited_for, "I32 nobody is left behind", || {
        format!("a node that can do {} was never taken back to that", process.version)
    })
}

/// The versions in a reply that refuses a write because of the cluster's version: the required one
/// and the cluster's.
pub(crate) fn refusal<T>(result: &Answered<T>) -> Option<(u16, u16)> {
    let unsupported = |error: &Error| match error {
        Error::Unsupported { needs, cluster, .. } => Some((*needs, *cluster)),
        _ => None,
    };
    match result.as_ref().err()? {
        Error::Multi { error, .. } => unsupported(error),
        error => unsupported(error),
    }
}

/// A refusal is right. The cluster had that version at some time between the request, when the node
/// knew version `known`, and the reply. The write did nothing.
pub(crate) fn refused(
    (needs, cluster): (u16, u16),
    known: u16,
    outcome: &Outcome,
) -> Result<(), Violation> {
    let held = known <= cluster && cluster <= outcome.version && cluster < needs;
    require(held && !outcome.changes, "I32 refused for its version", || {
        format!(
            "what needs {needs} was refused as of version {cluster}, when its node knew of {known}: \
             {outcome:?}"
        )
    })
}
