//! `watch`: changes as they happen, printed or passed to a command.

use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use clap::Args;
use crossbeam_channel::RecvTimeoutError;
use quorate::{EventKind, Result, Session, WatchEvent, WatchMode};

use super::running::{Running, code};
use super::{ClusterArgs, interrupted, print};
use crate::{Exit, complain, text};

/// How often it is looked whether to end.
const PERIOD: Duration = Duration::from_millis(50);
/// How long a command has to end after SIGTERM, before it is killed.
const GRACE: Duration = Duration::from_secs(5);

/// What to watch.
#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    /// The znode. It need not exist.
    path: String,
    /// Watches all znodes below it, too.
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Ends after so many changes.
    #[arg(long)]
    count: Option<u64>,
    /// A command and its arguments, behind `--`: run for each change, one after the other, instead of printing it. It
    /// finds the change in `QUORATE_PATH`, `QUORATE_KIND` and `QUORATE_ZXID`. If it fails, the next change runs it again.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl WatchArgs {
    pub(super) fn run(&self, cluster: &ClusterArgs) -> Result<Exit> {
        let coordinator = cluster.coordinator()?;
        let session = cluster.session(&coordinator)?;
        if self.command.is_empty() {
            return self.follow(cluster, &session, || false);
        }
        let is_over = interrupted()?;
        self.follow(cluster, &session, || is_over.load(Ordering::Relaxed))
    }

    /// Watches until the end, which may be said from outside.
    pub(super) fn follow(
        &self,
        cluster: &ClusterArgs,
        session: &Session,
        is_over: impl Fn() -> bool,
    ) -> Result<Exit> {
        let mode = match self.recursive {
            true => WatchMode::PersistentRecursive,
            false => WatchMode::Persistent,
        };
        let watch = session.watch(&self.path, mode).wait()?;
        let mut left = self.count.unwrap_or(u64::MAX);
        while left > 0 {
            if is_over() {
                return Ok(Exit::Well);
            }
            let event = match watch.events().recv_timeout(PERIOD) {
                Ok(event) => event,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            match &self.command[..] {
                [] if cluster.json => {
                    print(format!("{}\n", text::json_line(&super::json(&event))).as_bytes())?;
                }
                [] => print(line(&event).as_bytes())?,
                [program, arguments @ ..] => {
                    if let Some(exit) = execute(program, arguments, &event, &is_over)? {
                        return Ok(exit);
                    }
                }
            }
            left -= 1;
        }
        if left == 0 {
            return Ok(Exit::Well);
        }
        complain(format_args!("the session is over ({:?}): watch again", session.state()));
        Ok(Exit::Unavailable)
    }
}

/// Runs a command for a change, and waits for its end. Returns the exit of the program if there is no such command, or
/// if it is over: then the command was stopped.
fn execute(
    program: &OsString,
    arguments: &[OsString],
    event: &WatchEvent,
    is_over: &impl Fn() -> bool,
) -> Result<Option<Exit>> {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    command.env("QUORATE_PATH", &*event.path).env("QUORATE_KIND", word(event.kind));
    command.env("QUORATE_ZXID", event.zxid.to_string());
    let mut running = match Running::start(command, GRACE, false)? {
        Ok(running) => running,
        Err(exit) => return Ok(Some(exit)),
    };
    let Some(status) = running.wait(is_over)? else {
        return Ok(Some(Exit::OfCommand(code(running.stop()?))));
    };
    if !status.success() {
        complain(format_args!("the command for {} failed: {status}", event.path));
    }
    Ok(None)
}

fn word(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Created => "created",
        EventKind::DataChanged => "changed",
        EventKind::Deleted => "deleted",
        EventKind::ChildrenChanged => "children",
        EventKind::Gap => "missed",
        _ => "other",
    }
}

fn line(event: &WatchEvent) -> String {
    format!("{:>10}  {:<8}  {}\n", event.zxid, word(event.kind), text::line(&event.path))
}
