//! `watch`: changes as they happen.

use clap::Args;
use quorate::{EventKind, Result, WatchEvent, WatchMode};

use super::{Cluster, print};
use crate::{Exit, complain, text};

/// What to watch.
#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// The znode. It need not exist.
    path: String,
    /// Watches all znodes below it, too.
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Ends after so many changes.
    #[arg(long)]
    count: Option<u64>,
}

impl Watch {
    pub(super) fn run(&self, cluster: &Cluster) -> Result<Exit> {
        let coordinator = cluster.coordinator()?;
        let session = cluster.session(&coordinator)?;
        let mode = match self.recursive {
            true => WatchMode::PersistentRecursive,
            false => WatchMode::Persistent,
        };
        let watch = session.watch(&self.path, mode)?;
        let mut left = self.count.unwrap_or(u64::MAX);
        while left > 0
            && let Some(event) = watch.recv()
        {
            let line = match cluster.json {
                true => format!("{}\n", text::json_line(&super::json(&event))),
                false => line(&event),
            };
            print(line.as_bytes())?;
            left -= 1;
        }
        if left == 0 {
            return Ok(Exit::Well);
        }
        complain(format_args!("the session is over ({:?}): watch again", session.state()));
        Ok(Exit::Unavailable)
    }
}

fn line(event: &WatchEvent) -> String {
    let what = match event.kind {
        EventKind::Created => "created",
        EventKind::DataChanged => "changed",
        EventKind::Deleted => "deleted",
        EventKind::ChildrenChanged => "children",
        EventKind::Gap => "missed",
        _ => "other",
    };
    format!("{:>10}  {what:<8}  {}\n", event.zxid, text::line(&event.path))
}
