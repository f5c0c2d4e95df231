//! Sessions, and who holds them: `sessions`, and each place where a session is shown.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use quorate::operate::SessionInfo;
use quorate::session::SessionId;
use quorate::{Coordinator, Error, Result};
use serde_json::json;

use super::cluster::{duration, or_unknown, reports, table};
use super::{ClusterArgs, Shown, json};
use crate::Exit;

/// How many sessions a message names.
const NAMED_MAX: usize = 10;
/// The digits of an id.
const DIGITS: usize = 16;

pub(super) fn sessions(cluster: &ClusterArgs, coordinator: &Coordinator) -> Result<Exit> {
    reports(cluster, coordinator)?;
    let mut sessions = coordinator.sessions().wait()?;
    // The one that asks most comes first.
    sessions.sort_by_key(|session| Reverse(session.requests_per_second));
    let columns = columns(in_full);
    let titles = columns.map(|(title, ..)| title).join(", ");
    let rows = sessions.iter().map(|session| columns.map(|(.., cell)| cell(session)));
    cluster.print(Shown::new(table(&titles, rows), json!({ "sessions": json(&sessions) })))
}

/// A column of sessions: its title, its rank in `top` (see `Column`), and its cells.
type SessionColumn = (&'static str, u8, fn(&SessionInfo) -> String);

/// What is shown of a session, with this as its holder.
pub(super) fn columns(held_by: fn(&SessionInfo) -> String) -> [SessionColumn; 8] {
    [
        ("ID", 0, |session| session.id.to_string()),
        ("HELD BY", 0, held_by),
        ("REQUESTS/S", 1, |session| count(session.requests_per_second)),
        ("AGE", 6, |session| duration(session.age)),
        ("TIMEOUT", 4, |session| duration(session.timeout)),
        ("RENEWED", 2, |session| {
            or_unknown(session.renewed.map(|ago| format!("{} ago", duration(ago))))
        }),
        ("EPHEMERALS", 3, |session| session.ephemerals.to_string()),
        ("WATCHES", 5, |session| count(session.watches)),
    ]
}

fn count(of: Option<u64>) -> String {
    or_unknown(of.map(|count| count.to_string()))
}

/// Who holds a session, with the id of an instance without a replica.
fn in_full(session: &SessionInfo) -> String {
    named(session, Some(&session.owner_id))
}

/// Who holds a session: a member, a client of its gateway, or an instance without a replica; with addresses.
pub(super) fn holder(session: &SessionInfo) -> String {
    named(session, None)
}

fn named(session: &SessionInfo, id: Option<&str>) -> String {
    let from = session.from.as_deref();
    let name = session.name.as_deref();
    let client = || match (name, id, from) {
        (Some(name), Some(id), Some(from)) => format!("{name} ({id}) at {from}"),
        (Some(name), Some(id), None) => format!("{name} ({id})"),
        (Some(name), None, Some(from)) => format!("{name} at {from}"),
        (Some(name), None, None) => name.to_owned(),
        (None, Some(id), Some(from)) => format!("client {id} at {from}"),
        (None, Some(id), None) => format!("client {id}"),
        (None, None, Some(from)) => from.to_owned(),
        (None, None, None) => "client".to_owned(),
    };
    match (&session.owner, &session.served_by) {
        (Some(member), _) => match (from.filter(|from| is_elsewhere(from, member)), name) {
            (Some(from), _) => format!("{from} through {member}"),
            (None, Some(name)) => format!("{name} at {member}"),
            (None, None) => member.clone(),
        },
        (None, Some(member)) => format!("{} of {member}", client()),
        (None, None) if from.is_some() => client(),
        (None, None) => session.owner_id.clone(),
    }
}

/// Whether a session that a member holds came to it from another host, or from a client's port. That of a member's own
/// application is from the member's host.
fn is_elsewhere(from: &str, member: &str) -> bool {
    let host = |address: &str| address.parse::<SocketAddr>().ok().map(|address| address.ip());
    match from.parse::<IpAddr>() {
        Ok(ip) => host(member).is_some_and(|own| own != ip),
        Err(_) => true,
    }
}

/// The holders of all sessions.
#[derive(Debug)]
pub(super) struct Holders(BTreeMap<SessionId, String>);

impl Holders {
    /// Those of now. What is shown beside them matters more, so an error leaves them unknown.
    pub(super) fn read(coordinator: &Coordinator) -> Holders {
        let sessions = coordinator.sessions().wait().unwrap_or_default();
        Holders(sessions.iter().map(|session| (session.id, holder(session))).collect())
    }

    pub(super) fn get(&self, session: SessionId) -> Option<&str> {
        self.0.get(&session).map(String::as_str)
    }
}

/// The session with this id, or the only one whose id begins with these digits.
pub(super) fn find(coordinator: &Coordinator, text: &str) -> Result<SessionId> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    let digits = digits.to_ascii_lowercase();
    let refused = |reason: String| {
        Err(Error::Refused { operation: format!("finding the session {text}"), reason })
    };
    let is_digit = |digit: char| digit.is_ascii_hexdigit();
    if digits.is_empty() || digits.len() > DIGITS || !digits.chars().all(is_digit) {
        return Err(Error::InvalidSetting {
            setting: "the session",
            reason: format!(
                "{text:?} is not an id, or the first digits of one: `quorate sessions` lists them"
            ),
        });
    }
    let sessions = coordinator.sessions().wait()?;
    let prefix = format!("0x{digits}");
    let is_it = |of: &&SessionInfo| of.id.to_string().starts_with(&prefix);
    let found: Vec<_> = sessions.iter().filter(is_it).collect();
    match &found[..] {
        [] => refused("there is no such session; `quorate sessions` lists them".to_owned()),
        [one] => Ok(one.id),
        many => {
            let name = |of: &&SessionInfo| format!("{} ({})", of.id, holder(of));
            let named: Vec<String> = many.iter().take(NAMED_MAX).map(name).collect();
            let rest = match many.len().saturating_sub(NAMED_MAX) {
                0 => String::new(),
                rest => format!(", and {rest} more"),
            };
            refused(format!("{} sessions begin with it: {}{rest}", many.len(), named.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The commands answered "who holds the lock" with 16 digits, and for a client of a gateway with its member.
    #[test]
    fn a_holder_has_its_own_address() {
        let cluster = quorate::testing::Cluster::new(1);
        cluster.node(0).session().sync().wait().unwrap();
        let mut session = cluster.node(0).sessions().wait().unwrap().remove(0);
        let mut shown = |owner: Option<&str>, served_by: Option<&str>, from: Option<&str>| {
            let text = |of: Option<&str>| of.map(str::to_owned);
            (session.owner, session.served_by) = (text(owner), text(served_by));
            session.from = text(from);
            session.owner_id = "00d2f3a901c4b7e5".to_owned();
            in_full(&session)
        };
        let member = Some("10.0.0.1:7400");
        assert_eq!(shown(member, None, None), "10.0.0.1:7400");
        assert_eq!(shown(member, None, Some("10.0.0.1")), "10.0.0.1:7400", "its application");
        let client = shown(member, None, Some("10.0.0.1:51234"));
        assert_eq!(client, "10.0.0.1:51234 through 10.0.0.1:7400");
        // It has left the gateway, and only its host is known.
        assert_eq!(shown(member, None, Some("10.0.0.9")), "10.0.0.9 through 10.0.0.1:7400");
        assert_eq!(shown(Some("app-0:7400"), None, Some("10.0.0.9")), "app-0:7400");
        let client = shown(None, member, Some("10.0.0.9"));
        assert_eq!(client, "client 00d2f3a901c4b7e5 at 10.0.0.9 of 10.0.0.1:7400");
        assert_eq!(shown(None, member, None), "client 00d2f3a901c4b7e5 of 10.0.0.1:7400");
        assert_eq!(shown(None, None, Some("::1")), "client 00d2f3a901c4b7e5 at ::1");
        assert_eq!(shown(None, None, None), "00d2f3a901c4b7e5");
        session.served_by = Some("10.0.0.1:7400".to_owned());
        assert_eq!(holder(&session), "client of 10.0.0.1:7400");
        session.from = Some("10.0.0.9".to_owned());
        assert_eq!(holder(&session), "10.0.0.9 of 10.0.0.1:7400");
        session.name = Some("app-7".to_owned());
        assert_eq!(holder(&session), "app-7 at 10.0.0.9 of 10.0.0.1:7400");
        assert_eq!(in_full(&session), "app-7 (00d2f3a901c4b7e5) at 10.0.0.9 of 10.0.0.1:7400");
        session.owner = Some("10.0.0.9:7400".to_owned());
        assert_eq!(in_full(&session), "app-7 at 10.0.0.9:7400");
    }
}
