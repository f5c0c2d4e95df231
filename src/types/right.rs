//! What a credential allows.

use std::fmt;

/// What an instance may do in a cluster, by the credential with which it connects.
///
/// Each right includes those before it. A cluster whose members have one secret, or one authority,
/// gives everybody who has it the right of a member: see
/// [`guide::security`](crate::guide::security#rights).
///
/// ```
/// use quorate::security::Right;
///
/// assert!(Right::Client < Right::Operator && Right::Operator < Right::Member);
/// assert_eq!(Right::Client.to_string(), "client");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Right {
    /// Sessions of its own, as a client without a replica, and reports of the members.
    Client,
    /// Also an operator's actions: moving the lead, removing dead members, ending sessions, backups.
    Operator,
    /// Everything: it may be a member, too.
    Member,
}

impl Right {
    /// With its article, as in a sentence.
    pub(crate) fn one(self) -> &'static str {
        match self {
            Right::Client => "a client",
            Right::Operator => "an operator",
            Right::Member => "a member",
        }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Right::Client => "client",
            Right::Operator => "operator",
            Right::Member => "member",
        })
    }
}
