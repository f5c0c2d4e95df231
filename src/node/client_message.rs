//! The messages between a client without a replica and its member.
//!
//! Messages are numbered in both directions. A lost message is noticed by the number of the next one,
//! and the client then attaches again. When it attaches, a client reports what it has received. So a
//! member keeps nothing for an absent client.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::machine::command::{Outcome, Reply, Request};
use crate::node::io::{QuorumState, SessionHolder};
use crate::node::query::{Answer, EventData, Query, QueryError, ZnodeRead};
use crate::node::replica::watch_kind::WatchKind;
use crate::types::acl::Id;
use crate::types::encoding;
use crate::types::error::Error;
use crate::types::log_form::LogForm;
use crate::types::membership::{MEMBERS_MAX, Member, NodeId};
use crate::types::watch::WatchEvent;
use crate::types::znode::{OpResult, SessionId, Stat, Zxid};

/// A message of a client to its member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FromClient {
    /// The first message of an attachment. The client has seen everything up to this zxid, and must
    /// not be shown an older state.
    Begin {
        seen: Zxid,
        /// The cluster of the client; 0: none yet.
        cluster: u64,
        /// What its user calls it; empty: nothing.
        name: String,
    },
    /// A session that it holds.
    Claim(SessionClaim),
    /// A watch that it holds.
    Watch(HeldWatch),
    /// All claims and watches were sent.
    Begun,
    /// A write of a session, numbered: for the leader.
    Write(Request),
    /// Answered in the session's turn.
    Query {
        call: RequestHeader,
        query: Query,
        /// A sync, or a watch from a zxid that the member has not reached, waits for this ReadIndex
        /// request or a later one.
        read_index: u64,
    },
    Unwatch {
        watch: u64,
    },
    /// The session is over for the client.
    Leave {
        session_holder: SessionHolder,
    },
    /// As [`PeerMessage::ReadIndex`](crate::node::message::PeerMessage::ReadIndex).
    ReadIndex {
        boot: u64,
        read_index: u64,
        #[serde(with = "LogForm")]
        sessions: Vec<SessionId>,
    },
    /// The client leaves the member.
    End,
}

/// A session of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SessionClaim {
    pub(crate) session_holder: SessionHolder,
    /// The last write whose result it has.
    pub(crate) applied: u64,
    pub(crate) opened: bool,
    /// The base zxid of its open, if that was sent.
    pub(crate) base: Option<Zxid>,
}

/// A watch of a client, which has received all events up to a zxid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HeldWatch {
    pub(crate) watch: u64,
    pub(crate) session_holder: SessionHolder,
    pub(crate) path: Arc<str>,
    pub(crate) kind: WatchKind,
    /// Whether the znode was there when it was read.
    pub(crate) existed: bool,
    /// Set when it is sent.
    pub(crate) from: Zxid,
    pub(crate) data: EventData,
}

/// The session of a request, and its place among the session's requests: after the write `after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RequestHeader {
    pub(crate) request: u64,
    pub(crate) session_holder: SessionHolder,
    pub(crate) after: u64,
}

/// A message of a member to its client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ToClient {
    /// The claims are answered, and the watches are set.
    Attached,
    /// The session is its holder's.
    Held {
        session_holder: SessionHolder,
        #[serde(with = "LogForm")]
        ids: Vec<Id>,
    },
    Outcome(Outcome),
    /// The session is over for this holder. `known`: the outcomes of its writes were sent before.
    Ended {
        session_holder: SessionHolder,
        moved: bool,
        known: bool,
    },
    /// The session's open is not in the log yet, or the session was opened and has ended.
    Unseen {
        session_holder: SessionHolder,
    },
    Event {
        watch: u64,
        #[serde(with = "LogForm")]
        event: WatchEvent,
    },
    /// The watch is over.
    Over {
        watch: u64,
    },
    /// Some of the names in the answer to this request. The answer itself has the last ones.
    Names {
        request: u64,
        names: Vec<String>,
    },
    /// More znodes of the same.
    Znodes {
        request: u64,
        znodes: Vec<ZnodeRead>,
    },
    Answer {
        request: u64,
        answer: Result<Answer, QueryError>,
    },
    Confirmed {
        boot: u64,
        read_index: u64,
        #[serde(with = "LogForm")]
        refused: Vec<SessionId>,
    },
    /// The leader or the connection to it has changed: earlier requests may be lost, and the client
    /// sends them again.
    Again,
    /// All members of the cluster, and whether it can decide, as this member knows it. Sent after
    /// the client has attached, and whenever either changes.
    Members {
        members: Vec<Member>,
        availability: QuorumState,
    },
    /// The cluster of this member. The first message of an attachment.
    Cluster {
        cluster: u64,
    },
}

/// The members of a cluster, sent to a client by a member that has no room for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Redirect {
    pub(crate) cluster: u64,
    pub(crate) members: Vec<Member>,
    pub(crate) availability: QuorumState,
    /// 0: none known.
    pub(crate) leader: NodeId,
}

/// The parts of an answer that came before it.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    pub(crate) names: Vec<String>,
    pub(crate) znodes: Vec<ZnodeRead>,
}

/// The end of one group of updates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct UpTo {
    /// All events up to this write were sent, and no answer shows a later write.
    pub(crate) zxid: Zxid,
    /// The version that the cluster acts by.
    pub(crate) version: u16,
    /// 0: none known.
    pub(crate) leader: NodeId,
}

/// About how many bytes of names or znodes one piece has.
const PIECE_BYTES: usize = 256 << 10;
/// About how many bytes a message takes besides the counted ones.
const FIXED: usize = 64;

impl ToClient {
    /// The last write that it certainly shows.
    pub(crate) fn shows(&self) -> Zxid {
        let stat = |stat: &Stat| stat.mzxid.max(stat.pzxid);
        let result = |result: &OpResult| match result {
            OpResult::Created(created) => created.stat.czxid,
            OpResult::Set(of) | OpResult::AclSet(of) | OpResult::Added { stat: of, .. } => stat(of),
            OpResult::Taken { claim, .. } => claim.as_ref().map_or(0, |claim| claim.stat.czxid),
            OpResult::Deleted | OpResult::Checked => 0,
        };
        match self {
            ToClient::Event { event, .. } => event.zxid,
            ToClient::Outcome(Outcome { result: Ok(reply), .. }) => match reply {
                Reply::Created(created) => created.stat.czxid,
                Reply::Set(of) => stat(of),
                Reply::Multi(results) => results.iter().map(result).max().unwrap_or(0),
                _ => 0,
            },
            ToClient::Answer { answer: Ok(answer), .. } => match answer {
                Answer::Data { stat: of, .. }
                | Answer::Exists(Some(of))
                | Answer::Children(_, Some(of))
                | Answer::Acl(_, of) => stat(of),
                Answer::Synced(zxid) | Answer::Below(zxid, _) => *zxid,
                Answer::Reply(_)
                | Answer::Exists(None)
                | Answer::Children(_, None)
                | Answer::Ids(_)
                | Answer::Watching
                | Answer::Tree(_)
                | Answer::Count(_)
                | Answer::Admin(_) => 0,
            },
            _ => 0,
        }
    }
}

/// Returns an answer as messages: in pieces, if it has many children or znodes.
pub(crate) fn answer(request: u64, answer: Result<Answer, Error>) -> Vec<ToClient> {
    let mut updates = Vec::new();
    let answer = match answer {
        Ok(Answer::Children(names, stat)) => {
            let piece = |names| updates.push(ToClient::Names { request, names });
            Ok(Answer::Children(in_pieces(names, |name| name_size(name), piece), stat))
        }
        Ok(Answer::Below(zxid, znodes)) => {
            let piece = |znodes| updates.push(ToClient::Znodes { request, znodes });
            Ok(Answer::Below(zxid, in_pieces(znodes, ZnodeRead::size, piece)))
        }
        Ok(Answer::Tree(_)) => Err(QueryError::Other { reason: "a whole tree".to_owned() }),
        answer => answer.map_err(QueryError::of),
    };
    updates.push(ToClient::Answer { request, answer });
    updates
}

/// Cuts pieces off, and returns the rest.
fn in_pieces<T>(all: Vec<T>, size: impl Fn(&T) -> usize, mut piece: impl FnMut(Vec<T>)) -> Vec<T> {
    let (mut part, mut bytes) = (Vec::new(), 0);
    for one in all {
        bytes += size(&one);
        part.push(one);
        if bytes > PIECE_BYTES {
            piece(std::mem::take(&mut part));
            bytes = 0;
        }
    }
    part
}

fn name_size(name: &str) -> usize {
    name.len() + 8
}

impl Pieces {
    /// The whole answer: these pieces, then the last one.
    pub(crate) fn complete(mut self, answer: Answer) -> Answer {
        match answer {
            Answer::Children(rest, stat) => {
                self.names.extend(rest);
                Answer::Children(self.names, stat)
            }
            Answer::Below(zxid, rest) => {
                self.znodes.extend(rest);
                Answer::Below(zxid, self.znodes)
            }
            other => other,
        }
    }
}

impl FromClient {
    /// About how many bytes it takes.
    pub(crate) fn size(&self) -> usize {
        FIXED
            + match self {
                FromClient::Write(request) => request.command.size(),
                FromClient::Watch(held) => held.path.len(),
                FromClient::Query { query, .. } => query.path().map_or(0, |path| path.len()),
                FromClient::ReadIndex { sessions, .. } => sessions.len() * 10,
                _ => 0,
            }
    }
}

impl ToClient {
    /// About how many bytes it takes.
    pub(crate) fn size(&self) -> usize {
        let names = |names: &[String]| names.iter().map(|name| name_size(name)).sum::<usize>();
        let znodes = |znodes: &[ZnodeRead]| znodes.iter().map(ZnodeRead::size).sum();
        FIXED
            + match self {
                ToClient::Event { event, .. } => {
                    let znodes = [&event.znode, &event.before].into_iter().flatten();
                    let data = znodes.filter_map(|znode| znode.data.as_ref());
                    event.path.len() + data.map(|data| data.len() + FIXED).sum::<usize>()
                }
                ToClient::Names { names: of, .. } => names(of),
                ToClient::Znodes { znodes: of, .. } => znodes(of),
                ToClient::Answer { answer: Ok(answer), .. } => match answer {
                    Answer::Data { data, .. } => data.len() + FIXED,
                    Answer::Children(of, _) => names(of),
                    Answer::Below(_, of) => znodes(of),
                    Answer::Acl(acl, _) => acl.len() * FIXED,
                    Answer::Reply(_)
                    | Answer::Exists(_)
                    | Answer::Ids(_)
                    | Answer::Watching
                    | Answer::Synced(_)
                    | Answer::Tree(_)
                    | Answer::Count(_)
                    | Answer::Admin(_) => FIXED,
                },
                ToClient::Outcome(Outcome { result: Ok(Reply::Multi(results)), .. }) => {
                    results.len() * FIXED * 2
                }
                ToClient::Outcome(_) => FIXED * 2,
                ToClient::Confirmed { refused, .. } => refused.len() * 10,
                ToClient::Members { members, .. } => members
                    .iter()
                    .map(|member| FIXED * 2 + member.address.len() + member.zone.len())
                    .sum(),
                _ => 0,
            }
    }

    /// How many bytes it takes in a message: of the results of writes and of ids, [`ToClient::size`] counts only
    /// the number.
    pub(crate) fn message_bytes(&self) -> usize {
        match self {
            ToClient::Outcome(_) | ToClient::Held { .. } | ToClient::Answer { .. } => {
                self.size().max(encoding::size(self))
            }
            _ => self.size(),
        }
    }
}

/// Whether these can be the members of a cluster and its voters. A member's address may be unknown,
/// if another member has moved to it.
pub(crate) fn are_members(members: &[Member], availability: &QuorumState) -> bool {
    let QuorumState {
        voters,
        learners,
        outgoing,
        silent,
        has_leader: _,
        is_reported: _,
        disk_low,
        refuses_writes: _,
    } = availability;
    let mut ids: Vec<NodeId> = members.iter().map(|member| member.node).collect();
    ids.sort_unstable();
    ids.dedup();
    !members.is_empty()
        && members.len() <= MEMBERS_MAX
        && ids.len() == members.len()
        && members.iter().all(Member::may_be_listed)
        && [voters, learners, outgoing, silent, disk_low]
            .iter()
            .all(|nodes| nodes.len() <= MEMBERS_MAX)
}
