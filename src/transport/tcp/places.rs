//! For whom there is room: the places of unlisted peers, and the files of the process.
//!
//! Clients leave some of both to operators, and both leave some to members ([`files::room`]). One address has at most
//! half of what a member serves. If there is no place for an operator or a member, it takes that of a client. A
//! member of the list is never refused.
//!
//! A client that has the members' own credential counts as an operator: what an operator runs with that credential is
//! a client, too.

use std::collections::BTreeMap;
use std::net::IpAddr;

use mio::Token;

use super::context::NetworkContext;
use super::incoming::Incoming;
use super::known_peers::{is_short, rank};
use super::shared::Counters;
use crate::node::replica::server::CLIENTS_MAX;
use crate::transport::files;
use crate::transport::handshake::{Hello, Refusal, RefusalCode};
use crate::types::right::Right;

impl Incoming {
    /// Makes sure that there is room for the sender of this hello. If there is none, closes the connection of a
    /// client that has fewer rights, or returns the refusal. `is_free`: no other process is connected as this node, so
    /// that the connection need not wait.
    pub(super) fn take_place(
        &mut self,
        context: &mut NetworkContext,
        token: Token,
        hello: &Hello,
        right: Right,
        is_free: bool,
    ) -> Result<(), Refusal> {
        let Some(connection) = self.connections.get(&token) else { return Ok(()) };
        let has_another = self.by_peer.contains_key(&hello.from);
        if has_another && is_free {
            // This connection replaces it.
            return Ok(());
        }
        let rank = rank(hello, right);
        // Those in handshake soon end, or give way.
        let open = connection.stream.socket.open_files().saturating_sub(self.handshaking.len());
        let address = connection.address.ip();
        let files_max = files::files_max();
        let room = files_max.map_or(CLIENTS_MAX, |most| files::room(most, Right::Client));
        let of_address_max = room.min(CLIENTS_MAX) / 2;
        if rank == Right::Client && !has_another && self.of_address(address) >= of_address_max {
            let text = format!(
                "there are {of_address_max} clients of this address, the most that one may have"
            );
            return Err(Refusal::new(RefusalCode::Full, text));
        }
        let has_place = has_another || context.known_peers.has_room(hello.from, rank);
        let lacks_file = files_max.is_some_and(|most| is_short(most, rank, open));
        if has_place && !lacks_file || self.displace_client(context, rank) {
            return Ok(());
        }
        let (code, text) = match rank {
            Right::Member if has_place => return Ok(()),
            Right::Member => {
                let node = hello.from;
                let text = format!(
                    "node {node:016x} is not a member known here, and there are too many such nodes"
                );
                (RefusalCode::UnknownPeer, text)
            }
            Right::Operator | Right::Client if has_place => {
                let most = files_max.unwrap_or_default();
                let text = format!(
                    "the process may have {most} files open (ulimit -n), and what is left is kept for others"
                );
                (RefusalCode::Full, text)
            }
            Right::Operator | Right::Client => {
                let text =
                    "there are too many clients, and what places are left are kept for others";
                (RefusalCode::Full, text.to_owned())
            }
        };
        Err(Refusal::new(code, text))
    }

    /// How many clients with a client's right there are from this address.
    fn of_address(&self, address: IpAddr) -> usize {
        let at = |token| (Right::Client, address, Token(token));
        self.clients.range(at(0)..=at(usize::MAX)).count()
    }

    /// Closes the connection of a client that may use less than this: the latest one from the address with most of
    /// them. Returns whether there is one.
    fn displace_client(&mut self, context: &mut NetworkContext, rank: Right) -> bool {
        let lowest = self.clients.first().map(|(of, ..)| *of).filter(|of| *of < rank);
        let mut by_address: BTreeMap<IpAddr, (usize, Token)> = BTreeMap::new();
        for (_, address, token) in self.clients.iter().take_while(|(of, ..)| Some(*of) == lowest) {
            let (count, latest) = by_address.entry(*address).or_insert((0, *token));
            (*count, *latest) = (*count + 1, *token);
        }
        let Some((count, token)) = by_address.into_values().max() else { return false };
        Counters::add(&context.shared.counters.connections_refused, 1);
        if let Some(suppressed) = self.failures.permit(context.now) {
            let address = self.connections.get(&token).map(|of| of.address);
            tracing::warn!(
                address = address.map(tracing::field::display),
                of_address = count,
                suppressed,
                "a client is disconnected: its place or its file is needed for a {rank}",
            );
        }
        self.remove(context, token);
        true
    }

    /// No file is left for another connection: closes one. Strangers only take the place of strangers, and if there
    /// is none, a member may be waiting. Returns whether a file is free.
    pub(super) fn free_file(&mut self, context: &mut NetworkContext) -> bool {
        if let Some(oldest) = self.handshaking.first().copied() {
            Counters::add(&context.shared.counters.connections_refused, 1);
            self.remove(context, oldest);
            return true;
        }
        self.displace_client(context, Right::Member)
    }
}
