//! `shell`: commands that are typed, one after the other, in one session.

mod assistant;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Args, CommandFactory, Parser, Subcommand};
use quorate::{Coordinator, Result, Session};
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{CompletionType, Config, Editor};
use signal_hook::{consts, flag};

use self::assistant::Assistant;
use super::{ClusterArgs, Text, cluster, copy, locks, sessions, tables, txn, watching, znodes};
use crate::{Exit, complain, system};

const PROMPT: &str = "quorate> ";

/// Where the lines that were typed are kept.
#[derive(Debug, Args)]
pub(crate) struct ShellArgs {
    /// The file of the lines that were typed. Empty: they are not kept. [default: quorate/history below
    /// $XDG_STATE_HOME or ~/.local/state]
    #[arg(long, env = "QUORATE_HISTORY", value_name = "FILE")]
    history: Option<OsString>,
}

/// A line that was typed.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, name = "", bin_name = "", disable_version_flag = true)]
struct Line {
    #[command(subcommand)]
    command: ShellCommand,
    /// Prints JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum ShellCommand {
    /// Lists the children of a znode.
    Ls(znodes::LsArgs),
    /// Draws a znode and all below it.
    Tree(znodes::TreeArgs),
    /// Prints a znode's data.
    Get(znodes::ZnodeArgs),
    /// Shows a znode's stat.
    Stat(znodes::ZnodeArgs),
    /// Replaces a znode's data.
    Set(znodes::SetArgs),
    /// Creates a znode, and prints its path. An ephemeral exists until the shell ends.
    Create(znodes::CreateArgs),
    /// Deletes a znode.
    Rm(znodes::RmArgs),
    /// Copies a znode.
    Cp(copy::CopyArgs),
    /// Does several writes, all or none, and only under conditions.
    Txn(txn::TxnArgs),
    /// Prints the changes of a znode as they happen, or runs a command for each, until Ctrl-C.
    Watch(watching::WatchArgs),
    /// Shows a znode's access list, or replaces it.
    Acl(znodes::AclArgs),
    /// Shows a quota and what is used of it, or sets it.
    Quota(znodes::QuotaArgs),
    /// Lists what somebody holds or waits for: locks, elections, semaphores, barriers; and partitions, timers, queues.
    Locks(locks::LocksArgs),
    /// Lists partitions: who owns each, which have no owner, and the members.
    Partitions(tables::PartitionsArgs),
    /// Lists timers: when they fire next and have fired, which are late or paused; pauses, resumes or fires one.
    Timers(tables::TimersArgs),
    /// Lists the sessions: who holds them, and when they were last renewed.
    Sessions,
    /// Shows whether there is a quorum, who leads, and how many failures the cluster tolerates.
    Status,
    /// Lists the members: who leads, who votes, who lags, and what each holds.
    Members,
    /// Ends the shell, as Ctrl-D does.
    #[command(alias = "quit")]
    Exit,
}

/// What has become of a line.
enum LineOutcome {
    Done(Exit),
    End,
}

/// The session of all commands.
struct Open {
    cluster: ClusterArgs,
    coordinator: Coordinator,
    session: Session,
    /// Whether Ctrl-C ends the program, and not the command alone.
    ends: Arc<AtomicBool>,
    interrupted: Arc<AtomicBool>,
}

impl ShellArgs {
    /// Runs lines until the end of the input. Without a terminal, the first command that fails is the last one.
    pub(super) fn run(&self, cluster: ClusterArgs) -> Result<Exit> {
        let coordinator = cluster.coordinator()?;
        let session = cluster.session(&coordinator)?;
        let (ends, interrupted) = (Arc::new(AtomicBool::new(true)), Arc::default());
        let registered = flag::register_conditional_default(consts::SIGINT, Arc::clone(&ends))
            .and_then(|_| flag::register(consts::SIGINT, Arc::clone(&interrupted)));
        registered.map_err(system("waiting for signals"))?;
        let mut open = Open { cluster, coordinator, session, ends, interrupted };

        let config = Config::builder()
            .completion_type(CompletionType::List)
            .history_ignore_space(true)
            .auto_add_history(true)
            .build();
        let mut editor: Editor<_, FileHistory> =
            Editor::with_config(config).map_err(of_terminal)?;
        editor.set_helper(Some(Assistant::new(&open.coordinator)));
        let is_typed = io::stdin().is_terminal();
        let history = self.history_file().filter(|_| is_typed);
        if let Some(file) = &history {
            // There is none at the first time.
            let _ = editor.load_history(file);
        }
        let exit = loop {
            let line = match editor.readline(PROMPT) {
                Ok(line) => line,
                Err(ReadlineError::Interrupted) => continue,
                Err(ReadlineError::Eof) => break Ok(Exit::Well),
                Err(error) => break Err(of_terminal(error)),
            };
            let outcome = open.run(&line);
            // Now, since Ctrl-C may end the program in the next command.
            if let Some(file) = &history
                && let Err(error) = save(&mut editor, file)
            {
                complain(format_args!("cannot write {}: {error}", file.display()));
            }
            match outcome {
                Ok(LineOutcome::End) => break Ok(Exit::Well),
                Ok(LineOutcome::Done(Exit::Well)) => {}
                Ok(LineOutcome::Done(exit)) if !is_typed => break Ok(exit),
                Err(error) if !is_typed => break Err(error),
                Ok(LineOutcome::Done(_)) => {}
                Err(error) => complain(error),
            }
        };
        open.coordinator.close().wait()?;
        exit
    }

    fn history_file(&self) -> Option<PathBuf> {
        if let Some(file) = &self.history {
            return Some(PathBuf::from(file)).filter(|file| !file.as_os_str().is_empty());
        }
        let directory =
            |name| std::env::var_os(name).map(PathBuf::from).filter(|it| it.is_absolute());
        let state = directory("XDG_STATE_HOME")
            .or_else(|| directory("HOME").map(|home| home.join(".local/state")));
        state.map(|state| state.join("quorate/history"))
    }
}

/// Appends the new lines to the history, which only its owner can read.
fn save(editor: &mut Editor<Assistant, FileHistory>, file: &Path) -> rustyline::Result<()> {
    if let Some(directory) = file.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        std::fs::create_dir_all(directory)?;
    }
    editor.append_history(file)
}

fn of_terminal(error: ReadlineError) -> quorate::Error {
    system("reading a line")(io::Error::other(error))
}

impl Open {
    fn run(&mut self, line: &str) -> Result<LineOutcome> {
        let Some(words) = shlex::split(line) else {
            complain("a quote is not closed, or nothing follows the last backslash");
            return Ok(LineOutcome::Done(Exit::Misused));
        };
        if words.is_empty() {
            return Ok(LineOutcome::Done(Exit::Well));
        }
        if words.iter().any(|word| word == "-") {
            complain("the standard input has the commands: give the data itself");
            return Ok(LineOutcome::Done(Exit::Misused));
        }
        let line = match Line::try_parse_from(words) {
            Ok(line) => line,
            Err(error) => {
                let _ = error.print();
                let exit = if error.use_stderr() { Exit::Misused } else { Exit::Well };
                return Ok(LineOutcome::Done(exit));
            }
        };
        let is_json = self.cluster.json;
        self.cluster.json |= line.json;
        let ran = self.execute(line.command);
        self.cluster.json = is_json;
        ran
    }

    fn execute(&mut self, command: ShellCommand) -> Result<LineOutcome> {
        let (cluster, coordinator) = (&self.cluster, &self.coordinator);
        // These need no quorum.
        match command {
            ShellCommand::Exit => return Ok(LineOutcome::End),
            ShellCommand::Sessions => {
                return sessions::sessions(cluster, coordinator).map(LineOutcome::Done);
            }
            ShellCommand::Status => {
                return cluster::status(cluster, coordinator).map(LineOutcome::Done);
            }
            ShellCommand::Members => {
                return cluster::members(cluster, coordinator).map(LineOutcome::Done);
            }
            _ => {}
        }
        self.renew()?;
        let (cluster, coordinator, session) = (&self.cluster, &self.coordinator, &self.session);
        let shown = match command {
            ShellCommand::Ls(what) => what.run(session),
            ShellCommand::Tree(what) => what.run(coordinator, session),
            ShellCommand::Get(what) => what.get(coordinator, session),
            ShellCommand::Stat(what) => what.stat(coordinator, session),
            ShellCommand::Set(what) => what.run(coordinator, session),
            ShellCommand::Create(what) => what.run(session),
            ShellCommand::Rm(what) => what.run(session),
            ShellCommand::Cp(what) => what.run(session),
            ShellCommand::Txn(what) => what.run(session),
            ShellCommand::Acl(what) => what.run(session),
            ShellCommand::Quota(what) => what.run(session),
            ShellCommand::Locks(what) => what.run(coordinator, session),
            ShellCommand::Partitions(what) => what.run(coordinator, session),
            ShellCommand::Timers(what) => what.run(coordinator, session),
            ShellCommand::Watch(what) => {
                self.interrupted.store(false, Ordering::Relaxed);
                self.ends.store(false, Ordering::Relaxed);
                let is_over = || self.interrupted.load(Ordering::Relaxed);
                let followed = what.follow(cluster, session, is_over);
                self.ends.store(true, Ordering::Relaxed);
                return followed.map(LineOutcome::Done);
            }
            ShellCommand::Exit
            | ShellCommand::Sessions
            | ShellCommand::Status
            | ShellCommand::Members => {
                return Ok(LineOutcome::Done(Exit::Well));
            }
        };
        let mut shown = shown?;
        // What comes next begins on a line of its own.
        if let Text::Data(data) = &mut shown.text
            && !data.ends_with(b"\n")
        {
            data.push(b'\n');
        }
        cluster.print(shown).map(LineOutcome::Done)
    }

    /// Makes sure that the session lives, and shows every write completed before now.
    fn renew(&mut self) -> Result<()> {
        let session = self.coordinator.session();
        if session.id() != self.session.id() {
            complain("the session was over, with its ephemerals; this is a new one");
            self.cluster.authenticate(&session)?;
            self.session = session;
        }
        self.session.sync().wait().map(drop)
    }
}

/// The commands of the shell, with their options.
fn commands() -> clap::Command {
    let mut built = Line::command();
    built.build();
    built
}
