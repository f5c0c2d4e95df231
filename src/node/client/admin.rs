//! Reports and an operator's actions, for the users of a client: any member that it is connected with passes
//! them on, whether it serves the client or not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Client, PeerMessage, Time};
use crate::node::admin;
use crate::node::admin::message::{AdminReply, AdminRequest};
use crate::node::io::RequestId;
use crate::node::query::Answer;
use crate::types::membership::NodeId;

/// After how long another member is asked. The first may wait for others itself.
const NEXT_AFTER: Duration = admin::PATIENCE.saturating_mul(2);
/// After how long there is no answer.
const GIVEN_UP_AFTER: Duration = NEXT_AFTER.saturating_mul(2);

/// The requests that are not answered yet, by their numbers.
#[derive(Debug, Default)]
pub(super) struct Administration {
    last: u64,
    open: BTreeMap<u64, Asked>,
}

#[derive(Debug)]
struct Asked {
    request: RequestId,
    asked: AdminRequest,
    until: Time,
    /// Who is asked now, and until when.
    at: Option<(NodeId, Time)>,
    /// Who was asked.
    tried: BTreeSet<NodeId>,
}

impl Client {
    pub(super) fn admin_asked(&mut self, request: RequestId, asked: AdminRequest) {
        self.administration.last += 1;
        let (number, until) = (self.administration.last, self.now.mono + GIVEN_UP_AFTER);
        let asked = Asked { request, asked, until, at: None, tried: BTreeSet::new() };
        self.administration.open.insert(number, asked);
    }

    pub(super) fn take_admin_reply(
        &mut self,
        from: NodeId,
        number: u64,
        replies: Vec<(NodeId, AdminReply)>,
    ) {
        let open = &mut self.administration.open;
        if open.get(&number).is_some_and(|asked| asked.tried.contains(&from))
            && let Some(asked) = open.remove(&number)
        {
            self.effects.reply(asked.request, Ok(Answer::Admin(replies)));
        }
    }

    /// Sends what was not sent yet, or in vain, and ends what has waited for too long.
    pub(super) fn send_admin_requests(&mut self) {
        if self.administration.open.is_empty() {
            return;
        }
        let now = self.now.mono;
        let up = self.members.iter().filter(|(_, of)| of.is_up).map(|(node, _)| *node);
        // Who serves it knows most.
        let members: Vec<NodeId> = self.member().into_iter().chain(up).collect();
        let mut over = Vec::new();
        for (number, asked) in &mut self.administration.open {
            if asked.until <= now {
                over.push(*number);
                continue;
            }
            if asked.at.is_some_and(|(node, until)| now < until && members.contains(&node)) {
                continue;
            }
            let next = members.iter().copied().find(|node| !asked.tried.contains(node));
            asked.at = next.map(|node| (node, now + NEXT_AFTER));
            if let Some(node) = next {
                asked.tried.insert(node);
                let message = PeerMessage::AdminRequest {
                    number: *number,
                    cluster: self.cluster,
                    relay: true,
                    asked: asked.asked.clone(),
                };
                self.effects.messages.push((node, message));
            }
        }
        for number in over {
            if let Some(asked) = self.administration.open.remove(&number) {
                self.effects.reply(asked.request, Ok(Answer::Admin(Vec::new())));
            }
        }
    }
}
