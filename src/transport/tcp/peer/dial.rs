//! Reaching a peer: looking up its name, connecting, and sending the hello.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::AcqRel;
use std::time::Duration;

use mio::Token;
use mio::event::Event;

use super::{DialledPeer, Link};
use crate::security::Security;
use crate::transport::handshake::{HANDSHAKE_BYTES_MAX, Hello};
use crate::transport::names::{Answer, look_up_apart};
use crate::transport::tcp::HelperResult;
use crate::transport::tcp::driver::Context;
use crate::transport::tcp::failure::{Failure, describe};
use crate::transport::tcp::outgoing_connection::{OutgoingConnection, Phase};
use crate::types::version::MEMBERS_SINCE;

/// The most addresses tried for one name.
const ADDRESSES_MAX: usize = 8;

/// A peer's own connection triggers an attempt at most this often.
const NUDGE_PAUSE: Duration = Duration::from_millis(50);

impl DialledPeer {
    /// Starts an attempt.
    pub(in crate::transport::tcp) fn dial(&mut self, context: &mut Context) -> Result<(), Failure> {
        self.tried_at = context.now;
        if let Ok(address) = self.address.parse::<SocketAddr>() {
            return self.connect(context, vec![address].into_iter(), "");
        }
        self.attempt = context.token();
        self.link = Link::Resolving;
        self.arm(context, Some(context.now + context.options.connect_timeout));
        let (target, attempt) = (self.target, self.attempt);
        let answer_tx = context.results_tx.clone();
        let shared = Arc::clone(&context.shared);
        let done = move |answer: Answer| {
            shared.look_ups.fetch_sub(1, AcqRel);
            let addresses = answer.map(|found| found.into_iter().take(ADDRESSES_MAX).collect());
            if answer_tx.send(HelperResult::Resolved { target, attempt, addresses }).is_ok() {
                shared.wake();
            }
        };
        let look_ups = &context.shared.look_ups;
        if look_ups.fetch_add(1, AcqRel) >= context.options.look_ups_max {
            look_ups.fetch_sub(1, AcqRel);
            return Err(Failure::passing("too many names are being looked up already"));
        }
        if let Err(error) = look_up_apart(&context.options.resolver, self.address.clone(), done) {
            look_ups.fetch_sub(1, AcqRel);
            let reason = format!("cannot start a thread to look up names: {error}");
            return Err(Failure::passing(reason));
        }
        Ok(())
    }

    /// A look-up has finished.
    pub(in crate::transport::tcp) fn resolved(
        &mut self,
        context: &mut Context,
        attempt: Token,
        addresses: Result<Vec<SocketAddr>, String>,
    ) -> Result<(), Failure> {
        if self.attempt != attempt || !matches!(self.link, Link::Resolving) {
            return Ok(());
        }
        let addresses = addresses.map_err(Failure::passing)?;
        self.connect(context, addresses.into_iter(), "the name has no address")
    }

    /// This peer has just connected to this node, so it is alive: dials it before the pause is
    /// over.
    pub(in crate::transport::tcp) fn nudge(
        &mut self,
        context: &mut Context,
    ) -> Result<(), Failure> {
        let at = self.tried_at + NUDGE_PAUSE;
        match self.link {
            Link::Waiting if at <= context.now => self.dial(context),
            Link::Waiting if self.timer.is_some_and(|timer| at < timer) => {
                self.arm(context, Some(at));
                Ok(())
            }
            Link::Waiting | Link::Resolving | Link::Open(_) => Ok(()),
        }
    }

    /// Connects to the first of `addresses` that can be tried; `reason` is the error if there is
    /// none.
    pub(super) fn connect(
        &mut self,
        context: &mut Context,
        mut addresses: std::vec::IntoIter<SocketAddr>,
        reason: &str,
    ) -> Result<(), Failure> {
        self.disconnect(context);
        let mut reason = reason.to_owned();
        while let Some(address) = addresses.next() {
            let rest = addresses.clone();
            if matches!(context.options.security, Security::Loopback)
                && !address.ip().to_canonical().is_loopback()
            {
                reason = format!("{address} is not on the loopback, and this node has no keys");
                continue;
            }
            match OutgoingConnection::begin(context, address, rest) {
                Ok(connection) => {
                    context.dialled.insert(connection.token, self.target);
                    self.link = Link::Open(Box::new(connection));
                    self.arm(context, Some(context.now + context.options.connect_timeout));
                    return Ok(());
                }
                Err(error) => reason = describe(&error),
            }
        }
        Err(Failure::passing(reason))
    }

    pub(in crate::transport::tcp) fn ready(
        &mut self,
        context: &mut Context,
        event: &Event,
    ) -> Result<(), Failure> {
        let Link::Open(connection) = &mut self.link else {
            return Ok(());
        };
        if connection.token != event.token() {
            return Ok(());
        }
        if connection.phase == Phase::Connecting {
            match connection.is_connected() {
                Ok(false) => return Ok(()),
                Ok(true) => self.greet(context)?,
                Err(error) => return self.connect_elsewhere(context, &describe(&error)),
            }
        } else if event.is_writable() {
            connection.writable = true;
        }
        // Read first: a refusal says more than the broken pipe that follows it.
        self.read(context)?;
        self.flush(context)
    }

    pub(super) fn connect_elsewhere(
        &mut self,
        context: &mut Context,
        reason: &str,
    ) -> Result<(), Failure> {
        let rest = match &mut self.link {
            Link::Open(connection) => std::mem::take(&mut connection.rest),
            Link::Waiting | Link::Resolving => Vec::new().into_iter(),
        };
        self.connect(context, rest, reason)
    }

    /// The connection is made: sends the hello.
    pub(super) fn greet(&mut self, context: &mut Context) -> Result<(), Failure> {
        let Link::Open(connection) = &mut self.link else {
            return Ok(());
        };
        connection.stream.socket.set_nodelay(true)?;
        connection.phase = Phase::Greeting;
        connection.writable = true;
        let to = self.target.id();
        let version = self.lowered_to.unwrap_or(context.local.version);
        let is_nobody = context.is_client() || context.local.cluster == 0;
        if version < MEMBERS_SINCE && (to == 0 || is_nobody) {
            return Err(Failure::permanent(format!(
                "version {version} is the highest that both can do, in which only members of a cluster \
                 talk; that needs version {MEMBERS_SINCE}"
            )));
        }
        let hello = Hello::new(&context.local, version, to);
        connection
            .queue
            .push(HANDSHAKE_BYTES_MAX, |buffer| hello.encode(buffer))
            .map_err(|rejected| Failure::passing(format!("cannot greet: {rejected:?}")))?;
        self.arm(context, Some(context.now + context.options.handshake_timeout));
        Ok(())
    }
}
