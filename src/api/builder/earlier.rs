//! The members that this process has started, to explain what is in the way of another one, and to wait for it.
//!
//! A child process that was forked while a member ran has copies of its socket and of the lock of its data
//! directory. They stay in use when the member is closed, until the child ends or runs a program of its
//! own. The system's errors speak of another process, and its user would look for a stranger.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::addressing::names::LookUps;
use crate::addressing::peers::Peers;
use crate::runtime::shared::NodeShared;
use crate::types::error::Error;
use crate::types::start_error::StartError;

static MEMBERS: Mutex<Vec<Earlier>> = Mutex::new(Vec::new());

/// A member of this process, now or before.
struct Earlier {
    address: String,
    dir: PathBuf,
    node: Weak<NodeShared>,
}

impl Earlier {
    fn runs(&self) -> bool {
        self.node.upgrade().is_some_and(|node| node.end.reason().is_none())
    }

    /// Who uses what this member uses, or has used.
    fn user(&self) -> &'static str {
        match self.runs() {
            true => "another coordinator of this process",
            false => {
                "another process, perhaps a child that this process has forked while it was a member: \
                 such a child keeps the member's socket and data directory until it ends or runs a \
                 program of its own"
            }
        }
    }
}

/// Notes a member that was started.
pub(super) fn note(address: &str, dir: &Path, node: &Arc<NodeShared>) {
    let (address, dir, node) = (address.to_owned(), dir.to_owned(), Arc::downgrade(node));
    let mut members = MEMBERS.lock().unwrap_or_else(PoisonError::into_inner);
    members.retain(|member| member.address != address && member.dir != dir);
    members.push(Earlier { address, dir, node });
}

/// Whether a member of this process that does not run any more had this address.
pub(super) fn was_here(address: &str) -> bool {
    let members = MEMBERS.lock().unwrap_or_else(PoisonError::into_inner);
    members.iter().any(|member| member.address == address && !member.runs())
}

/// The error of a member that cannot listen, with the reason if this process knows it.
pub(super) fn explain_address(error: Error, peers: &Peers, names: &LookUps) -> Error {
    let is_in_use = |address: &str| match names.get(address) {
        Some(Ok(found)) => TcpListener::bind(found.as_slice())
            .is_err_and(|error| error.kind() == ErrorKind::AddrInUse),
        Some(Err(_)) | None => false,
    };
    let is_taken = |address: &str| match &error {
        Error::Start(StartError::NotAPeer { .. }) => peers.addresses().any(|peer| peer == address),
        Error::Start(StartError::CannotListen { address: taken, .. }) => taken == address,
        _ => false,
    };
    let is_taken = |address: &str| is_taken(address) && is_in_use(address);
    let members = MEMBERS.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(member) = members.iter().find(|member| is_taken(&member.address)) else {
        return error;
    };
    let (address, user) = (member.address.clone(), member.user());
    match error {
        Error::Start(StartError::NotAPeer { peers, .. }) => Error::Start(StartError::NotAPeer {
            peers,
            detail: format!(" ({address} is in use by {user})"),
        }),
        _ => Error::Start(StartError::CannotListen {
            address,
            reason: format!("it is in use by {user}"),
        }),
    }
}

/// The error of a member that cannot open its directory, with the reason if this process knows it.
pub(super) fn explain_directory(error: Error) -> Error {
    let members = MEMBERS.lock().unwrap_or_else(PoisonError::into_inner);
    match error {
        Error::Start(StartError::DataDirInUse { dir, by }) => {
            let member = members.iter().find(|member| member.dir == dir);
            Error::Start(StartError::DataDirInUse {
                by: member.map_or(by, |member| member.user().to_owned()),
                dir,
            })
        }
        error => error,
    }
}
