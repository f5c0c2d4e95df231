//! The program `quorate`: commands for running clusters, recovery from the remains of a cluster (see
//! `quorate::recovery`), a member as a process of its own, and the import from ZooKeeper.
//!
//! Exit codes: 0 success, 1 failure, 2 wrong usage, 3 no such znode, 4 the cluster cannot be reached or has
//! no quorum, 5 an election is under way, 6 writes are refused since disks are nearly full. Of `lock` and `elect`:
//! the code of the command, 7 others hold it, 8 it was lost while the command ran; of `create --ephemeral` 8, too.

mod access;
mod import;
mod keys;
mod live;
mod logging;
#[cfg(unix)]
mod serve;
mod text;

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use quorate::StartError;
use quorate::{Error, recovery};
use serde::Serialize;

use self::keys::{DataKeyArgs, FoundArgs, StoppedArgs};

/// It returns to the system what a flood of clients has taken, which glibc keeps: see "Clients that do not read" in
/// docs/gateway.md.
#[cfg(all(unix, target_env = "gnu"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Looks into running clusters of quorate, reads and writes their znodes, looks at data directories and
/// backups, founds new clusters from them, serves ZooKeeper's clients, and copies out of ZooKeeper.
#[derive(Debug, Parser)]
#[command(name = "quorate", version)]
struct Cli {
    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    #[command(flatten)]
    Live(live::LiveCommand),
    /// Runs a member that serves ZooKeeper's clients, until SIGTERM or SIGINT.
    #[cfg(unix)]
    Serve(Box<serve::ServeArgs>),
    /// Copies a tree out of a running ZooKeeper into a cluster; run again, it copies what is missing.
    Import(import::ImportArgs),
    /// Ends the process group of a command when the program that runs it is gone: see `live/group.rs`.
    #[cfg(unix)]
    #[command(hide = true)]
    Guard {
        /// How many seconds the command has to end.
        grace: u64,
    },
    /// Prints a script that completes the command line in a shell.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Shows what data directories of stopped instances hold, and changes nothing.
    Inspect {
        /// The directories.
        #[arg(required = true)]
        dirs: Vec<PathBuf>,
        /// Prints JSON, a line for each.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        stopped: StoppedArgs,
    },
    /// Founds a new cluster of one from the best of the data directories that are left.
    ///
    /// For when a majority of the voters is lost for good. Give all directories that are left: the
    /// more there are, the less is lost. Shows what would be done and what may be lost, and does it
    /// with --yes only. The old files are kept in the directory.
    Recover {
        /// The directories.
        #[arg(required = true)]
        dirs: Vec<PathBuf>,
        /// Does it.
        #[arg(long)]
        yes: bool,
        /// Takes a damaged directory too, up to the damage, if no sound one has as much.
        #[arg(long)]
        damaged: bool,
        /// Where the new member will be reached, if not where it was: host:port.
        #[arg(long)]
        address: Option<String>,
        /// Prints JSON: the plan, and what was founded.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        founding: FoundArgs,
    },
    /// Reads a backup to its end, and makes sure that it is sound.
    Verify {
        /// The backup.
        file: PathBuf,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        keys: DataKeyArgs,
    },
    /// Founds a new cluster of one from a backup, in an empty directory.
    Restore {
        /// The backup.
        file: PathBuf,
        /// The data directory to be.
        dir: PathBuf,
        /// Where the new member will be reached: host:port.
        #[arg(long)]
        address: String,
        /// Prints JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        founding: FoundArgs,
    },
}

fn main() -> ExitCode {
    let well = match arguments().command {
        CliCommand::Live(command) => return live(command),
        #[cfg(unix)]
        CliCommand::Serve(arguments) => print(serve::run(*arguments)),
        CliCommand::Import(arguments) => import::run(&arguments),
        #[cfg(unix)]
        CliCommand::Guard { grace } => live::group::guard(grace).is_ok(),
        CliCommand::Completions { shell } => completions(shell),
        CliCommand::Inspect { dirs, json, stopped } => {
            // Each directory is reported, even if another one has an error.
            dirs.iter().filter(|dir| !report(stopped.inspect(dir), json)).count() == 0
        }
        CliCommand::Recover { dirs, yes, damaged, address, json, founding } => {
            recover(founding.recover(&dirs, damaged), yes, address.as_deref(), json)
        }
        CliCommand::Verify { file, json, keys } => report(keys.verify(&file), json),
        CliCommand::Restore { file, dir, address, json, founding } => {
            report(founding.restore(&file, &dir, &address), json)
        }
    };
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The exit of the program.
#[derive(Clone, Copy, Debug)]
enum Exit {
    Well,
    Failed,
    Misused,
    NoNode,
    Unavailable,
    Election,
    WritesRefused,
    /// `lock` or `elect` was not given what it asked for in time.
    NotHeld,
    /// What it held was lost while its command ran.
    Lost,
    /// The exit code of the command.
    OfCommand(u8),
}

impl Exit {
    fn of(error: &Error) -> Exit {
        match error {
            Error::NoNode { .. } => Exit::NoNode,
            Error::DiskLow { .. } => Exit::WritesRefused,
            Error::Timeout { .. }
            | Error::Start(StartError::PeerRefused { .. })
            | Error::SessionExpired { .. }
            | Error::OutcomeUnknown { .. } => Exit::Unavailable,
            Error::InvalidSetting { .. } | Error::InvalidPath { .. } | Error::InvalidAcl { .. } => {
                Exit::Misused
            }
            _ => Exit::Failed,
        }
    }

    fn code(self) -> u8 {
        match self {
            Exit::Well => 0,
            Exit::Failed => 1,
            Exit::Misused => 2,
            Exit::NoNode => 3,
            Exit::Unavailable => 4,
            Exit::Election => 5,
            Exit::WritesRefused => 6,
            Exit::NotHeld => 7,
            Exit::Lost => 8,
            Exit::OfCommand(code) => code,
        }
    }
}

fn live(command: live::LiveCommand) -> ExitCode {
    let exit = live::run(command).unwrap_or_else(|error| {
        complain(&error);
        Exit::of(&error)
    });
    ExitCode::from(exit.code())
}

/// Moves the options that stand before the command behind it: `quorate --json status`. Whether one of them takes a
/// value follows from the options of all commands.
fn command_first(mut arguments: Vec<OsString>, program: &clap::Command) -> Vec<OsString> {
    let takes_value = |option: &str| {
        let all = program.get_subcommands().flat_map(clap::Command::get_arguments);
        let mut of_name = all.filter(|of| of.get_long() == option.strip_prefix("--"));
        of_name.any(|of| of.get_num_args().is_some_and(|count| count.min_values() > 0))
    };
    let mut at = 1;
    while let Some(option) = arguments.get(at).and_then(|argument| argument.to_str())
        && option.starts_with('-')
    {
        if ["--", "-h", "--help", "-V", "--version"].contains(&option) {
            return arguments;
        }
        at += if takes_value(option) { 2 } else { 1 };
    }
    if at < arguments.len() {
        arguments[1..=at].rotate_right(1);
    }
    arguments
}

/// Parses the command line, with the settings of the file that it names.
fn arguments() -> Cli {
    let mut built = Cli::command();
    built.build();
    let all = command_first(std::env::args_os().collect(), &built);
    #[cfg(unix)]
    let all = {
        let mut command = Cli::command();
        let serve = command.find_subcommand("serve").cloned();
        let all = serve.map_or(Ok(Vec::clone(&all)), |serve| serve::file::with_file(all, &serve));
        all.unwrap_or_else(|reason| {
            command.error(clap::error::ErrorKind::InvalidValue, reason).exit()
        })
    };
    Cli::parse_from::<Vec<OsString>, _>(all)
}

fn recover(
    plan: quorate::Result<recovery::Plan>,
    yes: bool,
    address: Option<&str>,
    json: bool,
) -> bool {
    let plan = match plan {
        Ok(plan) => plan,
        Err(error) => return print::<&str>(Err(error)),
    };
    // Nothing is written unless the plan could be printed.
    if !report(Ok(&plan), json) {
        return false;
    }
    if yes {
        return report(plan.found_anew(address), json);
    }
    let dir = plan.best.dir.display();
    let text = format!("nothing was written: with --yes, {dir} becomes a new cluster of one");
    if json {
        eprintln!("{text}");
    }
    json || print(Ok(text))
}

fn system(what: &'static str) -> impl FnOnce(io::Error) -> Error {
    move |error| Error::System { what, reason: error.to_string() }
}

/// Prints a completion script for a shell; returns whether it could be printed.
fn completions(shell: Shell) -> bool {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "quorate", &mut script);
    print(Ok(String::from_utf8_lossy(&script).trim_end()))
}

/// Prints an outcome as text or as JSON; returns whether it is a success.
fn report<T: Display + Serialize>(outcome: quorate::Result<T>, json: bool) -> bool {
    // All of these types can be converted to JSON.
    let value = |outcome| serde_json::to_value(outcome).unwrap_or_default();
    print(outcome.map(|outcome| match json {
        true => text::json_line(&value(outcome)),
        false => text::lines(&outcome.to_string()).into_owned(),
    }))
}

/// Reports an error. Its text may have parts that others have written.
fn complain(error: impl Display) {
    eprintln!("error: {}", text::line(&error.to_string()));
}

/// Prints an outcome; returns whether it is a success.
fn print<T: Display>(outcome: quorate::Result<T>) -> bool {
    match outcome {
        Ok(outcome) => match writeln!(io::stdout(), "{outcome}") {
            Ok(()) => true,
            Err(error) => {
                complain(format_args!("cannot write to the standard output: {error}"));
                false
            }
        },
        Err(error) => {
            complain(error);
            false
        }
    }
}
