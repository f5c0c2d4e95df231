//! Reading and writing znodes.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use clap::Args;
use crossbeam_channel::RecvTimeoutError;
use quorate::acl::{Acl, Id, Permissions};
use quorate::quota::Quota;
use quorate::session::SessionId;
use quorate::{Coordinator, CreateMode, Created, Error, Result, Session, Stat, WatchMode};
use serde_json::{Value, json};

use super::cluster::duration;
use super::sessions::Holders;
use super::when::when;
use super::{
    ClusterArgs, READS_MAX, Shown, above, data, interrupted, join, json, json_data, print,
};
use crate::text::line;
use crate::{Exit, complain, text};

/// How often signals are looked at while an ephemeral is held.
const HELD_PERIOD: Duration = Duration::from_millis(50);

/// What to list.
#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// The znode.
    #[arg(default_value = "/")]
    path: String,
    /// Lists the znode and all below it, by their paths.
    #[arg(short = 'R', long)]
    recursive: bool,
}

/// What to draw.
#[derive(Debug, Args)]
pub(crate) struct TreeArgs {
    /// The znode.
    #[arg(default_value = "/")]
    path: String,
}

/// What to read or to look at.
#[derive(Debug, Args)]
pub(crate) struct ZnodeArgs {
    /// The znode.
    path: String,
}

/// What to write.
#[derive(Debug, Args)]
pub(crate) struct SetArgs {
    /// The znode.
    path: String,
    /// Its new data; - is the standard input.
    data: String,
    /// Only if it has this version.
    #[arg(long)]
    version: Option<u64>,
}

/// What to create.
#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// The znode.
    path: String,
    /// Its data; - is the standard input.
    #[arg(default_value = "")]
    data: String,
    /// Appends a number to the path that no sibling has had before.
    #[arg(long, conflicts_with_all = ["container", "ttl"])]
    sequential: bool,
    /// It exists until this command is interrupted. Exits with 8 if it is gone before.
    #[arg(long, conflicts_with_all = ["container", "ttl"])]
    ephemeral: bool,
    /// It is deleted when its last child is.
    #[arg(long, conflicts_with = "ttl")]
    container: bool,
    /// It is deleted when it has had no child and no write for so many seconds.
    #[arg(long)]
    ttl: Option<u64>,
    /// Creates its parents, too, as containers.
    #[arg(short, long)]
    parents: bool,
}

/// What to delete.
#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// The znode.
    path: String,
    /// Deletes all below it, too, in one write.
    #[arg(short, long, conflicts_with = "version")]
    recursive: bool,
    /// Only if it has this version.
    #[arg(long)]
    version: Option<u64>,
}

/// The access list to show or to replace.
#[derive(Debug, Args)]
pub(crate) struct AclArgs {
    /// The znode.
    path: String,
    /// An entry of the new list, for example r=x509:CN=app-0,O=Example. Once for each entry; or all of them with a line
    /// each, as this command prints them.
    #[arg(long, value_delimiter = '\n', value_name = "PERMISSIONS=SCHEME:ID")]
    set: Vec<String>,
}

/// The quota to show or to set.
#[derive(Debug, Args)]
pub(crate) struct QuotaArgs {
    /// The znode: the quota counts it and all below it.
    path: String,
    /// So many znodes; more are logged.
    #[arg(long)]
    znodes: Option<u64>,
    /// So many bytes of data; more are logged.
    #[arg(long)]
    bytes: Option<u64>,
    /// So many znodes; a write that needs more is refused.
    #[arg(long)]
    znodes_hard: Option<u64>,
    /// So many bytes of data; a write that needs more is refused.
    #[arg(long)]
    bytes_hard: Option<u64>,
    /// Removes the quota.
    #[arg(long, conflicts_with_all = ["znodes", "bytes", "znodes_hard", "bytes_hard"])]
    remove: bool,
}

/// Returns a znode and all below it, parents first. Znodes that are deleted during the walk, or may
/// not be read, are left out.
pub(super) fn walk(session: &Session, path: &str) -> Result<BTreeMap<Vec<String>, Stat>> {
    if session.exists(path).wait()?.is_none() {
        return Err(Error::NoNode { path: path.to_owned() });
    }
    let key = |path: &str| -> Vec<String> {
        path.split('/').filter(|name| !name.is_empty()).map(str::to_owned).collect()
    };
    let (mut found, mut level) = (BTreeMap::new(), vec![path.to_owned()]);
    let calls = &session.in_turn();
    while !level.is_empty() {
        let mut next = Vec::new();
        for part in level.chunks(READS_MAX) {
            let reads = part.iter().map(|path| (calls.exists(path), calls.children(path)));
            for (path, (stat, children)) in part.iter().zip(reads.collect::<Vec<_>>()) {
                match (stat.wait(), children.wait()) {
                    (Ok(Some(stat)), Ok(children)) => {
                        next.extend(children.iter().map(|name| join(path, name)));
                        found.insert(key(path), stat);
                    }
                    (Ok(None), _)
                    | (_, Err(Error::NoNode { .. }))
                    | (Err(Error::NoAuth { .. }), _)
                    | (_, Err(Error::NoAuth { .. })) => {}
                    (Err(error), _) | (_, Err(error)) => return Err(error),
                }
            }
        }
        level = next;
    }
    Ok(found)
}

impl LsArgs {
    pub(super) fn run(&self, session: &Session) -> Result<Shown> {
        let names: Vec<String> = match self.recursive {
            true => walk(session, &self.path)?
                .into_keys()
                .map(|names| format!("/{}", names.join("/")))
                .collect(),
            false => session.children(&self.path).wait()?,
        };
        let text = names.iter().map(|name| format!("{}\n", line(name))).collect::<String>();
        Ok(Shown::new(text, json(&names)))
    }
}

/// A session, and who holds it.
fn named(session: SessionId, holders: &Holders) -> String {
    match holders.get(session) {
        Some(holder) => format!("{session} ({})", line(holder)),
        None => session.to_string(),
    }
}

/// The note of a listing after the name of a znode.
fn note(stat: &Stat, holders: Option<&Holders>) -> String {
    let mut note = format!("{} B", stat.data_length);
    if let (Some(owner), Some(holders)) = (stat.ephemeral_owner, holders) {
        let _ = write!(note, ", ephemeral of {}", named(owner, holders));
    }
    if stat.is_container {
        note.push_str(", container");
    }
    if let Some(ttl) = stat.ttl {
        let _ = write!(note, ", lives {ttl:?}");
    }
    note
}

/// The holders of sessions, if these znodes have any.
fn holders<'a>(
    of: impl IntoIterator<Item = &'a Stat>,
    coordinator: &Coordinator,
) -> Option<Holders> {
    let has_ephemerals = of.into_iter().any(|stat| stat.ephemeral_owner.is_some());
    has_ephemerals.then(|| Holders::read(coordinator))
}

/// The JSON of the library, with `held_by` beside the session.
fn with_holder(stat: &Stat, holders: Option<&Holders>) -> Value {
    let mut value = json(stat);
    value["held_by"] = json(stat.ephemeral_owner.and_then(|session| holders?.get(session)));
    value
}

impl TreeArgs {
    pub(super) fn run(&self, coordinator: &Coordinator, session: &Session) -> Result<Shown> {
        let found = walk(session, &self.path)?;
        let holders = holders(found.values(), coordinator);
        let holders = holders.as_ref();
        let note = |stat| note(stat, holders);
        let paths: Vec<&Vec<String>> = found.keys().collect();
        let mut text = String::new();
        // For each level of the path, whether the znode is the last child of its parent.
        let mut last = Vec::new();
        let top = paths.first().map_or(0, |first| first.len());
        for (place, (path, stat)) in found.iter().enumerate() {
            let depth = path.len() - top;
            let Some(name) = path.last().filter(|_| depth > 0) else {
                let _ = writeln!(text, "{}  ({})", line(&self.path), note(stat));
                continue;
            };
            let parent = &path[..path.len() - 1];
            let siblings = paths[place + 1..].iter().take_while(|next| next.starts_with(parent));
            let is_last = !siblings.into_iter().any(|next| next.len() == path.len());
            last.truncate(depth - 1);
            for is_last in &last {
                text.push_str(if *is_last { "    " } else { "│   " });
            }
            last.push(is_last);
            let branch = if is_last { "└── " } else { "├── " };
            let _ = writeln!(text, "{branch}{}  ({})", line(name), note(stat));
        }
        let of = |(names, stat): (&Vec<String>, &Stat)| json!({ "path": format!("/{}", names.join("/")), "stat": with_holder(stat, holders) });
        Ok(Shown::new(text, found.iter().map(of).collect()))
    }
}

impl ZnodeArgs {
    pub(super) fn get(&self, coordinator: &Coordinator, session: &Session) -> Result<Shown> {
        let (data, stat) = session.get(&self.path).wait()?;
        let stat = with_holder(&stat, holders([&stat], coordinator).as_ref());
        let json = json!({ "path": self.path, "data": json_data(&data), "stat": stat });
        Ok(Shown::data(data.to_vec(), json))
    }

    #[expect(clippy::disallowed_methods, reason = "a program may look at the clock")]
    pub(super) fn stat(&self, coordinator: &Coordinator, session: &Session) -> Result<Shown> {
        let stat = session.exists(&self.path).wait()?;
        let stat = stat.ok_or_else(|| Error::NoNode { path: self.path.clone() })?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let holders = holders([&stat], coordinator);
        // The names of the JSON object; moments, times and sessions as people read them.
        let mut text = String::new();
        for (name, value) in json(stat).as_object().into_iter().flatten() {
            let shown = match name.as_str() {
                "ctime" => Some(when(stat.ctime, now)),
                "mtime" => Some(when(stat.mtime, now)),
                "ttl" => stat.ttl.map(duration),
                "ephemeral_owner" => stat
                    .ephemeral_owner
                    .zip(holders.as_ref())
                    .map(|(id, holders)| named(id, holders)),
                _ => None,
            };
            let _ = writeln!(text, "{name:<16} {}", shown.unwrap_or_else(|| value.to_string()));
        }
        Ok(Shown::new(text, with_holder(&stat, holders.as_ref())))
    }
}

impl SetArgs {
    pub(super) fn run(&self, coordinator: &Coordinator, session: &Session) -> Result<Shown> {
        let data = data(&self.data)?;
        let stat = match self.version {
            Some(version) => session.set_if(&self.path, data, version).wait()?,
            None => session.set(&self.path, data).wait()?,
        };
        let json = with_holder(&stat, holders([&stat], coordinator).as_ref());
        Ok(Shown::new(format!("version {}\n", stat.version), json))
    }
}

impl CreateArgs {
    pub(super) fn is_ephemeral(&self) -> bool {
        self.ephemeral
    }

    /// Creates an ephemeral, and keeps it until it is told to end.
    pub(super) fn hold(&self, cluster: &ClusterArgs) -> Result<Exit> {
        let coordinator = cluster.coordinator()?;
        let session = cluster.session(&coordinator)?;
        let is_over = interrupted()?;
        let created = self.create(&session)?;
        let watch = session.watch(&created.path, WatchMode::Persistent).wait()?;
        let shown = match cluster.json {
            true => text::json_line(&json(&created)),
            false => line(&created.path).into_owned(),
        };
        print(format!("{shown}\n").as_bytes())?;
        let is_there = || -> Result<bool> {
            let stat = session.exists(&created.path).wait()?;
            Ok(stat.is_some_and(|stat| stat.czxid == created.stat.czxid))
        };
        // It may have been deleted before it was watched.
        let mut has_changed = true;
        let lost = loop {
            if is_over.load(Ordering::Relaxed) {
                break None;
            }
            if has_changed {
                match is_there() {
                    Ok(true) => {}
                    Ok(false) => break Some("somebody has deleted it"),
                    Err(error) if error.is_session_lost() => break Some("the session is over"),
                    Err(error) => return Err(error),
                }
            }
            has_changed = match watch.events().recv_timeout(HELD_PERIOD) {
                Ok(_) => true,
                Err(RecvTimeoutError::Timeout) => false,
                Err(RecvTimeoutError::Disconnected) => break Some("the session is over"),
            };
        };
        coordinator.close().wait()?;
        let Some(reason) = lost else { return Ok(Exit::Well) };
        complain(format_args!("{} is gone: {reason}", created.path));
        Ok(Exit::Lost)
    }

    pub(super) fn run(&self, session: &Session) -> Result<Shown> {
        let created = self.create(session)?;
        Ok(Shown::new(format!("{}\n", line(&created.path)), json(&created)))
    }

    fn create(&self, session: &Session) -> Result<Created> {
        let mode = match (self.container, self.ttl) {
            _ if self.ephemeral && self.sequential => CreateMode::EphemeralSequential,
            _ if self.ephemeral => CreateMode::Ephemeral,
            (true, _) => CreateMode::Container,
            (_, Some(seconds)) if self.sequential => {
                CreateMode::PersistentSequentialWithTtl(Duration::from_secs(seconds))
            }
            (_, Some(seconds)) => CreateMode::PersistentWithTtl(Duration::from_secs(seconds)),
            _ if self.sequential => CreateMode::PersistentSequential,
            _ => CreateMode::Persistent,
        };
        if self.parents {
            for parent in above(&self.path) {
                match session.create(parent, b"", CreateMode::Container).wait() {
                    Err(Error::NodeExists { .. }) => {}
                    created => drop(created?),
                }
            }
        }
        session.create(&self.path, data(&self.data)?, mode).wait()
    }
}

impl RmArgs {
    pub(super) fn run(&self, session: &Session) -> Result<Shown> {
        match (self.recursive, self.version) {
            (true, _) => session.delete_recursive(&self.path).wait()?,
            (_, Some(version)) => session.delete_if(&self.path, version).wait()?,
            _ => session.delete(&self.path).wait()?,
        }
        Ok(Shown::new("", json!({ "deleted": self.path })))
    }
}

/// One entry of an access list, as it is displayed.
fn entry(text: &str) -> Result<Acl> {
    let invalid = || Error::InvalidSetting {
        setting: "the access list",
        reason: format!("{text}: an entry is permissions, =, a scheme, a colon and an id"),
    };
    let (letters, id) = text.split_once('=').ok_or_else(invalid)?;
    let (scheme, id) = id.split_once(':').ok_or_else(invalid)?;
    let permission = |letter: char| match letter {
        'r' => Ok(Permissions::READ),
        'w' => Ok(Permissions::WRITE),
        'c' => Ok(Permissions::CREATE),
        'd' => Ok(Permissions::DELETE),
        'a' => Ok(Permissions::ADMIN),
        _ => Err(invalid()),
    };
    let all = |all, letter| Ok(all | permission(letter)?);
    let permissions = letters.chars().try_fold(Permissions::NONE, all)?;
    Ok(Acl::new(permissions, Id::new(scheme, id)))
}

impl AclArgs {
    pub(super) fn run(&self, session: &Session) -> Result<Shown> {
        let set = self.set.iter().map(|text| entry(text)).collect::<Result<Vec<_>>>()?;
        if !set.is_empty() {
            session.set_acl(&self.path, &set).wait()?;
        }
        let acl = match session.acl(&self.path).wait() {
            Ok((acl, _)) => acl,
            // It was set, and may not be seen any more by whoever has set it.
            Err(Error::NoAuth { .. }) if !set.is_empty() => set,
            Err(error) => return Err(error),
        };
        let entry = |acl: &Acl| format!("{}={}\n", acl.permissions, line(&acl.id.to_string()));
        Ok(Shown::new(acl.iter().map(entry).collect::<String>(), json(&acl)))
    }
}

impl QuotaArgs {
    pub(super) fn run(&self, session: &Session) -> Result<Shown> {
        type Setter = fn(Quota, u64) -> Quota;
        let limits: [(Option<u64>, Setter); 4] = [
            (self.znodes, Quota::znodes),
            (self.bytes, Quota::bytes),
            (self.znodes_hard, Quota::znodes_hard),
            (self.bytes_hard, Quota::bytes_hard),
        ];
        if self.remove {
            session.delete_quota(&self.path).wait()?;
        } else if limits.iter().any(|(limit, _)| limit.is_some()) {
            let quota = limits.into_iter().fold(Quota::new(), |quota, (limit, with)| {
                limit.map_or(quota, |limit| with(quota, limit))
            });
            session.set_quota(&self.path, &quota).wait()?;
        }
        session.sync().wait()?;
        let Some((quota, usage)) = session.quota(&self.path).wait()? else {
            return Ok(Shown::new("no quota\n", Value::Null));
        };
        let json = json!({ "quota": json(quota), "usage": json(usage) });
        Ok(Shown::new(format!("limits {quota}\nused   {usage}\n"), json))
    }
}
