//! What an operator does: `move-leader`, `remove-member`, `expire`, `backup`.

use std::path::PathBuf;

use clap::Args;
use quorate::{Coordinator, Error, Result, SessionId};
use serde_json::json;

use super::{Cluster, Shown};
use crate::Exit;

/// A member.
#[derive(Debug, Args)]
pub(crate) struct Member {
    /// Its address, as `quorate members` shows it, or its id.
    address: String,
}

/// A session.
#[derive(Debug, Args)]
pub(crate) struct SessionOf {
    /// Its id, as `quorate sessions` shows it.
    #[arg(value_parser = session)]
    session: SessionId,
}

fn session(text: &str) -> Result<SessionId, String> {
    serde_json::from_value(text.into()).map_err(|error| error.to_string())
}

/// Where a backup goes.
#[derive(Debug, Args)]
pub(crate) struct Backup {
    /// The file. What it holds is replaced once the backup is complete.
    file: PathBuf,
}

impl Backup {
    pub(super) fn run(&self, cluster: &Cluster) -> Result<Exit> {
        let coordinator = cluster.coordinator()?;
        // So it has all that was written before the command began.
        let _session = cluster.session(&coordinator)?;
        let backup = coordinator.backup(&self.file)?;
        cluster.print(Shown::new(format!("{backup}\n"), super::json(&backup)))
    }
}

/// Who asks, for the audit log.
fn by() -> String {
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME"));
    format!(
        "{} with quorate, process {}",
        user.as_deref().unwrap_or("somebody"),
        std::process::id()
    )
}

fn act(
    cluster: &Cluster,
    done: String,
    action: impl FnOnce(&Coordinator, &str) -> Result<()>,
) -> Result<Exit> {
    let coordinator = cluster.coordinator()?;
    coordinator.wait_ready(cluster.wait())?;
    action(&coordinator, &by())?;
    let json = json!({ "done": done });
    cluster.print(Shown::new(format!("{done}\n"), json))
}

impl Member {
    pub(super) fn lead(&self, cluster: &Cluster) -> Result<Exit> {
        let address = &self.address;
        act(cluster, format!("{address} leads"), |coordinator, by| {
            coordinator.move_leader(address, by)
        })
    }

    pub(super) fn remove(&self, cluster: &Cluster) -> Result<Exit> {
        let address = &self.address;
        act(cluster, format!("{address} is a member no more"), |coordinator, by| {
            coordinator.remove_member(address, by)
        })
    }
}

impl SessionOf {
    pub(super) fn expire(&self, cluster: &Cluster) -> Result<Exit> {
        let session = self.session;
        act(cluster, format!("{session} is over"), |coordinator, by| {
            coordinator.expire_session(session, by).map_err(|error| match error {
                Error::SessionExpired { session } => Error::Refused {
                    operation: format!("expiring the session {session}"),
                    reason: "there is no such session; `quorate sessions` lists them".to_owned(),
                },
                other => other,
            })
        })
    }
}
