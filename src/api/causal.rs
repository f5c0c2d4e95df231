//! What one instance has seen, for another one to see.

use std::fmt;
use std::str::FromStr;

use crate::api::session::Session;
use crate::runtime::pending::Pending;
use crate::types::error::{Error, Result};
use crate::types::znode::Zxid;

/// Everything that a session has written and read until now: [`Session::causal_token`] returns it, and
/// [`Session::wait_for_zxid`] at another instance waits until it is visible there. (The literature calls such a value a
/// session guarantee or a causal token.)
///
/// As text it fits a header, 18 to 33 ASCII characters: the cluster and the zxid, both in hexadecimal. It is not
/// secret, and proves nothing: whoever sends another number makes the other side wait for a later write, or for none.
///
/// ```
/// use std::time::Duration;
/// use quorate::session::CausalToken;
/// use quorate::{CreateMode, testing::Cluster};
///
/// let cluster = Cluster::new(3);
/// let (here, there) = (cluster.node(0).session(), cluster.node(1).session());
/// here.create("/order", b"open", CreateMode::Persistent).wait()?;
/// here.delete("/order").wait()?;
/// let header = here.causal_token().wait()?.to_string();
///
/// let token: CausalToken = header.parse()?;
/// there.wait_for_zxid(token).wait()?;
/// assert!(there.exists("/order").wait()?.is_none());
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CausalToken {
    /// 0: not known.
    cluster: u64,
    zxid: Zxid,
}

impl CausalToken {
    /// The zxid up to which the session has seen all writes.
    pub fn zxid(&self) -> Zxid {
        self.zxid
    }
}

/// A zxid alone, of a cluster that is taken to be the same.
impl From<Zxid> for CausalToken {
    fn from(zxid: Zxid) -> CausalToken {
        CausalToken { cluster: 0, zxid }
    }
}

impl fmt::Display for CausalToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:x}", self.cluster, self.zxid)
    }
}

/// Reads what `Display` writes; otherwise it fails with [`Error::InvalidSetting`].
impl FromStr for CausalToken {
    type Err = Error;

    fn from_str(text: &str) -> Result<CausalToken> {
        let hexadecimal = |part: &str| {
            let is_one = part.len() <= 16 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_one.then(|| u64::from_str_radix(part, 16).ok()).flatten()
        };
        let parts = text.trim().split_once('-');
        let parts = parts.filter(|(cluster, _)| cluster.len() == 16);
        parts
            .and_then(|(cluster, zxid)| {
                Some(CausalToken { cluster: hexadecimal(cluster)?, zxid: hexadecimal(zxid)? })
            })
            .ok_or_else(|| invalid(format!("{text:?} is none, as 00000000000000a7-1f is")))
    }
}

fn invalid(reason: String) -> Error {
    Error::InvalidSetting { setting: "causal token", reason }
}

impl Session {
    /// Returns what this session has seen until now: its writes that have returned, and all that it can read here.
    /// Hand it on with an answer or a message, and let the receiver call [`Session::wait_for_zxid`]. Does not block once
    /// the session is open; before, as [`Session::get`].
    ///
    /// ```
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// let token = session.causal_token().wait()?;
    /// assert_eq!(token.to_string().parse(), Ok(token));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of a session that is over.
    pub fn causal_token(&self) -> Pending<'_, CausalToken> {
        let cluster = || self.shared().cluster.id();
        match self.has_replica() {
            true => self
                .snapshot_of("/")
                .and_then(move |shown| Ok(CausalToken { cluster: cluster(), zxid: shown.zxid() })),
            false => Pending::ready(
                self.check_alive()
                    .map(|()| CausalToken { cluster: cluster(), zxid: self.shared().seen() }),
            ),
        }
    }

    /// Waits until this session's reads show the write with this zxid, or all that another session has seen
    /// ([`Session::causal_token`]). A service that has written
    /// hands the zxid or the token on with its answer, and whoever reads at another instance sees at least that.
    ///
    /// Where this instance's replica has the write already, it asks nobody and needs no quorum. Otherwise it is a
    /// [`Session::sync`], and the reads after it are linearizable.
    ///
    /// A single write returns its zxid: [`Stat::mzxid`](crate::Stat::mzxid) of a set,
    /// [`Stat::czxid`](crate::Stat::czxid) of a create.
    ///
    /// # Errors
    /// [`Error::FutureZxid`] if there is no such write yet; [`Error::InvalidSetting`] if the token is of another cluster;
    /// otherwise as [`Session::sync`].
    ///
    /// ```
    /// use quorate::{CreateMode, testing::Cluster};
    ///
    /// let cluster = Cluster::new(3);
    /// let (here, there) = (cluster.node(0).session(), cluster.node(1).session());
    /// let written = here.create("/order", b"paid", CreateMode::Persistent).wait()?.stat.czxid;
    ///
    /// there.wait_for_zxid(written).wait()?;
    /// assert_eq!(&there.get("/order").wait()?.0[..], b"paid");
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn wait_for_zxid(&self, seen: impl Into<CausalToken>) -> Pending<'_, ()> {
        let token = seen.into();
        match self.shows(token) {
            Ok(false) => self.sync().and_then(move |last| self.is_reached(token, last)),
            shows => Pending::ready(shows.map(drop)),
        }
    }

    /// Whether the replica has the write with this zxid, and reads show it.
    fn shows(&self, token: CausalToken) -> Result<bool> {
        self.check_cluster(token)?;
        Ok(self.tree()?.is_some_and(|tree| tree.zxid() >= token.zxid))
    }

    fn is_reached(&self, token: CausalToken, last: Zxid) -> Result<()> {
        self.check_cluster(token)?;
        match token.zxid <= last {
            true => Ok(()),
            false => Err(Error::FutureZxid { path: "/".to_owned(), zxid: token.zxid, last }),
        }
    }

    fn check_cluster(&self, token: CausalToken) -> Result<()> {
        let own = self.shared().cluster.id();
        match (token.cluster, own) {
            (0, _) | (_, 0) => Ok(()),
            (theirs, own) if theirs == own => Ok(()),
            (theirs, own) => Err(invalid(format!(
                "it is of the cluster {theirs:016x}, and this is {own:016x}: read without it"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_back_or_refused() {
        for (cluster, zxid) in [(0, 0), (1, 31), (u64::MAX, u64::MAX)] {
            let token = CausalToken { cluster, zxid };
            assert_eq!(token.to_string().parse(), Ok(token));
            assert_eq!(format!(" {token}\r\n").parse(), Ok(token));
        }
        let long = format!("{:016x}-{}", 1, "1".repeat(17));
        for bad in [
            "",
            "-",
            "1",
            "1-1",
            "000000000000000g-1",
            "0000000000000001-",
            "+000000000000001-1",
            &long,
        ] {
            let refused = bad.parse::<CausalToken>().unwrap_err().to_string();
            assert!(refused.contains("causal token") && refused.contains(bad), "{refused}");
        }
    }
}
