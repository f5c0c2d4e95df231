//! Why connections to peers fail.

use std::io;

use crate::transport::handshake::{Refusal, RefusalCode};
use crate::transport::secure::SecurityError;

/// Why a peer is not connected.
pub(super) struct Failure {
    pub(super) reason: String,
    pub(super) kind: FailureKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureKind {
    Passing,
    /// As `Passing`, but many others are tried again, too.
    Full,
    /// Trying again will not help unless something is reconfigured.
    Permanent,
    /// Another node is at the address, or the wrong process of the right one.
    Elsewhere,
    /// This node has reached itself.
    Itself,
}

impl Failure {
    pub(super) fn passing(reason: impl Into<String>) -> Failure {
        Failure { reason: reason.into(), kind: FailureKind::Passing }
    }

    pub(super) fn elsewhere(reason: impl Into<String>) -> Failure {
        Failure { reason: reason.into(), kind: FailureKind::Elsewhere }
    }

    pub(super) fn permanent(reason: impl Into<String>) -> Failure {
        Failure { reason: reason.into(), kind: FailureKind::Permanent }
    }

    /// Whether another node is at the address.
    pub(super) fn is_elsewhere(&self) -> bool {
        self.kind == FailureKind::Elsewhere
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        let kind = match refusal.code {
            RefusalCode::NotAddressed => FailureKind::Elsewhere,
            RefusalCode::Full => FailureKind::Full,
            code if code.is_permanent() => FailureKind::Permanent,
            _ => FailureKind::Passing,
        };
        Failure { reason: refusal.text, kind }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        match SecurityError::of(&error).is_some_and(SecurityError::is_permanent) {
            true => Failure::permanent(describe(&error)),
            false => Failure::passing(describe(&error)),
        }
    }
}

/// A short description that is the same for each attempt.
pub(super) fn describe(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::ConnectionReset => "connection reset".to_owned(),
        io::ErrorKind::ConnectionAborted => "connection aborted".to_owned(),
        io::ErrorKind::BrokenPipe => "the peer closed the connection".to_owned(),
        io::ErrorKind::TimedOut => "connecting took too long".to_owned(),
        io::ErrorKind::HostUnreachable => "host unreachable".to_owned(),
        io::ErrorKind::NetworkUnreachable => "network unreachable".to_owned(),
        _ => error.to_string(),
    }
}
