//! What a member tells the others of its troubles, so that they know the reason when it is silent later.
//!
//! A member whose disk is full or hangs, or whose certificate has expired, stops, or does not start again. From then
//! on it is one that refuses connections, like any process that is not there. So it reports such a trouble to all
//! members while it has one, and the reason for which it stops. They keep its last report.

use std::collections::BTreeMap;
use std::time::Duration;

use super::context::Context;
use super::io::{HostFacts, Time};
use super::message::PeerMessage;
use super::raft::core::Raft;
use super::room::Room;
use super::timings::{REQUEST_PERIOD, REQUEST_TIME};
use crate::types::certificate::EXPIRES_SOON;
use crate::types::membership::NodeId;

/// The longest report, in characters.
const TEXT_MAX: usize = 400;

/// This member's troubles, and what the others have told of theirs.
#[derive(Debug, Default)]
pub(super) struct Troubles {
    /// What only the host knows of this one.
    pub(super) facts: HostFacts,
    /// What the others were last told, and when.
    told: String,
    told_at: Time,
    others: BTreeMap<NodeId, (Time, String)>,
}

impl Troubles {
    /// Tells the others what is wrong with this member: when that changes, and repeatedly, for those that have just
    /// been connected.
    pub(super) fn tell(&mut self, raft: &Raft, room: &Room, cx: &mut Context) {
        let now = cx.now.mono;
        if now < self.told_at + REQUEST_PERIOD {
            return;
        }
        let text = self.text(room, cx);
        let is_due = !text.is_empty() && now >= self.told_at + REQUEST_TIME;
        if is_due || text != self.told {
            (self.told, self.told_at) = (text.clone(), now);
            cx.send_all(raft.others(), &PeerMessage::Trouble { text });
        }
    }

    /// Tells the others why this member stops.
    pub(super) fn stop(&self, reason: &str, raft: &Raft, cx: &mut Context) {
        let text = format!("it stops: {reason}");
        cx.send_all(raft.others(), &PeerMessage::Trouble { text });
    }

    /// What is wrong; empty if nothing is.
    fn text(&self, room: &Room, cx: &Context) -> String {
        let mut texts = Vec::new();
        if room.is_low {
            let free = match room.free() {
                Some(free) if free >= 1 << 20 => format!("{} MiB", free >> 20),
                free => format!("{} B", free.unwrap_or(0)),
            };
            texts.push(format!("its disk is nearly full: {free} of room"));
        }
        if let Some(waits) = self.disk_waits(cx.now.mono) {
            texts.push(format!("its disk has not answered for {} s", waits.as_secs()));
        }
        if let Some((name, expires_in)) = self.certificate(cx.now.wall_ms) {
            match expires_in {
                ..=0 => texts.push(format!("{name} has expired")),
                1..=3600 => texts.push(format!("{name} expires within the hour")),
                3601..=EXPIRES_SOON => {
                    texts.push(format!("{name} expires within {} h", expires_in / 3600 + 1));
                }
                _ => {}
            }
        }
        texts.join("; ")
    }

    /// For how long the disk has not answered, if that is long.
    pub(super) fn disk_waits(&self, now: Time) -> Option<Duration> {
        self.facts.disk_hangs_since.map(|since| now.saturating_sub(since))
    }

    /// The certificate that expires first, and in how many seconds.
    pub(super) fn certificate(&self, wall_ms: u64) -> Option<(&str, i64)> {
        let first = self.facts.certificate.as_ref()?;
        Some((&first.name, first.after(wall_ms)))
    }

    /// A member tells what is wrong with it; nothing any more, if the text is empty.
    pub(super) fn note(&mut self, from: NodeId, text: &str, now: Time) {
        if text.is_empty() {
            self.others.remove(&from);
        } else {
            let text = text.chars().filter(|c| !c.is_control()).take(TEXT_MAX).collect();
            self.others.insert(from, (now, text));
        }
    }

    /// A member is connected. What its former process has told is no longer true.
    pub(super) fn connected(&mut self, peer: NodeId) {
        self.others.remove(&peer);
    }

    /// The members have changed.
    pub(super) fn members_changed(&mut self, raft: &Raft) {
        self.others.retain(|node, _| raft.is_member(*node));
    }

    /// What a member last told, and when, if something was wrong.
    pub(super) fn last(&self, node: NodeId) -> Option<&(Time, String)> {
        self.others.get(&node)
    }
}
