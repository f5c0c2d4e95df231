//! What a credential allows, and whose connection has it.

use std::fmt;
use std::net::SocketAddr;

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

/// The connection of a client, for [`AuthProvider::connected`](crate::security::AuthProvider::connected).
///
/// ```
/// use quorate::security::{Connection, Right};
/// use quorate::security::AuthProvider;
///
/// /// Whoever comes from the office's network.
/// struct Office;
///
/// impl AuthProvider for Office {
///     fn scheme(&self) -> &str {
///         "office"
///     }
///
///     fn authenticate(&self, _credentials: &[u8]) -> Result<Vec<String>, String> {
///         Err("it takes no credentials".into())
///     }
///
///     fn connected(&self, connection: &Connection) -> Vec<String> {
///         let is_near = connection.address.ip().to_string().starts_with("10.1.");
///         is_near.then(|| "desk".to_owned()).into_iter().collect()
///     }
/// }
/// # let connection = Connection::new("10.1.0.7:4000".parse().unwrap(), None, Right::Client);
/// # assert_eq!(Office.connected(&connection), ["desk"]);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Connection {
    /// The other end's address, as the member sees it.
    pub address: SocketAddr,
    /// The subject of its certificate, as `CN=app-0,O=Example`, if it has one.
    pub subject: Option<String>,
    /// The right of its credential; a client's for a client of the gateway.
    pub right: Right,
}

impl Connection {
    /// A connection, for tests of a provider.
    pub fn new(address: SocketAddr, subject: Option<&str>, right: Right) -> Connection {
        Connection { address, subject: subject.map(str::to_owned), right }
    }
}
