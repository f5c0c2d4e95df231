//! When certificates expire.

use std::path::Path;

/// From how long before its end on a certificate is a trouble.
pub(crate) const EXPIRES_SOON: i64 = 7 * 86_400;

/// When a certificate expires that this process uses; of several in one file, the first of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expiry {
    /// What it is for, as the label of a metric.
    pub(crate) of: &'static str,
    /// For people: what it is, and its file.
    pub(crate) name: String,
    /// In seconds since the Unix epoch.
    pub(crate) at: i64,
}

impl Expiry {
    /// `what` names it for people.
    #[cfg_attr(not(feature = "tls"), allow(dead_code, reason = "only TLS has certificates"))]
    pub(crate) fn new(of: &'static str, what: &str, file: Option<&Path>, at: i64) -> Expiry {
        let name = match file {
            Some(file) => format!("{what} ({})", file.display()),
            None => what.to_owned(),
        };
        Expiry { of, name, at }
    }

    /// The seconds from this time on until it expires; negative once it has.
    pub(crate) fn after(&self, wall_ms: u64) -> i64 {
        self.at.saturating_sub(i64::try_from(wall_ms / 1000).unwrap_or(i64::MAX))
    }
}
