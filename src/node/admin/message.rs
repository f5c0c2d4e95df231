//! Requests to members that are not in the log: for reports of themselves, and for an operator's
//! actions.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::node::io::Problem;
use crate::types::log_form::LogForm;
use crate::types::membership::{Member, Named, NodeId};
use crate::types::metrics::histogram::Histogram;
use crate::types::reason::Reason;
use crate::types::right::{Connection, Right};
use crate::types::znode::{SessionId, Zxid};

/// The most sessions in one reply.
pub(crate) const SESSIONS_LISTED: usize = 1000;

/// A request to members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum AdminRequest {
    /// What each member reports of itself.
    Report,
    /// What each member knows of the first [`SESSIONS_LISTED`] sessions after this one, by their ids.
    Sessions {
        #[serde(with = "LogForm")]
        after: Option<SessionId>,
    },
    /// A piece of a member's state, by its number, in the transfer of this number. `of`: the member
    /// that has sent the first piece and has the others; 0: any member.
    Image { of: NodeId, transfer: u64, piece: u32 },
    /// For the leader alone. `after`: what it replied when it was last asked for this.
    Act { action: Action, by: String, after: Option<Progress> },
}

impl AdminRequest {
    /// What it asks for, as the audit log shows it: without text of the sender.
    pub(crate) fn action(&self) -> String {
        match self {
            AdminRequest::Report => "Report".to_owned(),
            AdminRequest::Sessions { .. } => "Sessions".to_owned(),
            AdminRequest::Image { .. } => "Backup".to_owned(),
            AdminRequest::Act { action, .. } => format!("{action:?}"),
        }
    }

    /// The right that it takes to ask for it.
    pub(crate) fn needs(&self) -> Right {
        match self {
            AdminRequest::Report | AdminRequest::Sessions { .. } => Right::Client,
            AdminRequest::Image { .. } | AdminRequest::Act { .. } => Right::Operator,
        }
    }
}

/// A client, as the member knows it that it has asked: for the audit log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Asker {
    pub(crate) client: NodeId,
    #[serde(with = "LogForm")]
    pub(crate) connection: Connection,
}

/// How far the leader is with an action that it is asked for again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Progress {
    /// [`AdminReply::NotYet`]
    NotYet,
    /// [`AdminReply::Begun`]
    Begun,
}

impl Progress {
    /// Whether a reply says nothing new after this.
    pub(in crate::node) fn is_repeated(self, reply: &AdminReply) -> bool {
        matches!(
            (self, reply),
            (Progress::NotYet, AdminReply::NotYet { .. })
                | (Progress::Begun, AdminReply::Begun)
                | (_, AdminReply::NoLeader)
        )
    }
}

/// An operator's action, which the leader carries out.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Action {
    /// Hand leadership to this voter.
    MoveLeader { to: NodeId },
    /// Remove a member that is dead.
    Remove { member: NodeId },
    /// End a session, as if its time were up.
    Expire {
        #[serde(with = "LogForm")]
        session: SessionId,
    },
}

/// As the audit log shows it.
impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::MoveLeader { to } => write!(f, "MoveLeader {{ to: {} }}", Named::of(*to)),
            Action::Remove { member } => write!(f, "Remove {{ member: {} }}", Named::of(*member)),
            Action::Expire { session } => write!(f, "Expire {{ session: {session} }}"),
        }
    }
}

/// What one member replies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum AdminReply {
    Report(Box<Report>),
    /// All members, as known to the one that gathers the replies, and whether each votes.
    Members {
        members: Vec<(Member, bool)>,
    },
    /// In the order of their ids. `more`: more sessions follow. `leads`: the reply is the leader's.
    Sessions {
        sessions: Vec<SessionReport>,
        more: bool,
        leads: bool,
        zxid: Zxid,
    },
    /// A piece of the member's state. The last piece is empty and has `end`.
    Image {
        bytes: Bytes,
        end: Option<ImageEnd>,
    },
    /// The action has begun.
    Begun,
    /// The target of the action does not exist, or no longer.
    Gone,
    /// Nothing was done, for this reason.
    Refused {
        reason: String,
    },
    /// Nothing was done: this member does not lead and knows no leader.
    NoLeader,
    /// Nothing was done for now, for this reason, which may pass.
    NotYet {
        reason: String,
    },
}

/// The zxid and the hash of the whole state, sent with its last piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ImageEnd {
    pub(crate) zxid: Zxid,
    pub(crate) hash: u64,
}

/// What a member reports of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) version: u16,
    pub(crate) term: u64,
    /// 0: none known.
    pub(crate) leader: NodeId,
    pub(crate) zxid: Zxid,
    /// The last index of its log, and the indexes up to which the log is on its disk, known to be
    /// committed, and applied.
    pub(crate) last: u64,
    pub(crate) durable: u64,
    pub(crate) committed: u64,
    pub(crate) applied: u64,
    /// Its state has every write that was completed at least this long ago.
    pub(crate) stale_by: Option<Duration>,
    /// The sessions that it holds for its own users and for clients.
    pub(crate) sessions: u64,
    pub(crate) clients: u64,
    pub(crate) watches: u64,
    pub(crate) znodes: u64,
    pub(crate) log_bytes: u64,
    pub(crate) checkpoint_bytes: u64,
    pub(crate) checkpoint_age: Duration,
    /// Why the checkpoint that is due could not be written when that was last tried.
    pub(crate) checkpoint_error: Option<String>,
    /// The free bytes on its disk, if known, and whether these count as little.
    pub(crate) disk_free: Option<u64>,
    pub(crate) disk_low: bool,
    /// For how long its disk has not answered, if that is long.
    pub(crate) disk_waits: Option<Duration>,
    /// How many directories with former data it keeps that were damaged.
    pub(crate) former_directories: u64,
    /// The certificate, of those that its process uses, that expires first, and in how many seconds.
    pub(crate) certificate: Option<(String, i64)>,
    /// How far its wall clock is ahead of the log's time, if it knows that.
    pub(crate) clock_ahead_ms: Option<i64>,
    /// Of the last minute; `None` if there was none. Only a leader has commits.
    pub(crate) commit: Option<LatencySummary>,
    pub(crate) disk_sync: Option<LatencySummary>,
    /// Whether it refuses writes, since disks are nearly full.
    pub(crate) refuses_writes: bool,
    /// The other members that it cannot reach.
    pub(crate) unreachable: Vec<(NodeId, Problem)>,
    /// How long ago they last told what was wrong with them, and what.
    pub(crate) last_reports: Vec<(NodeId, Duration, String)>,
    /// The members as which two processes run, as sentences.
    pub(crate) duplicates: Vec<String>,
    /// Where its admin endpoint listens, if it has one.
    pub(crate) admin: Option<SocketAddr>,
    /// Why it is not ready; `None` if it is.
    #[serde(with = "LogForm")]
    pub(crate) not_ready: Option<Reason>,
}

/// What a member knows of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SessionReport {
    #[serde(with = "LogForm")]
    pub(crate) session: SessionId,
    /// The node that holds it: a member, or a client.
    pub(crate) owner: NodeId,
    pub(crate) timeout_ms: u32,
    /// How long ago it was opened.
    pub(crate) age: Duration,
    pub(crate) ephemerals: u64,
    /// How long ago it was renewed; only the leader knows.
    pub(crate) renewed: Option<Duration>,
    /// How many watches it has; only the member that serves it knows.
    pub(crate) watches: Option<u64>,
    /// How many requests a second it has made lately; only the member that serves it knows.
    pub(crate) requests_per_second: Option<u64>,
    /// What the user of the instance that holds it calls that; only the member that serves it knows.
    pub(crate) name: Option<String>,
    /// Where its holder is: host and port of a client of the replying member's gateway, else the host.
    pub(crate) from: Option<String>,
}

/// How long something took lately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LatencySummary {
    pub(crate) count: u64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
}

impl LatencySummary {
    pub(crate) fn of(histogram: &Histogram) -> Option<LatencySummary> {
        let (p50, p99) = (histogram.quantile(0.5)?, histogram.quantile(0.99)?);
        Some(LatencySummary { count: histogram.count(), p50, p99 })
    }
}
