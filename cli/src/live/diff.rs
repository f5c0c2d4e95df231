//! `diff`: what differs between two backups, or between a backup and the running cluster.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::DirBuilder;
use std::path::PathBuf;

use clap::Args;
use quorate::{Error, Result, Snapshot, Stat};
use serde_json::{Value, json};

use super::cluster::bytes;
use super::{ClusterArgs, Shown, json_data, system};
use crate::Exit;
use crate::keys::DataKeyArgs;
use crate::text::line;

/// What to compare.
#[derive(Debug, Args)]
pub(crate) struct DiffArgs {
    /// A backup: the state before.
    before: PathBuf,
    /// Another one: the state after. Without it, that is the running cluster, of which a backup is taken for this.
    after: Option<PathBuf>,
    /// Only this znode and what is below it.
    #[arg(long, default_value = "/")]
    path: String,
    #[command(flatten)]
    keys: DataKeyArgs,
}

/// A folder that nobody else can read or has made, and that is removed at the end.
struct TemporaryFolder(PathBuf);

impl TemporaryFolder {
    fn new() -> Result<TemporaryFolder> {
        let folder = std::env::temp_dir().join(format!("quorate-diff-{}", std::process::id()));
        let mut builder = DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&folder).map_err(system("making a folder for a backup"))?;
        Ok(TemporaryFolder(folder))
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        // What is left there is private.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A znode on one side.
#[derive(Clone, Copy)]
struct ComparedZnode<'a> {
    data: &'a [u8],
    stat: Stat,
}

impl ComparedZnode<'_> {
    /// What a person has written: neither numbers of versions nor times.
    fn is_as(&self, other: &ComparedZnode<'_>) -> bool {
        let kind = |stat: &Stat| (stat.is_container, stat.ttl, stat.ephemeral_owner);
        self.data == other.data && kind(&self.stat) == kind(&other.stat)
    }

    fn json(&self) -> Value {
        json!({ "data": json_data(self.data), "stat": super::json(self.stat) })
    }
}

impl DiffArgs {
    pub(super) fn run(&self, cluster: &ClusterArgs) -> Result<Exit> {
        let before = self.keys.read_backup(&self.before)?;
        let after = match &self.after {
            Some(file) => self.keys.read_backup(file)?,
            None => self.running(cluster)?,
        };
        cluster.print(self.compare(&before, &after)?)
    }

    /// The state of the running cluster, of one moment.
    fn running(&self, cluster: &ClusterArgs) -> Result<Snapshot> {
        is_named(cluster)?;
        let coordinator = cluster.coordinator_with(&self.keys)?;
        let _session = cluster.session(&coordinator)?;
        let folder = TemporaryFolder::new()?;
        let file = folder.0.join("backup");
        coordinator.backup(&file).wait()?;
        self.keys.read_backup(&file)
    }

    fn compare(&self, before: &Snapshot, after: &Snapshot) -> Result<Shown> {
        let (before, after) = (self.znodes(before)?, self.znodes(after)?);
        if before.is_empty() && after.is_empty() {
            return Err(Error::NoNode { path: self.path.clone() });
        }
        let (mut text, mut changes) = (String::new(), Vec::new());
        let mut tell = |sign, path: &str, note: String, change: Value| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{sign} {}  ({note})", line(path));
            changes.push(change);
        };
        let mut all: Vec<&Vec<&str>> = before.keys().chain(after.keys()).collect();
        all.sort_unstable();
        all.dedup();
        for names in all {
            let path = format!("/{}", names.join("/"));
            let size = |side: &ComparedZnode<'_>| bytes(side.data.len() as u64);
            match (before.get(names), after.get(names)) {
                (Some(old), None) => {
                    let change = json!({ "path": path, "change": "deleted", "before": old.json() });
                    tell('-', &path, size(old), change);
                }
                (None, Some(new)) => {
                    let change = json!({ "path": path, "change": "created", "after": new.json() });
                    tell('+', &path, size(new), change);
                }
                (Some(old), Some(new)) if !old.is_as(new) => {
                    let change = json!({ "path": path, "change": "changed", "before": old.json(), "after": new.json() });
                    let note = format!("{}, was {}", size(new), size(old));
                    tell('~', &path, note, change);
                }
                _ => {}
            }
        }
        let exit = if changes.is_empty() { Exit::Well } else { Exit::Failed };
        Ok(Shown { exit, ..Shown::new(text, Value::Array(changes)) })
    }

    /// The znodes of a state by the names in their paths, so that parents come before their children.
    fn znodes<'a>(&self, state: &'a Snapshot) -> Result<BTreeMap<Vec<&'a str>, ComparedZnode<'a>>> {
        if state.exists(&self.path)?.is_none() {
            return Ok(BTreeMap::new());
        }
        let names = |path: &'a str| path.split('/').filter(|name| !name.is_empty()).collect();
        let walk = state.walk(&self.path)?;
        Ok(walk.map(|(path, data, stat)| (names(path), ComparedZnode { data, stat })).collect())
    }
}

fn is_named(cluster: &ClusterArgs) -> Result<()> {
    if cluster.is_named() {
        return Ok(());
    }
    let reason = "name some members of the cluster to compare with, or a second backup";
    Err(Error::InvalidSetting { setting: "--peers", reason: reason.to_owned() })
}
