//! `quorate import`: copies a tree out of a running ZooKeeper into a cluster.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use quorate::acl::Id;
use quorate::gateway::import::{Counts, Difference, Event, Import};
use quorate::{Coordinator, Error, Session};
use serde_json::{Map, Value, json};

use crate::access::AccessArgs;
use crate::text;

/// How long the cluster may take to serve this process.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often progress is shown where there is no terminal.
const LINE_EVERY: u64 = 10_000;

/// Exits with 0 if the cluster has everything that the source has (with --dry-run: if both could be read), with 1
/// if not, or if something failed, and with 2 if it was called wrongly.
#[derive(Debug, Args)]
pub(crate) struct ImportArgs {
    /// The servers of the ZooKeeper: host:port, separated by commas.
    #[arg(long, value_delimiter = ',', required = true)]
    from: Vec<String>,
    /// The znode to copy, with everything below it.
    #[arg(long, default_value = "/")]
    root: String,
    /// Where it goes; by default to the same path.
    #[arg(long)]
    to: Option<String>,
    #[command(flatten)]
    access: AccessArgs,
    /// Who reads the ZooKeeper, for example digest:super:password. The user needs READ and ADMIN everywhere.
    /// The variable keeps a password out of the list of processes.
    #[arg(
        long,
        env = "QUORATE_IMPORT_AUTH",
        hide_env_values = true,
        value_name = "SCHEME:CREDENTIALS"
    )]
    auth: Vec<String>,
    /// A snapshot file of a ZooKeeper server, which shows containers and times to live. Its clients cannot see
    /// them: without it all znodes become persistent.
    #[arg(long, value_name = "FILE")]
    snapshot: Option<PathBuf>,
    /// Gives znodes that exist with other data or another access list those of the source.
    #[arg(long)]
    overwrite: bool,
    /// Deletes what the source does not have, below the root.
    #[arg(long)]
    delete: bool,
    /// Shows the differences, and writes nothing.
    #[arg(long)]
    dry_run: bool,
    /// Shows the differences, writes nothing, and exits with 1 if there are any.
    #[arg(long, conflicts_with = "dry_run")]
    verify: bool,
    /// Writes a JSON object on each line of the standard output.
    #[arg(long)]
    json: bool,
}

/// Runs the import; returns whether it succeeded. Logs go to the standard error, filtered by
/// RUST_LOG.
pub(crate) fn run(arguments: &ImportArgs) -> bool {
    crate::logging::log("warn");
    let outcome = join(arguments).and_then(|(coordinator, session)| {
        let outcome = copy(arguments, &session);
        coordinator.close().wait().map_err(|error| error.to_string())?;
        outcome
    });
    outcome.unwrap_or_else(|error| {
        crate::complain(error);
        false
    })
}

/// Joins as a client that may do everything: this program has the cluster's secret, so the members
/// trust it anyway.
fn join(arguments: &ImportArgs) -> Result<(Coordinator, Session), String> {
    let text = |error: Error| error.to_string();
    let mut password = [0; 16];
    getrandom::fill(&mut password).map_err(|error| format!("no random bytes: {error}"))?;
    let password = format!("{:032x}", u128::from_ne_bytes(password));
    let user = "quorate-import";
    let builder = Coordinator::builder().super_user(Id::digest(user, &password));
    let coordinator = arguments.access.join(builder).map_err(text)?;
    coordinator.wait_ready(PATIENCE).wait().map_err(text)?;
    let session = coordinator.open_session().map_err(text)?;
    session.add_auth("digest", format!("{user}:{password}")).wait().map_err(text)?;
    Ok((coordinator, session))
}

fn copy(arguments: &ImportArgs, session: &Session) -> Result<bool, String> {
    let mut import = Import::from(&arguments.from)
        .root(&arguments.root)
        .overwrite(arguments.overwrite)
        .delete(arguments.delete);
    if let Some(to) = &arguments.to {
        import = import.to(to);
    }
    if let Some(snapshot) = &arguments.snapshot {
        import = import.kinds(snapshot);
    }
    for auth in &arguments.auth {
        let (scheme, credentials) =
            auth.split_once(':').ok_or("--auth needs scheme:credentials")?;
        import = import.auth(scheme, credentials);
    }
    let mut output = ImportOutput::new(arguments.json);
    let writes = !arguments.dry_run && !arguments.verify;
    let outcome = match writes {
        true => import.copy(session, |event| output.show(event)),
        false => import.compare(session, |event| output.show(event)),
    };
    output.end_progress();
    let counts = outcome.map_err(|error| error.to_string())?;
    output.summary(&counts);
    output.written.map_err(|error| format!("cannot write to the standard output: {error}"))?;
    Ok(counts.is_equal() || arguments.dry_run)
}

/// The output: results on the standard output, progress on the standard error.
struct ImportOutput {
    json: bool,
    terminal: bool,
    /// The number of znodes read when progress was last shown.
    shown: u64,
    differences: BTreeMap<Difference, u64>,
    written: io::Result<()>,
}

impl ImportOutput {
    fn new(json: bool) -> ImportOutput {
        let terminal = io::stderr().is_terminal();
        ImportOutput { json, terminal, shown: 0, differences: BTreeMap::new(), written: Ok(()) }
    }

    fn show(&mut self, event: Event<'_>) {
        match event {
            Event::Connected { server } => {
                self.end_progress();
                eprintln!("reads from {}", text::line(server));
            }
            Event::Progress(counts) if self.terminal || counts.read - self.shown >= LINE_EVERY => {
                let progress = format!("{} znodes read, {} created", counts.read, counts.created);
                match self.terminal {
                    true => eprint!("\r{}{progress} ", bar(counts)),
                    false => eprintln!("{progress}"),
                }
                self.shown = counts.read;
            }
            Event::Difference { path, difference } => {
                *self.differences.entry(difference).or_default() += 1;
                self.end_progress();
                match self.json {
                    true => self.line(&text::json_line(
                        &json!({ "path": path, "difference": word(difference) }),
                    )),
                    false => self.line(&format!("{} {difference}", text::line(path))),
                }
            }
            _ => {}
        }
    }

    /// Ends the line of the progress display.
    fn end_progress(&mut self) {
        if self.terminal && std::mem::take(&mut self.shown) > 0 {
            eprintln!();
        }
    }

    fn line(&mut self, text: &str) {
        if self.written.is_ok() {
            self.written = writeln!(io::stdout(), "{text}");
        }
    }

    fn summary(&mut self, counts: &Counts) {
        let numbers = [
            ("read", counts.read),
            ("created", counts.created),
            ("overwritten", counts.overwritten),
            ("same", counts.same),
            ("deleted", counts.deleted),
            ("counters", counts.counters),
            ("ephemerals", counts.ephemerals),
            ("gone", counts.gone),
            ("reconnects", counts.reconnects),
            ("differing", counts.differing),
        ];
        let differences = std::mem::take(&mut self.differences);
        let named = differences.iter().map(|(difference, count)| (word(*difference), *count));
        if self.json {
            let of = |(name, count): (&str, u64)| (name.to_owned(), Value::from(count));
            let mut all: Map<String, Value> = numbers.into_iter().map(of).collect();
            all.insert("differences".to_owned(), named.map(of).collect());
            return self.line(&Value::Object(all).to_string());
        }
        self.line(&format!(
            "{} znodes read: {} created, {} overwritten, {} the same; {} deleted; {} counts of children raised; \
             {} ephemerals left out; {} gone meanwhile",
            counts.read, counts.created, counts.overwritten, counts.same, counts.deleted, counts.counters,
            counts.ephemerals, counts.gone
        ));
        let named: Vec<String> = named.map(|(name, count)| format!("{count} {name}")).collect();
        match named.is_empty() {
            true => self.line("no difference is left"),
            false => self.line(&format!(
                "{} differences are left: {}",
                counts.differing,
                named.join(", ")
            )),
        }
    }
}

/// A progress bar, if the total is known.
fn bar(counts: &Counts) -> String {
    const WIDTH: u64 = 30;
    let Some(total) = counts.total.filter(|total| *total > 0) else { return String::new() };
    let read = (counts.read + counts.ephemerals + counts.gone).min(total);
    let done = (read * WIDTH / total) as usize;
    let left = WIDTH as usize - done;
    format!("[{}{}] {:>3} %  ", "#".repeat(done), ".".repeat(left), read * 100 / total)
}

/// A name for programs.
fn word(difference: Difference) -> &'static str {
    match difference {
        Difference::Missing => "missing",
        Difference::Data => "data",
        Difference::Acl => "acl",
        Difference::Kind => "kind",
        Difference::Extra => "extra",
        Difference::Counter => "counter",
        _ => "other",
    }
}
