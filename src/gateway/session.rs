//! The session of a client.

use std::sync::Arc;
use std::time::Duration;

use crate::api::support::{Ask, NodeShared, RequestOrigin, SessionShared, Tree};
use crate::types::session::SessionState;

/// Which session a client has, and what becomes of it when the connection ends or the client is silent.
pub(super) struct ClientSession {
    /// Set by the handshake.
    held: Option<Arc<SessionShared>>,
    resumed: bool,
    /// The tree that it reads without a quorum, when its session is not one of the cluster: see
    /// `read_only`.
    alone: Option<Arc<Tree>>,
    /// When the client last sent a packet that keeps its session alive.
    pub(super) last_received: Duration,
}

impl ClientSession {
    pub(super) fn none(now: Duration) -> ClientSession {
        ClientSession { held: None, resumed: false, alone: None, last_received: now }
    }

    pub(super) fn begin(&mut self, session: Arc<SessionShared>, resumed: bool) {
        (self.held, self.resumed) = (Some(session), resumed);
    }

    /// It has a session that the cluster does not know, and reads this tree.
    pub(super) fn begin_alone(&mut self, session: SessionShared, tree: Arc<Tree>) {
        (self.held, self.alone) = (Some(Arc::new(session)), Some(tree));
    }

    /// The session is closed, or was never one.
    pub(super) fn end(&mut self) {
        self.held = None;
    }

    pub(super) fn get(&self) -> Option<&Arc<SessionShared>> {
        self.held.as_ref()
    }

    pub(super) fn alone(&self) -> Option<&Arc<Tree>> {
        self.alone.as_ref()
    }

    /// Whether nothing was received from the client for the whole timeout of its session.
    pub(super) fn is_silent(&self, now: Duration, handshake: Duration) -> bool {
        let timeout = self.held.as_ref().map_or(handshake, |session| session.timeout());
        now.saturating_sub(self.last_received) > timeout
    }

    /// Closes the session of a silent client, whose connection ends.
    pub(super) fn expire(&mut self, shared: &NodeShared) {
        if let Some(session) = self.held.take()
            && self.alone.is_none()
        {
            shared.close_session(&session);
        }
    }

    /// The socket is closed: leaves the session open, so that the client can resume it, here or
    /// elsewhere. `closes`: it is being closed.
    pub(super) fn leave(&mut self, closes: bool, shared: &NodeShared) {
        let Some(session) = self.held.take() else { return };
        // Detaching a session would take back its close.
        if closes || self.alone.is_some() || shared.detach(&session) {
            return;
        }
        // Without effect if the session does not belong to this connection any more.
        if self.resumed || session.state().is_final() {
            let abandon = Ask::abandon(SessionState::Detached);
            shared.ask_and_forget(RequestOrigin::Holder(session), abandon);
        } else {
            // The client does not know of its session.
            shared.close_session(&session);
        }
    }
}
