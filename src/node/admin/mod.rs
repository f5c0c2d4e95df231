//! Reports of the members, and an operator's actions.
//!
//! A request comes from a user of this node, or from a client. The node that gets it passes it on to
//! all members, or to the leader alone, and gathers their replies for as long as [`PATIENCE`]. So
//! this works without a leader, and a user who reaches one member gets the reports of all.
//!
//! Requests and replies are not in the log. An action makes its changes by the leader's own
//! entries.

mod actions;
mod images;
pub(crate) mod message;
mod recent;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use crate::node::context::Context;
use crate::node::io::{Effects, RequestId, Time};
use crate::node::message::PeerMessage;
use crate::node::query::Answer;
use crate::node::sessions::audit::{AdminLine, Origin};
use crate::types::error::Error;
use crate::types::membership::NodeId;
use crate::types::warnings::Warnings;
use images::Images;
use message::{AdminReply, AdminRequest, Asker};
use recent::RecentHistograms;

/// How long replies are waited for.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);
/// How many requests may wait for replies.
pub(in crate::node) const GATHERED_MAX: usize = 64;
/// How many of them may be of clients without an operator's right, so that operators have room.
pub(in crate::node) const GATHERED_OF_CLIENTS_MAX: usize = 48;
/// The longest name of the operator who asks for an action, in characters.
const NAME_MAX: usize = 200;
/// How many lines about refused requests the audit log gets in five seconds.
const REFUSALS_LOGGED: u32 = 50;

/// The requests that wait for replies of other members.
#[derive(Debug)]
pub(in crate::node) struct Administration {
    last: u64,
    open: BTreeMap<u64, GatheringRequest>,
    /// The lines about what was refused. Whoever is refused may ask as often as it likes.
    pub(in crate::node) refusals: Warnings<Time>,
    pub(in crate::node) images: Images,
    pub(in crate::node) recent: RecentHistograms,
    /// The addresses of this instance's admin endpoints, oldest first.
    endpoints: Vec<SocketAddr>,
}

#[derive(Debug)]
struct GatheringRequest {
    asker: ReplyReceiver,
    until: Time,
    waiting: BTreeSet<NodeId>,
    replies: Vec<(NodeId, AdminReply)>,
    /// A client's request for an action, which has a line in the audit log.
    noted: Option<(AdminRequest, Asker)>,
}

/// The receiver of the replies.
#[derive(Clone, Copy, Debug)]
pub(in crate::node) enum ReplyReceiver {
    User(RequestId),
    Peer { node: NodeId, number: u64 },
}

impl Default for Administration {
    fn default() -> Administration {
        Administration {
            last: 0,
            open: BTreeMap::new(),
            refusals: Warnings::new(REFUSALS_LOGGED),
            images: Images::default(),
            recent: RecentHistograms::default(),
            endpoints: Vec::new(),
        }
    }
}

impl Administration {
    /// An endpoint listens here from now on, or no longer.
    pub(in crate::node) fn set_endpoint(&mut self, address: SocketAddr, listens: bool) {
        self.endpoints.retain(|known| *known != address);
        if listens {
            self.endpoints.push(address);
        }
    }

    /// The address of the newest endpoint that listens.
    pub(in crate::node) fn endpoint(&self) -> Option<SocketAddr> {
        self.endpoints.last().copied()
    }

    /// How many requests of clients wait that have no operator's right.
    pub(in crate::node) fn of_clients(&self, is_client: impl Fn(NodeId) -> bool) -> usize {
        let of_client = |gathered: &&GatheringRequest| match gathered.asker {
            ReplyReceiver::User(_) => false,
            ReplyReceiver::Peer { node, .. } => is_client(node),
        };
        self.open.values().filter(of_client).count()
    }

    /// A member has replied.
    pub(in crate::node) fn take_reply(
        &mut self,
        from: NodeId,
        number: u64,
        replies: Vec<(NodeId, AdminReply)>,
        cx: &mut Context,
    ) {
        let Some(gathered) = self.open.get_mut(&number) else { return };
        if gathered.waiting.remove(&from) {
            gathered.replies.extend(replies.into_iter().filter(|(node, _)| *node == from).take(1));
        }
        self.end_gathered(cx);
    }

    /// This peer will not reply.
    pub(in crate::node) fn peer_lost(&mut self, peer: NodeId, cx: &mut Context) {
        self.images.peer_lost(peer);
        for gathered in self.open.values_mut() {
            gathered.waiting.remove(&peer);
        }
        self.end_gathered(cx);
    }

    /// Replies to the requests that wait for no member any more, or have waited for too long.
    pub(in crate::node) fn end_gathered(&mut self, cx: &mut Context) {
        let now = cx.now.mono;
        self.images.tidy(now);
        self.recent.note(&cx.metrics, now);
        let all = std::mem::take(&mut self.open).into_iter();
        let is_done = |(_, of): &(u64, GatheringRequest)| of.waiting.is_empty() || of.until <= now;
        let (done, open): (BTreeMap<_, _>, BTreeMap<_, _>) = all.partition(is_done);
        self.open = open;
        for gathered in done.into_values() {
            gathered.note();
            gathered.asker.reply(gathered.replies, cx);
        }
    }

    /// Whether it works on so many requests that it takes no more.
    pub(in crate::node) fn is_full(&self) -> bool {
        self.open.len() >= GATHERED_MAX
    }

    /// Asks these members, and replies when all of them have: with their replies behind these.
    pub(in crate::node) fn gather(
        &mut self,
        asker: ReplyReceiver,
        replies: Vec<(NodeId, AdminReply)>,
        waiting: BTreeSet<NodeId>,
        (cluster, asked, of): (u64, &AdminRequest, Option<Asker>),
        cx: &mut Context,
    ) {
        if waiting.is_empty() {
            return asker.reply(replies, cx);
        }
        self.last += 1;
        let number = self.last;
        for to in &waiting {
            let (asked, asker, relay) = (asked.clone(), of.clone(), false);
            cx.send(*to, PeerMessage::AdminRequest { number, cluster, relay, asked, asker });
        }
        let until = cx.now.mono + PATIENCE;
        let noted = of.filter(|_| matches!(asked, AdminRequest::Act { .. }));
        let noted = noted.map(|of| (asked.clone(), of));
        self.open.insert(number, GatheringRequest { asker, until, waiting, replies, noted });
    }

    /// Replies to all waiting requests, since this member stops.
    pub(in crate::node) fn refuse_gathered(&mut self, error: &Error, effects: &mut Effects) {
        for gathered in std::mem::take(&mut self.open).into_values() {
            match gathered.asker {
                ReplyReceiver::User(request) => effects.reply(request, Err(error.clone())),
                // A client asks another member when it has lost this one.
                ReplyReceiver::Peer { .. } => {}
            }
        }
    }
}

impl GatheringRequest {
    /// Writes a line about what the leader has replied to a client's action, which names the client to it.
    fn note(&self) {
        let Some((AdminRequest::Act { action, by, after }, of)) = &self.noted else { return };
        let reply = self.replies.iter().map(|(_, reply)| reply).next();
        if reply.is_some_and(|reply| after.is_some_and(|after| after.is_repeated(reply))) {
            return;
        }
        let result = reply.map_or("the leader did not reply".to_owned(), |of| format!("{of:?}"));
        AdminLine {
            action: format!("{action:?}"),
            by: &printable(by),
            origin: Origin::client(of.client, &of.connection),
            via: None,
            held_by: None,
            result,
        }
        .write(None);
    }
}

/// What an instance calls itself, as a line shows it.
pub(in crate::node) fn printable(by: &str) -> String {
    by.chars().filter(|c| !c.is_control()).take(NAME_MAX).collect()
}

impl ReplyReceiver {
    pub(in crate::node) fn reply(self, replies: Vec<(NodeId, AdminReply)>, cx: &mut Context) {
        match self {
            ReplyReceiver::User(request) => cx.effects.reply(request, Ok(Answer::Admin(replies))),
            ReplyReceiver::Peer { node, number } => {
                cx.send(node, PeerMessage::AdminReply { number, replies });
            }
        }
    }
}
