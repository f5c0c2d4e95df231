//! Reports and an operator's actions, for the users of a client: any member that it is connected with passes
//! them on, whether it serves the client or not.
//!
//! A member that is cut off from most others also replies, but not for the whole cluster. So a reply
//! is complete only if it has the replies of most voters. Otherwise the client connects with all
//! members and asks them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Context;
use super::members::Members;
use crate::node::admin;
use crate::node::admin::message::{AdminReply, AdminRequest};
use crate::node::io::{Effects, RequestId, Time};
use crate::node::message::PeerMessage;
use crate::node::query::Answer;
use crate::types::error::Error;
use crate::types::membership::NodeId;

/// After this time all members are asked. A first member that has not replied by then waits for others,
/// or is silent itself.
const ALL_AFTER: Duration = Duration::from_millis(250);
/// How long the client waits for further replies: a bit longer than members wait for each other.
const OTHERS_WITHIN: Duration = admin::PATIENCE.saturating_add(Duration::from_millis(500));
/// After this time a request fails.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(4);

/// The requests that are not answered yet, by their numbers.
#[derive(Debug, Default)]
pub(super) struct OpenAdminRequests {
    last: u64,
    open: BTreeMap<u64, OpenAdminRequest>,
}

#[derive(Debug)]
struct OpenAdminRequest {
    request: RequestId,
    asked: AdminRequest,
    /// When all members are asked, if the first one has not replied.
    all_at: Time,
    until: Time,
    /// The members that were asked.
    tried: BTreeSet<NodeId>,
    replies: Vec<(NodeId, AdminReply)>,
}

impl OpenAdminRequest {
    /// The member that alone can answer.
    fn only(&self) -> Option<NodeId> {
        match self.asked {
            AdminRequest::Image { of, .. } => Some(of).filter(|of| *of != 0),
            _ => None,
        }
    }

    /// Whether every member may be asked.
    fn asks_all(&self, now: Time) -> bool {
        let is_image = matches!(self.asked, AdminRequest::Image { .. });
        !is_image && (now >= self.all_at || !self.replies.is_empty())
    }

    /// Takes in the replies that one member has gathered.
    fn merge(&mut self, mut more: Vec<(NodeId, AdminReply)>) {
        // A member that has reached more members also has the better list of members.
        if more.len() > self.replies.len() {
            std::mem::swap(&mut more, &mut self.replies);
        }
        let is_list = |reply: &AdminReply| matches!(reply, AdminReply::Members { .. });
        for (node, reply) in more {
            let has = |(of, other): &(NodeId, AdminReply)| *of == node && !is_list(other);
            if !is_list(&reply) && !self.replies.iter().any(has) {
                self.replies.push((node, reply));
            }
        }
    }

    /// Whether most voters have replied, or the member that was to act has.
    fn is_complete(&self) -> bool {
        if !matches!(self.asked, AdminRequest::Report | AdminRequest::Sessions { .. }) {
            return self.replies.iter().any(|(_, reply)| !matches!(reply, AdminReply::NoLeader));
        }
        let (mut voters, mut replied) = (BTreeSet::new(), BTreeSet::new());
        for (node, reply) in &self.replies {
            match reply {
                AdminReply::Members { members } => {
                    let votes = members.iter().filter(|(_, votes)| *votes);
                    voters.extend(votes.map(|(member, _)| member.node));
                }
                AdminReply::Report(_) | AdminReply::Sessions { .. } => {
                    replied.insert(*node);
                }
                _ => {}
            }
        }
        2 * voters.intersection(&replied).count() > voters.len()
    }
}

impl OpenAdminRequests {
    pub(super) fn ask(&mut self, request: RequestId, asked: AdminRequest, now: Time) {
        self.last += 1;
        let asked = OpenAdminRequest {
            request,
            asked,
            all_at: now + ALL_AFTER,
            until: now + GIVEN_UP_AFTER,
            tried: BTreeSet::new(),
            replies: Vec::new(),
        };
        self.open.insert(self.last, asked);
    }

    pub(super) fn take_reply(
        &mut self,
        from: NodeId,
        number: u64,
        replies: Vec<(NodeId, AdminReply)>,
        now: Time,
    ) {
        let Some(asked) = self.open.get_mut(&number) else { return };
        if !asked.tried.contains(&from) {
            return;
        }
        asked.merge(replies);
        if asked.is_complete() {
            asked.until = now;
        } else {
            asked.all_at = asked.all_at.min(now);
            let last = (asked.all_at + OTHERS_WITHIN).max(now + ALL_AFTER);
            asked.until = asked.until.min(last);
        }
    }

    /// The members that the client is to be connected with, so that they can be asked.
    pub(super) fn asked_members(&self, members: &Members, now: Time) -> BTreeSet<NodeId> {
        let mut wanted = BTreeSet::new();
        for asked in self.open.values() {
            wanted.extend(asked.only());
            if asked.asks_all(now) {
                wanted.extend(members.all());
            }
        }
        wanted
    }

    /// Ends the requests that are complete or have waited for too long.
    pub(super) fn end(&mut self, members: &mut Members, cx: &mut Context) {
        let now = cx.now.mono;
        let over = self.open.iter().filter(|(_, asked)| asked.until <= now);
        let over: Vec<u64> = over.map(|(number, _)| *number).collect();
        for number in over {
            members.have_changed = true;
            if let Some(asked) = self.open.remove(&number) {
                cx.effects.reply(asked.request, Ok(Answer::Admin(asked.replies)));
            }
        }
        members.have_changed |= !self.asked_members(members, now).is_empty();
    }

    /// Sends the requests that were not sent yet, or that got no reply, to members of this cluster.
    pub(super) fn send(
        &mut self,
        cluster: u64,
        server: Option<NodeId>,
        members: &Members,
        cx: &mut Context,
    ) {
        if self.open.is_empty() {
            return;
        }
        // The member that serves this client knows most.
        let members: Vec<NodeId> = server.into_iter().chain(members.up()).collect();
        for (number, asked) in &mut self.open {
            let mut untried: Vec<NodeId> = match asked.only() {
                Some(only) => vec![only],
                None => members.clone(),
            };
            untried.retain(|node| members.contains(node) && !asked.tried.contains(node));
            let waits = asked.tried.iter().any(|node| members.contains(node));
            if !asked.asks_all(cx.now.mono) {
                untried.truncate(if waits { 0 } else { 1 });
            }
            for node in untried {
                if asked.tried.insert(node) {
                    let (number, asked) = (*number, asked.asked.clone());
                    let relay = true;
                    let message =
                        PeerMessage::AdminRequest { number, cluster, relay, asked, asker: None };
                    cx.send(node, message);
                }
            }
        }
    }

    /// Ends all requests, since the client stops.
    pub(super) fn stop(&mut self, error: &Error, effects: &mut Effects) {
        for (_, asked) in std::mem::take(&mut self.open) {
            effects.reply(asked.request, Err(error.clone()));
        }
    }
}
