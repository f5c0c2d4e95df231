//! What drives a persistent ephemeral: one session after the other, and in each of them the znode.

use std::sync::Arc;
use std::time::Duration;

use super::PersistentEphemeral;
use super::create::{PendingCreate, ZnodeState};
use crate::api::session::Session;
use crate::api::watch::Watch;
use crate::recipes::Lost;
use crate::recipes::errors::{if_exists, unless_overtaken};
use crate::recipes::former_run::FormerEphemeral;
use crate::recipes::owned_ephemeral::OwnedEphemeral;
use crate::recipes::parents::Parents;
use crate::recipes::waiting::until_changed;
use crate::runtime::either::{Either, either};
use crate::types::error::{Error, Result};
use crate::types::path;

/// The pause before a write is tried again that was refused because disks are nearly full.
const ROOM_PAUSE: Duration = Duration::from_secs(1);

/// Returns its first session, and then a new one at each call.
pub(super) type Sessions = Box<dyn FnMut() -> Result<Session> + Send>;

/// A call that runs it. Dropping this closes it.
pub(super) struct Running {
    pub(super) ephemeral: PersistentEphemeral,
    pub(super) sessions: Sessions,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.ephemeral.end();
    }
}

impl Running {
    pub(super) async fn run(mut self) -> Result<()> {
        let ephemeral = self.ephemeral.clone();
        loop {
            let session = (self.sessions)()?;
            let Err(error) = ephemeral.run_in(&session.for_recipe()).await;
            ephemeral.set_state(ZnodeState::Missing);
            match error {
                Error::Stopped { .. } => return Err(error),
                error if error.is_session_lost() => {}
                error => return Err(error),
            }
            // Opening sessions may fail immediately each time.
            session.sleep(session.shared().limits.tick).await?;
        }
    }
}

impl PersistentEphemeral {
    async fn run_in(&self, session: &Session) -> Result<std::convert::Infallible> {
        let mut parents = Parents::of(session, path::parent(&self.path).unwrap_or("/"));
        let mut left = None;
        loop {
            if let Err(error) = parents.make().await {
                recover(session, error).await?;
                continue;
            }
            let ended = match self.create(session, left.take()).await {
                Ok(Some(ephemeral)) => self.maintain(&ephemeral).await,
                // Another write came first, perhaps the end of the former run's session.
                Ok(None) => self.find_left(session).await.map(|found| left = found),
                Err(error) => Err(error),
            };
            if let Err(error) = ended {
                recover(session, error).await?;
            }
        }
    }

    /// Returns the znode at the path if a former run of this instance has left it. Otherwise waits until
    /// the znode there, if there is one, is changed or deleted.
    async fn find_left(&self, session: &Session) -> Result<Option<FormerEphemeral>> {
        let left = FormerEphemeral::at(session, &self.path).await?;
        if left.is_none() {
            until_changed(session, &self.path).await?;
        }
        Ok(left)
    }

    /// Creates the znode, or takes over the one that was left. `None` if another write came first.
    async fn create(
        &self,
        session: &Session,
        left: Option<FormerEphemeral>,
    ) -> Result<Option<Arc<OwnedEphemeral>>> {
        let creating = {
            let mut state = self.state();
            // If it was closed just now, the next poll notices that.
            (!state.closed).then(|| {
                state.written = state.wanted;
                let creating =
                    PendingCreate::begin(session, &self.path, &state.data, left.as_ref());
                state.znode = ZnodeState::Creating(session.clone(), Arc::clone(&creating));
                creating
            })
        };
        let Some(creating) = creating else { return std::future::pending().await };
        let answer = creating.answer().await;
        let Some(stat) = unless_overtaken(answer)? else { return Ok(None) };
        let ephemeral = Arc::new(OwnedEphemeral::new(session, &self.path, &stat));
        // If it was closed in the meantime, this deletes the znode once more.
        self.set_state(ZnodeState::Exists(Arc::clone(&ephemeral)));
        Ok(Some(ephemeral))
    }

    /// Writes the latest data to the znode while it exists. Returns when somebody has deleted it.
    async fn maintain(&self, ephemeral: &Arc<OwnedEphemeral>) -> Result<()> {
        let mut watch = follow(ephemeral).await?;
        // The session is known to be alive now.
        self.change(|_| {});
        while let (Some(following), None) = (&watch, ephemeral.loss()) {
            let (data, wanted, written) = {
                let state = self.state();
                (Arc::clone(&state.data), state.wanted, state.written)
            };
            if wanted == written {
                if !self.changed(ephemeral, following, written).await {
                    // The application has removed the session's watches of this path.
                    watch = follow(ephemeral).await?;
                }
                continue;
            }
            match ephemeral.set(&data).await {
                Ok(_) => self.change(|state| state.written = wanted),
                Err(Error::NoNode { .. }) => break,
                Err(error) => recover(ephemeral.session(), error).await?,
            }
        }
        if ephemeral.loss() == Some(Lost::SessionOver) {
            ephemeral.session().check_alive()?;
        }
        // The tree shows deletions by the end of a session before the session's handles see that
        // end. A request is answered after it.
        while let Err(error) = ephemeral.session().in_turn().exists(&self.path).await {
            recover(ephemeral.session(), error).await?;
        }
        self.set_state(ZnodeState::Missing);
        if !self.again {
            return Err(Error::NoNode { path: self.path.to_string() });
        }
        Ok(())
    }

    /// Waits until the znode has changed, or the data to write differs from the written one.
    /// `false` if the watch is over.
    async fn changed(&self, ephemeral: &OwnedEphemeral, watch: &Watch, written: u64) -> bool {
        let wanted = self.until(|state| (state.wanted != written).then_some(()));
        match either(wanted, ephemeral.next(watch)).await {
            Either::One(()) => true,
            Either::Other(event) => event.is_some(),
        }
    }
}

/// Watches the znode; `None` if it is already gone.
async fn follow(ephemeral: &OwnedEphemeral) -> Result<Option<Watch>> {
    loop {
        match if_exists(ephemeral.watch().await) {
            Err(error) => recover(ephemeral.session(), error).await?,
            watch => return watch,
        }
    }
}

/// Waits a while if that may help.
pub(super) async fn recover(session: &Session, error: Error) -> Result<()> {
    match error {
        Error::Busy { .. } => session.sleep(session.shared().limits.tick).await,
        // An operator has to make room.
        Error::DiskLow { .. } => session.sleep(ROOM_PAUSE).await,
        error => Err(error),
    }
}
