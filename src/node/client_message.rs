//! What a client without a replica and its member say to each other.
//!
//! Both directions are numbered: a message that was lost shows by the next one, and the client then
//! begins anew. What a client has already been told, it tells itself when it begins: so no member
//! keeps anything for a client that is not there.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::machine::command::{OpError, Reply, Request};
use crate::node::io::{Answer, Availability, Read};
use crate::node::replica::watch_kind::WatchKind;
use crate::types::acl::{Acl, Id, Permissions};
use crate::types::error::Error;
use crate::types::membership::{MEMBERS_MAX, Member, NodeId};
use crate::types::watch::{EventKind, EventZnode, WatchEvent, WatcherType};
use crate::types::znode::{SessionId, Stat, Zxid};

/// What a client asks of its member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// The first of an attachment: nothing older than this is to be told.
    Begin {
        seen: Zxid,
        /// The cluster whose client it is; 0: none yet.
        cluster: u64,
    },
    /// A session that it holds.
    Claim(Claim),
    /// A watch that it holds.
    Watch(HeldWatch),
    /// It has told all that it holds.
    Begun,
    /// A write of a session, numbered: for the leader.
    Write(Request),
    Read {
        call: Call,
        read: ReadOf,
        watch: Option<u64>,
    },
    SetWatch {
        call: Call,
        watch: u64,
        path: String,
        recursive: bool,
        from: Option<Zxid>,
        data: bool,
        /// A round as in [`Ask::Sync`], for a zxid that the member has not reached.
        round: u64,
    },
    RemoveWatches {
        call: Call,
        path: String,
        which: WatcherType,
    },
    /// Answered when the member has what was written before this round, or a later one, was asked.
    Sync {
        call: Call,
        round: u64,
    },
    Unwatch {
        watch: u64,
    },
    /// The session is over for the client.
    Leave {
        session: SessionId,
        holder: u64,
    },
    /// As [`PeerMessage::Round`](crate::node::message::PeerMessage::Round).
    Round {
        boot: u64,
        round: u64,
        sessions: Vec<SessionId>,
    },
    /// The client goes.
    End,
}

/// A session of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Claim {
    pub(crate) session: SessionId,
    pub(crate) holder: u64,
    /// The last write whose result it has.
    pub(crate) applied: u64,
    pub(crate) opened: bool,
    /// Its open was sent, and rests on this zxid.
    pub(crate) base: Option<Zxid>,
}

/// A watch of a client, which has told of everything up to a zxid.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HeldWatch {
    pub(crate) watch: u64,
    pub(crate) session: SessionId,
    pub(crate) holder: u64,
    pub(crate) path: String,
    pub(crate) kind: WatchKind,
    /// Whether the znode was there when it was read.
    pub(crate) existed: bool,
    pub(crate) from: Zxid,
    pub(crate) data: bool,
}

/// Whose request it is, and its place among the session's: behind this write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Call {
    pub(crate) request: u64,
    pub(crate) session: SessionId,
    pub(crate) holder: u64,
    pub(crate) after: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ReadOf {
    Get(String),
    Exists(String),
    Children(String),
    Acl(String),
    Ephemerals,
    Ids,
    /// The znode and all below it.
    Below(String),
}

/// What a member tells its client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum News {
    /// The claims are answered, and the watches are set.
    Attached,
    /// The session is its holder's.
    Held {
        session: SessionId,
        holder: u64,
        ids: Vec<Id>,
    },
    Outcome {
        session: SessionId,
        holder: u64,
        seq: u64,
        result: Result<Reply, OpError>,
    },
    /// The session is over for this holder. `known`: what came of its writes was told before.
    Ended {
        session: SessionId,
        holder: u64,
        moved: bool,
        known: bool,
    },
    /// The session's open is not in the log yet, or has come and gone.
    Unseen {
        session: SessionId,
        holder: u64,
    },
    Event {
        watch: u64,
        event: EventOf,
    },
    /// The watch is over.
    Over {
        watch: u64,
    },
    /// More names of the children that the answer to this request tells.
    Names {
        request: u64,
        names: Vec<String>,
    },
    /// More znodes of the same.
    Znodes {
        request: u64,
        znodes: Vec<ZnodeOf>,
    },
    Answer {
        request: u64,
        answer: Result<AnswerOf, Refusal>,
    },
    Confirmed {
        boot: u64,
        round: u64,
        refused: Vec<SessionId>,
    },
    /// There is another leader, or another connection to it: what was asked may be lost.
    Again,
    /// All members of the cluster, and what it has to decide with, as this member knows it: to who
    /// has just been attached, and whenever either has changed.
    Members {
        members: Vec<Member>,
        availability: Availability,
    },
    /// The cluster that this member is of: before anything else that an attachment tells.
    Cluster {
        cluster: u64,
    },
}

/// A znode by its whole path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ZnodeOf {
    pub(crate) path: String,
    /// Unless it may not be read.
    pub(crate) content: Option<(Bytes, Stat)>,
}

/// What came of an answer before it.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    pub(crate) names: Vec<String>,
    pub(crate) znodes: Vec<ZnodeOf>,
}

/// How one group of news ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Told {
    /// All events up to this write have been told, and nothing read shows more.
    pub(crate) zxid: Zxid,
    /// The version that the cluster acts by.
    pub(crate) version: u16,
    /// 0: none known.
    pub(crate) leader: NodeId,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EventOf {
    kind: EventKind,
    path: String,
    zxid: Zxid,
    position: u32,
    net: bool,
    znode: Option<(Option<Bytes>, Stat)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum AnswerOf {
    Done,
    Data(Bytes, Stat),
    Exists(Option<Stat>),
    /// The last of the names.
    Children(Vec<String>),
    Acl(Vec<Acl>, Stat),
    Ids(Vec<Id>),
    Watching,
    Synced(Zxid),
    /// The last of the znodes.
    Below(Zxid, Vec<ZnodeOf>),
}

/// Why a read failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Refusal {
    NoNode { path: String },
    NoAuth { path: String, permission: Permissions },
    NoWatch { path: String },
    TooOld { path: String, zxid: Zxid, oldest: Zxid },
    FutureZxid { path: String, zxid: Zxid, last: Zxid },
    TooLarge { path: String, size: u64, limit: u64 },
    Other { reason: String },
}

/// How many bytes of names or znodes travel as one piece, about.
const PIECE_BYTES: usize = 256 << 10;

impl ReadOf {
    /// `None` for what needs the whole tree.
    pub(crate) fn of(read: Read) -> Option<ReadOf> {
        Some(match read {
            Read::Get { path } => ReadOf::Get(path),
            Read::Exists { path } => ReadOf::Exists(path),
            Read::Children { path } => ReadOf::Children(path),
            Read::Acl { path } => ReadOf::Acl(path),
            Read::Ephemerals => ReadOf::Ephemerals,
            Read::Ids => ReadOf::Ids,
            Read::Below { path } => ReadOf::Below(path),
            Read::Tree => return None,
        })
    }

    pub(crate) fn into_read(self) -> Read {
        match self {
            ReadOf::Get(path) => Read::Get { path },
            ReadOf::Exists(path) => Read::Exists { path },
            ReadOf::Children(path) => Read::Children { path },
            ReadOf::Acl(path) => Read::Acl { path },
            ReadOf::Ephemerals => Read::Ephemerals,
            ReadOf::Ids => Read::Ids,
            ReadOf::Below(path) => Read::Below { path },
        }
    }

    pub(crate) fn path(&self) -> Option<&str> {
        match self {
            ReadOf::Get(path)
            | ReadOf::Exists(path)
            | ReadOf::Children(path)
            | ReadOf::Below(path)
            | ReadOf::Acl(path) => Some(path),
            ReadOf::Ephemerals | ReadOf::Ids => None,
        }
    }

    /// What a watch that goes with it listens to.
    pub(crate) fn watch_kind(&self) -> WatchKind {
        match self {
            ReadOf::Children(_) => WatchKind::Children,
            _ => WatchKind::Data,
        }
    }
}

impl EventOf {
    pub(crate) fn of(event: WatchEvent) -> EventOf {
        let WatchEvent { kind, path, zxid, position, net, znode } = event;
        let znode = znode.map(|znode| {
            let EventZnode { data, stat } = *znode;
            (data.map(|data| Bytes::copy_from_slice(&data)), stat)
        });
        EventOf { kind, path, zxid, position, net, znode }
    }

    pub(crate) fn into_event(self) -> WatchEvent {
        let EventOf { kind, path, zxid, position, net, znode } = self;
        let znode = znode.map(|(data, stat)| {
            Box::new(EventZnode { data: data.map(|data| Arc::from(&data[..])), stat })
        });
        WatchEvent { kind, path, zxid, position, net, znode }
    }
}

/// An answer as news: of many children, in pieces.
pub(crate) fn answer(request: u64, answer: Result<Answer, Error>) -> Vec<News> {
    let mut news = Vec::new();
    let answer = match answer {
        Ok(Answer::Children(names)) => {
            let (mut part, mut bytes) = (Vec::new(), 0);
            for name in names {
                bytes += name.len() + 8;
                part.push(name);
                if bytes > PIECE_BYTES {
                    news.push(News::Names { request, names: std::mem::take(&mut part) });
                    bytes = 0;
                }
            }
            Ok(AnswerOf::Children(part))
        }
        Ok(Answer::Below(zxid, all)) => {
            let (mut part, mut bytes) = (Vec::new(), 0);
            for (path, content) in all {
                let content = content.map(|(data, stat)| (Bytes::copy_from_slice(&data), stat));
                let znode = ZnodeOf { path, content };
                bytes += znode.size();
                part.push(znode);
                if bytes > PIECE_BYTES {
                    news.push(News::Znodes { request, znodes: std::mem::take(&mut part) });
                    bytes = 0;
                }
            }
            Ok(AnswerOf::Below(zxid, part))
        }
        Ok(Answer::Reply(_)) => Ok(AnswerOf::Done),
        Ok(Answer::Data(data, stat)) => Ok(AnswerOf::Data(Bytes::copy_from_slice(&data), stat)),
        Ok(Answer::Exists(stat)) => Ok(AnswerOf::Exists(stat)),
        Ok(Answer::Acl(acl, stat)) => Ok(AnswerOf::Acl(acl, stat)),
        Ok(Answer::Ids(ids)) => Ok(AnswerOf::Ids(ids)),
        Ok(Answer::Watching) => Ok(AnswerOf::Watching),
        Ok(Answer::Synced(zxid)) => Ok(AnswerOf::Synced(zxid)),
        Ok(Answer::Tree(_)) => Err(Refusal::Other { reason: "a whole tree".to_owned() }),
        Err(error) => Err(Refusal::of(error)),
    };
    news.push(News::Answer { request, answer });
    news
}

impl AnswerOf {
    /// With the pieces that came before.
    pub(crate) fn into_answer(self, pieces: Pieces) -> Answer {
        let Pieces { mut names, mut znodes } = pieces;
        match self {
            AnswerOf::Done => Answer::Reply(Reply::Done),
            AnswerOf::Data(data, stat) => Answer::Data(Arc::from(&data[..]), stat),
            AnswerOf::Exists(stat) => Answer::Exists(stat),
            AnswerOf::Children(rest) => {
                names.extend(rest);
                Answer::Children(names)
            }
            AnswerOf::Acl(acl, stat) => Answer::Acl(acl, stat),
            AnswerOf::Ids(ids) => Answer::Ids(ids),
            AnswerOf::Watching => Answer::Watching,
            AnswerOf::Synced(zxid) => Answer::Synced(zxid),
            AnswerOf::Below(zxid, rest) => {
                znodes.extend(rest);
                let znodes = znodes.into_iter().map(|ZnodeOf { path, content }| {
                    (path, content.map(|(data, stat)| (Arc::from(&data[..]), stat)))
                });
                Answer::Below(zxid, znodes.collect())
            }
        }
    }
}

impl Refusal {
    fn of(error: Error) -> Refusal {
        match error {
            Error::NoNode { path } => Refusal::NoNode { path },
            Error::NoAuth { path, permission } => Refusal::NoAuth { path, permission },
            Error::NoWatch { path } => Refusal::NoWatch { path },
            Error::TooOld { path, zxid, oldest } => Refusal::TooOld { path, zxid, oldest },
            Error::TooLarge { path, size, limit } => Refusal::TooLarge { path, size, limit },
            Error::FutureZxid { path, zxid, last } => Refusal::FutureZxid { path, zxid, last },
            other => Refusal::Other { reason: other.to_string() },
        }
    }

    pub(crate) fn into_error(self) -> Error {
        match self {
            Refusal::NoNode { path } => Error::NoNode { path },
            Refusal::NoAuth { path, permission } => Error::NoAuth { path, permission },
            Refusal::NoWatch { path } => Error::NoWatch { path },
            Refusal::TooOld { path, zxid, oldest } => Error::TooOld { path, zxid, oldest },
            Refusal::TooLarge { path, size, limit } => Error::TooLarge { path, size, limit },
            Refusal::FutureZxid { path, zxid, last } => Error::FutureZxid { path, zxid, last },
            Refusal::Other { reason } => Error::Stopped { reason },
        }
    }
}

impl Ask {
    /// About how many bytes it takes.
    pub(crate) fn size(&self) -> usize {
        const FIXED: usize = 64;
        FIXED
            + match self {
                Ask::Write(request) => crate::node::leader::admission::size(&request.command),
                Ask::Watch(held) => held.path.len(),
                Ask::Read { read, .. } => read.path().map_or(0, str::len),
                Ask::SetWatch { path, .. } | Ask::RemoveWatches { path, .. } => path.len(),
                Ask::Round { sessions, .. } => sessions.len() * 10,
                _ => 0,
            }
    }
}

impl News {
    /// About how many bytes it takes.
    pub(crate) fn size(&self) -> usize {
        const FIXED: usize = 64;
        let names = |names: &[String]| names.iter().map(|name| name.len() + 8).sum::<usize>();
        FIXED
            + match self {
                News::Event { event, .. } => {
                    let data = event.znode.as_ref().and_then(|(data, _)| data.as_ref());
                    event.path.len() + data.map_or(0, |data| data.len() + FIXED)
                }
                News::Names { names: of, .. } => names(of),
                News::Znodes { znodes, .. } => znodes.iter().map(ZnodeOf::size).sum(),
                News::Answer { answer: Ok(answer), .. } => match answer {
                    AnswerOf::Data(data, _) => data.len() + FIXED,
                    AnswerOf::Children(of) => names(of),
                    AnswerOf::Below(_, znodes) => znodes.iter().map(ZnodeOf::size).sum(),
                    AnswerOf::Acl(acl, _) => acl.len() * FIXED,
                    _ => FIXED,
                },
                News::Outcome { result: Ok(Reply::Multi(results)), .. } => {
                    results.len() * FIXED * 2
                }
                News::Outcome { .. } => FIXED * 2,
                News::Confirmed { refused, .. } => refused.len() * 10,
                News::Members { members, .. } => members
                    .iter()
                    .map(|member| FIXED * 2 + member.address.len() + member.zone.len())
                    .sum(),
                _ => 0,
            }
    }
}

/// Whether these can be the members of a cluster, and those who decide in it. Where one is may not be
/// known: another has moved to its address.
pub(crate) fn are_members(members: &[Member], availability: &Availability) -> bool {
    let Availability { voters, learners, outgoing, silent, has_leader: _, is_told: _ } =
        availability;
    let mut ids: Vec<NodeId> = members.iter().map(|member| member.node).collect();
    ids.sort_unstable();
    ids.dedup();
    !members.is_empty()
        && members.len() <= MEMBERS_MAX
        && ids.len() == members.len()
        && members.iter().all(Member::may_be_listed)
        && [voters, learners, outgoing, silent].iter().all(|nodes| nodes.len() <= MEMBERS_MAX)
}

impl ZnodeOf {
    fn size(&self) -> usize {
        const STAT: usize = 64;
        self.path.len() + self.content.as_ref().map_or(0, |(data, _)| data.len()) + STAT
    }
}
