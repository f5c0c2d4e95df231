//! Commands on a running cluster, through a client (an instance without a replica).

mod bench;
mod clocks;
mod cluster;
mod copy;
mod diff;
mod doctor;
mod findings;
#[cfg(unix)]
pub(crate) mod group;
mod held;
mod leadership;
mod locks;
mod member_findings;
mod operate;
mod running;
mod sessions;
mod shell;
mod tables;
mod top;
mod txn;
mod watching;
mod when;
mod znodes;

use std::io::{self, IsTerminal, Read, Write};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::{Args, Subcommand};
use quorate::{Builder, Coordinator, Result, Session};
use serde_json::Value;
use signal_hook::{consts, flag};

use crate::access::{AccessArgs, credentials};
use crate::keys::DataKeyArgs;
use crate::{Exit, system, text};

/// How many reads are in flight.
const READS_MAX: usize = 256;

/// How to reach the cluster, and how to show what it answers.
#[derive(Debug, Args)]
pub(crate) struct ClusterArgs {
    #[command(flatten)]
    access: AccessArgs,
    /// Who to be for access lists, for example digest:user:password. May be given more than once. The variable keeps a
    /// password out of the list of processes.
    #[arg(long, env = "QUORATE_AUTH", hide_env_values = true, value_name = "SCHEME:CREDENTIALS")]
    auth: Vec<String>,
    /// For how many seconds to wait for the cluster, and then for each answer.
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
    /// Prints JSON.
    #[arg(long)]
    json: bool,
}

/// A command with what it needs to reach the cluster.
#[derive(Debug, Args)]
pub(crate) struct On<T: Args> {
    #[command(flatten)]
    what: T,
    #[command(flatten)]
    cluster: ClusterArgs,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LiveCommand {
    /// Shows whether there is a quorum, who leads, and how many failures the cluster tolerates.
    Status(ClusterArgs),
    /// Lists the members: who leads, who votes, who lags, and what each holds.
    Members(ClusterArgs),
    /// Lists the sessions: who holds them, and when they were last renewed.
    Sessions(ClusterArgs),
    /// Says in plain words what is wrong, and what to do. Exits with 1 if something is, and with 4 if no member
    /// can be asked.
    Doctor(On<doctor::DoctorArgs>),
    /// Measures how fast the cluster answers a client that is here.
    Bench(On<bench::BenchArgs>),
    /// Shows members, sessions, locks and znodes live, in a terminal.
    Top(ClusterArgs),
    /// Reads commands and runs them one after the other, in one session.
    Shell(On<shell::ShellArgs>),
    /// Hands the lead to a voter.
    MoveLeader(On<operate::MemberArgs>),
    /// Removes a member that is dead for good.
    RemoveMember(On<operate::MemberArgs>),
    /// Ends a session, as if its time were up.
    Expire(On<operate::SessionArgs>),
    /// Writes a backup of the running cluster to a file: see `verify` and `restore`.
    Backup(On<operate::BackupArgs>),
    /// Runs a command while it holds a lock, and stops the command if the lock is lost.
    Lock(On<held::HoldArgs>),
    /// Runs a command while it leads an election, and stops the command if the lead is lost.
    Elect(On<held::HoldArgs>),
    /// Lists what somebody holds or waits for: locks, elections, semaphores, barriers; and partitions, timers, queues.
    Locks(On<locks::LocksArgs>),
    /// Lists partitions: who owns each, which have no owner, and the members.
    Partitions(On<tables::PartitionsArgs>),
    /// Lists timers: when they fire next and have fired, which are late or paused; pauses, resumes or fires one.
    Timers(On<tables::TimersArgs>),
    /// Lists the children of a znode.
    Ls(On<znodes::LsArgs>),
    /// Draws a znode and all below it.
    Tree(On<znodes::TreeArgs>),
    /// Prints a znode's data.
    Get(On<znodes::ZnodeArgs>),
    /// Shows a znode's stat.
    Stat(On<znodes::ZnodeArgs>),
    /// Replaces a znode's data.
    Set(On<znodes::SetArgs>),
    /// Creates a znode, and prints its path.
    Create(On<znodes::CreateArgs>),
    /// Deletes a znode.
    Rm(On<znodes::RmArgs>),
    /// Copies a znode.
    Cp(On<copy::CopyArgs>),
    /// Does several writes, all or none, and only under conditions.
    Txn(On<txn::TxnArgs>),
    /// Prints the changes of a znode as they happen, or runs a command for each, until it is interrupted.
    Watch(On<watching::WatchArgs>),
    /// Shows what differs between two backups, or since a backup. Exits with 1 if something does.
    #[command(mut_arg("peers", |peers| peers.required(false)))]
    Diff(On<diff::DiffArgs>),
    /// Shows a znode's access list, or replaces it.
    Acl(On<znodes::AclArgs>),
    /// Shows a quota and what is used of it, or sets it.
    Quota(On<znodes::QuotaArgs>),
}

/// The output of a command for people.
enum Text {
    /// Lines, each with its line break. Values in them that others have written are [`text::line`]s.
    Lines(String),
    /// The data of a znode.
    Data(Vec<u8>),
}

/// The output of a command.
struct Shown {
    text: Text,
    json: Value,
    exit: Exit,
}

impl Shown {
    fn new(text: impl Into<String>, json: Value) -> Shown {
        Shown { text: Text::Lines(text.into()), json, exit: Exit::Well }
    }

    fn data(data: impl Into<Vec<u8>>, json: Value) -> Shown {
        Shown { text: Text::Data(data.into()), json, exit: Exit::Well }
    }

    /// Adds lines for people.
    fn add(&mut self, more: &str) {
        if let Text::Lines(lines) = &mut self.text {
            lines.push_str(more);
        }
    }
}

impl ClusterArgs {
    /// Joins as a client, which may not be connected yet.
    fn coordinator(&self) -> Result<Coordinator> {
        self.joined(Coordinator::builder())
    }

    /// The same, for a client that writes backups.
    fn coordinator_with(&self, keys: &DataKeyArgs) -> Result<Coordinator> {
        self.joined(keys.encrypted(Coordinator::builder())?)
    }

    fn joined(&self, builder: Builder) -> Result<Coordinator> {
        // Checked before anything is waited for.
        self.credentials()?;
        self.access.join(builder.name("quorate").request_timeout(self.wait()))
    }

    /// Whether any of its members is known.
    fn is_named(&self) -> bool {
        self.access.has_peers()
    }

    fn wait(&self) -> Duration {
        Duration::from_secs(self.timeout)
    }

    /// Opens a session that shows every write completed before now.
    fn session(&self, coordinator: &Coordinator) -> Result<Session> {
        coordinator.wait_ready(self.wait()).wait()?;
        let session = coordinator.session();
        self.authenticate(&session)?;
        session.sync().wait()?;
        Ok(session)
    }

    /// The credentials of `--auth`.
    fn credentials(&self) -> Result<Vec<(&str, &str)>> {
        self.auth.iter().map(|auth| credentials(auth, "--auth")).collect()
    }

    fn authenticate(&self, session: &Session) -> Result<()> {
        for (scheme, credentials) in self.credentials()? {
            session.add_auth(scheme, credentials).wait()?;
        }
        Ok(())
    }

    /// Runs a command in a session, and prints its output.
    fn run(&self, command: impl FnOnce(&Session) -> Result<Shown>) -> Result<Exit> {
        self.run_with(|_, session| command(session))
    }

    /// The same for a command that shows who holds sessions.
    fn run_with(
        &self,
        command: impl FnOnce(&Coordinator, &Session) -> Result<Shown>,
    ) -> Result<Exit> {
        let coordinator = self.coordinator()?;
        let shown = command(&coordinator, &self.session(&coordinator)?)?;
        self.print(shown)
    }

    fn print(&self, shown: Shown) -> Result<Exit> {
        match shown.text {
            _ if self.json => print(text::json(&format!("{:#}\n", shown.json)).as_bytes())?,
            Text::Lines(lines) => print(text::lines(&lines).as_bytes())?,
            Text::Data(data) if io::stdout().is_terminal() => print(text::data(&data).as_bytes())?,
            Text::Data(data) => print(&data)?,
        }
        Ok(shown.exit)
    }
}

/// Returns a flag that is set when the program is to end: by Ctrl-C, SIGQUIT, SIGTERM, or because its terminal is
/// gone. From now on these do not end the program directly.
fn interrupted() -> Result<Arc<AtomicBool>> {
    let is_over = Arc::new(AtomicBool::new(false));
    #[cfg(unix)]
    let signals = [consts::SIGINT, consts::SIGQUIT, consts::SIGTERM, consts::SIGHUP];
    #[cfg(not(unix))]
    let signals = [consts::SIGINT, consts::SIGTERM];
    for signal in signals {
        flag::register(signal, Arc::clone(&is_over)).map_err(system("waiting for signals"))?;
    }
    Ok(is_over)
}

fn print(text: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        // The reader, for example `head`, needs no more output.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed.map_err(system("writing to the standard output")),
    }
}

/// Whether a progress bar would be visible.
fn is_watched() -> bool {
    io::stderr().is_terminal()
}

/// Data from the command line; `-` is the standard input.
fn data(argument: &str) -> Result<Vec<u8>> {
    if argument != "-" {
        return Ok(argument.as_bytes().to_vec());
    }
    let mut data = Vec::new();
    io::stdin().read_to_end(&mut data).map_err(system("reading from the standard input"))?;
    Ok(data)
}

/// The paths above one, without the root.
fn above(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('/').map(|(end, _)| &path[..end]).filter(|above| !above.is_empty())
}

/// The path of a child.
fn join(path: &str, name: &str) -> String {
    format!("{}/{name}", if path == "/" { "" } else { path })
}

/// Converts a value to JSON; that succeeds for all types of the library.
fn json(value: impl serde::Serialize) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

/// Data as text if it is UTF-8, and otherwise in base64.
fn json_data(data: &[u8]) -> Value {
    match std::str::from_utf8(data) {
        Ok(text) => serde_json::json!({ "text": text }),
        Err(_) => serde_json::json!({ "bytes": data }),
    }
}

/// Runs a command on a running cluster.
pub(crate) fn run(command: LiveCommand) -> Result<Exit> {
    match command {
        LiveCommand::Status(cluster) => cluster::status(&cluster, &cluster.coordinator()?),
        LiveCommand::Members(cluster) => cluster::members(&cluster, &cluster.coordinator()?),
        LiveCommand::Sessions(cluster) => sessions::sessions(&cluster, &cluster.coordinator()?),
        LiveCommand::Doctor(On { what, cluster }) => what.run(&cluster),
        LiveCommand::Bench(On { what, cluster }) => what.run(&cluster),
        LiveCommand::Top(cluster) => top::run(cluster),
        LiveCommand::Shell(On { what, cluster }) => what.run(cluster),
        LiveCommand::MoveLeader(On { what, cluster }) => what.lead(&cluster),
        LiveCommand::RemoveMember(On { what, cluster }) => what.remove(&cluster),
        LiveCommand::Expire(On { what, cluster }) => what.expire(&cluster),
        LiveCommand::Backup(On { what, cluster }) => what.run(&cluster),
        LiveCommand::Lock(On { what, cluster }) => what.lock(&cluster),
        LiveCommand::Elect(On { what, cluster }) => what.elect(&cluster),
        LiveCommand::Locks(On { what, cluster }) => {
            cluster.run_with(|of, session| what.run(of, session))
        }
        LiveCommand::Partitions(On { what, cluster }) => {
            cluster.run_with(|of, session| what.run(of, session))
        }
        LiveCommand::Timers(On { what, cluster }) => {
            cluster.run_with(|of, session| what.run(of, session))
        }
        LiveCommand::Ls(On { what, cluster }) => cluster.run(|session| what.run(session)),
        LiveCommand::Tree(On { what, cluster }) => {
            cluster.run_with(|of, session| what.run(of, session))
        }
        LiveCommand::Get(On { what, cluster }) => {
            cluster.run_with(|of, session| what.get(of, session))
        }
        LiveCommand::Stat(On { what, cluster }) => {
            cluster.run_with(|of, session| what.stat(of, session))
        }
        LiveCommand::Set(On { what, cluster }) => {
            cluster.run_with(|of, session| what.run(of, session))
        }
        LiveCommand::Create(On { what, cluster }) if what.is_ephemeral() => what.hold(&cluster),
        LiveCommand::Create(On { what, cluster }) => cluster.run(|session| what.run(session)),
        LiveCommand::Cp(On { what, cluster }) => cluster.run(|session| what.run(session)),
        LiveCommand::Txn(On { what, cluster }) => cluster.run(|session| what.run(session)),
        LiveCommand::Diff(On { what, cluster }) => what.run(&cluster),
        LiveCommand::Rm(On { what, cluster }) => cluster.run(|session| what.run(session)),
        LiveCommand::Watch(On { what, cluster }) => what.run(&cluster),
        LiveCommand::Acl(On { what, cluster }) => cluster.run(|session| what.run(session)),
        LiveCommand::Quota(On { what, cluster }) => cluster.run(|session| what.run(session)),
    }
}
