//! Actions of operators: `move-leader`, `remove-member`, `expire`, `backup`.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use crossbeam_channel::{RecvTimeoutError, bounded};
use quorate::{Coordinator, Error, Result};
use serde_json::json;

use super::cluster::bytes;
use super::{ClusterArgs, Shown, is_watched, sessions, system};
use crate::Exit;
use crate::keys::DataKeyArgs;
use crate::text::line;

/// How often progress is shown.
const SHOWN_EVERY: Duration = Duration::from_millis(100);

/// A member.
#[derive(Debug, Args)]
pub(crate) struct MemberArgs {
    /// Its address, as `quorate members` shows it, or its id.
    address: String,
}

/// A session.
#[derive(Debug, Args)]
pub(crate) struct SessionArgs {
    /// Its id, as `quorate sessions` shows it, or its first digits, if no other id begins with them.
    session: String,
}

/// Where a backup goes.
#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    /// The file, which does not exist yet.
    file: PathBuf,
    /// Replaces the file, if it exists, once the backup is complete. A device or a pipe is not replaced: the backup is
    /// written into it.
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    keys: DataKeyArgs,
}

impl BackupArgs {
    pub(super) fn run(&self, cluster: &ClusterArgs) -> Result<Exit> {
        if !self.overwrite && self.file.symlink_metadata().is_ok() {
            return Err(Error::Refused {
                operation: format!("writing a backup to {}", self.file.display()),
                reason: "the file exists: give another name, or replace it with --overwrite"
                    .to_owned(),
            });
        }
        let coordinator = cluster.coordinator_with(&self.keys)?;
        // The session's sync makes sure that the backup has everything written before the command
        // began.
        let _session = cluster.session(&coordinator)?;
        let backup = with_progress(&coordinator, || coordinator.backup(&self.file).wait())?;
        let shown = Shown::new(format!("{}\n", line(&backup.to_string())), super::json(&backup));
        if self.file.metadata().is_ok_and(|there| !there.is_file()) {
            // It may be the standard output.
            eprintln!("{}", line(&backup.to_string()));
            return Ok(shown.exit);
        }
        cluster.print(shown)
    }
}

/// Calls `receive`, and shows on a terminal how many bytes have been received so far.
fn with_progress<T>(coordinator: &Coordinator, receive: impl FnOnce() -> Result<T>) -> Result<T> {
    if !is_watched() {
        return receive();
    }
    let received = || coordinator.metrics().wait().unwrap().received_bytes;
    let before = received();
    let (end, ended) = bounded::<()>(0);
    let show = || {
        while ended.recv_timeout(SHOWN_EVERY) == Err(RecvTimeoutError::Timeout) {
            let _ = write!(io::stderr(), "\r\x1b[K{} received", bytes(received() - before));
        }
        let _ = write!(io::stderr(), "\r\x1b[K");
    };
    std::thread::scope(|scope| {
        let shown = std::thread::Builder::new().name("progress".to_owned());
        shown.spawn_scoped(scope, show).map_err(system("starting a thread"))?;
        let result = receive();
        drop(end);
        result
    })
}

/// The name of the requester, for the audit log.
fn by() -> String {
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME"));
    format!(
        "{} with quorate, process {}",
        user.as_deref().unwrap_or("somebody"),
        std::process::id()
    )
}

fn act(
    cluster: &ClusterArgs,
    done: String,
    action: impl FnOnce(&Coordinator, &str) -> Result<()>,
) -> Result<Exit> {
    let coordinator = cluster.coordinator()?;
    coordinator.wait_ready(cluster.wait()).wait()?;
    action(&coordinator, &by())?;
    self::done(cluster, done)
}

fn done(cluster: &ClusterArgs, done: String) -> Result<Exit> {
    let json = json!({ "done": done });
    cluster.print(Shown::new(format!("{}\n", line(&done)), json))
}

impl MemberArgs {
    pub(super) fn lead(&self, cluster: &ClusterArgs) -> Result<Exit> {
        let address = &self.address;
        act(cluster, format!("{address} leads"), |coordinator, by| {
            coordinator.move_leader(address, by).wait()
        })
    }

    pub(super) fn remove(&self, cluster: &ClusterArgs) -> Result<Exit> {
        let address = &self.address;
        act(cluster, format!("{address} is a member no more"), |coordinator, by| {
            coordinator.remove_member(address, by).wait()
        })
    }
}

impl SessionArgs {
    pub(super) fn expire(&self, cluster: &ClusterArgs) -> Result<Exit> {
        let coordinator = cluster.coordinator()?;
        coordinator.wait_ready(cluster.wait()).wait()?;
        let session = sessions::find(&coordinator, &self.session)?;
        match coordinator.expire_session(session, &by()).wait() {
            // It has ended by itself meanwhile.
            Ok(()) | Err(Error::SessionExpired { .. }) => {
                done(cluster, format!("{session} is over"))
            }
            Err(error) => Err(error),
        }
    }
}
