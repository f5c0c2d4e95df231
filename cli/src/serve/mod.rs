//! `quorate serve`: a member with a gateway, and nothing else.

mod admin;
mod audit;
pub(crate) mod file;
mod tls;

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args};
use quorate::acl::Id;
use quorate::gateway::{Gateway, GatewayBuilder};
use quorate::security::Roles;
use quorate::{Builder, Coordinator, Error};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
#[cfg(target_os = "linux")]
use signal_hook::consts::SIGHUP;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use self::audit::AuditFile;
use crate::access::{warn_if_exposed, warn_if_shared};
use crate::keys::DataKeyArgs;
use crate::system;

/// The default address for clients.
const ZOOKEEPER: &str = "127.0.0.1:2181";

/// How long a member that leaves may take to hand over its vote. Kubernetes kills it after 30 seconds, unless it is set.
const LEAVE_TIME: Duration = Duration::from_secs(20);

/// The names of ZooKeeper's settings are taken, too. No setting requires another one here: those of a file are
/// looked at one by one.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// A file with settings, which hold unless they are given here: a line `name = value` for each.
    #[arg(long, env = "QUORATE_CONFIG")]
    config: Option<PathBuf>,
    /// All members that found the cluster: host:port, separated by commas. The same list everywhere.
    #[arg(long, env = "QUORATE_PEERS", value_delimiter = ',')]
    peers: Vec<String>,
    /// In place of peers: a name with the addresses of all members, and their port: host:port.
    #[arg(long, env = "QUORATE_DISCOVER", value_name = "NAME")]
    discover: Option<String>,
    /// How many members found the cluster if they discover each other: 2 to 64.
    #[arg(long, env = "QUORATE_EXPECTED", value_name = "N", default_value_t = 3)]
    expected: usize,
    /// The address to listen on, if it is another one: host:port.
    #[arg(long, env = "QUORATE_LISTEN")]
    listen: Option<String>,
    /// Which of the peers this one is, if their names do not show it: host:port.
    #[arg(long, env = "QUORATE_ADVERTISE")]
    advertise: Option<String>,
    /// Whether this member leaves the cluster for good when it is stopped, and does not come back with its data.
    #[arg(long, env = "QUORATE_LEAVE", action = ArgAction::Set, num_args = 0..=1)]
    #[arg(default_value = "no", default_missing_value = "yes", value_parser = BoolishValueParser::new())]
    leave: bool,
    /// Where this member keeps its data.
    #[arg(long, env = "QUORATE_DATA_DIR", alias = "dataDir")]
    data_dir: PathBuf,
    /// Where this member keeps its log, for a device of its own; by default in the data directory. It cannot be
    /// changed later, except by joining again with an empty data directory.
    #[arg(long, env = "QUORATE_LOG_DIR", alias = "dataLogDir")]
    log_dir: Option<PathBuf>,
    #[command(flatten)]
    keys: DataKeyArgs,
    /// A file with the secret that the members share, or two, a line each, while it is changed: the first is used,
    /// both are accepted. Without it, or certificates, the members must all be on this host.
    #[arg(long, env = "QUORATE_SECRET_FILE")]
    secret_file: Option<PathBuf>,
    /// A file with the secret of clients, or two: whoever has it can be a client without a replica, and no member.
    #[arg(long, env = "QUORATE_CLIENTS_SECRET_FILE", requires = "secret_file")]
    clients_secret_file: Option<PathBuf>,
    /// A file with the secret of operators, or two: as clients, and with an operator's actions.
    #[arg(long, env = "QUORATE_OPERATORS_SECRET_FILE", requires = "secret_file")]
    operators_secret_file: Option<PathBuf>,
    /// A file with the roles of certificates' subjects, a role a line: `role: subject`. Sessions of clients with such
    /// a certificate have the id role:role.
    #[arg(long, env = "QUORATE_ROLES_FILE")]
    roles_file: Option<PathBuf>,
    /// In milliseconds.
    #[arg(long, alias = "tickTime", default_value_t = 2000)]
    tick_time: u64,
    /// In milliseconds: 2 ticks, unless it is set.
    #[arg(long, alias = "minSessionTimeout")]
    min_session_timeout: Option<u64>,
    /// In milliseconds: 20 ticks, unless it is set.
    #[arg(long, alias = "maxSessionTimeout")]
    max_session_timeout: Option<u64>,
    /// How often empty containers are looked for, in milliseconds.
    #[arg(long, alias = "znode.container.checkIntervalMs", default_value_t = 60_000)]
    container_check_interval: u64,
    /// Who may do everything: user:hash, as ZooKeeper's superDigest.
    #[arg(long, alias = "superDigest")]
    super_digest: Option<String>,
    /// Where ZooKeeper's clients connect without TLS: host:port. 127.0.0.1:2181, unless they connect with TLS.
    #[arg(long)]
    zookeeper: Option<String>,
    /// How many clients may come from one address; 0: any number.
    #[arg(long, alias = "maxClientCnxns", default_value_t = 60)]
    max_client_cnxns: usize,
    /// How many clients there may be in all.
    #[arg(long, alias = "maxCnxns", default_value_t = 10_000)]
    max_cnxns: usize,
    /// The longest packet of a client in bytes. Replies may be longer.
    #[arg(long, alias = "jute.maxbuffer", default_value_t = 0xf_ffff)]
    jute_maxbuffer: usize,
    /// How many bytes may wait for all clients together, which have not read them.
    #[arg(long, default_value_t = 256 << 20)]
    max_buffer_bytes: usize,
    /// Which four-letter words are answered: * for all, "" for none. Without it those that name no sessions.
    #[arg(
        long = "4lw-commands-whitelist",
        alias = "4lw.commands.whitelist",
        value_delimiter = ','
    )]
    four_letter_words: Option<Vec<String>>,
    /// Whether clients that allow it are served reads while there is no quorum.
    #[arg(long, alias = "readonlymode.enabled", action = ArgAction::Set, num_args = 0..=1)]
    #[arg(default_value = "no", default_missing_value = "yes", value_parser = BoolishValueParser::new())]
    read_only_mode: bool,
    /// Whether all clients may do everything, whatever access lists say.
    #[arg(long, alias = "skipACL", action = ArgAction::Set, num_args = 0..=1)]
    #[arg(default_value = "no", default_missing_value = "yes", value_parser = BoolishValueParser::new())]
    skip_acl: bool,
    /// Where this member is, such as a data centre or a rack: voters are spread over the zones.
    #[arg(long, default_value = "")]
    zone: String,
    /// How much this member is wanted as the leader: before long, a voter of the highest priority leads.
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    leader_priority: i32,
    /// Whether who changed what is written to the log, with the target `quorate::audit`.
    #[arg(long, alias = "audit.enable", action = ArgAction::Set, num_args = 0..=1)]
    #[arg(default_value = "no", default_missing_value = "yes", value_parser = BoolishValueParser::new())]
    audit: bool,
    /// A file for the audit log, as lines of JSON; rotated at 64 MiB, with eight former ones. It has all lines, whatever
    /// `audit` is.
    #[arg(long, env = "QUORATE_AUDIT_FILE")]
    audit_file: Option<PathBuf>,
    /// Whether writes beyond the hard limit of a quota are refused: they always are.
    #[arg(long, alias = "enforceQuota", num_args = 0..=1)]
    #[arg(default_value = "yes", default_missing_value = "yes", value_parser = enforced)]
    enforce_quota: bool,
    #[command(flatten)]
    admin: admin::AdminArgs,
    #[command(flatten)]
    tls: tls::TlsArgs,
}

/// Raises the soft limit of open files to the hard one. The soft one is often 1,024, and each client needs a file.
fn raise_file_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, limit = limit.current, "the limit of open files cannot be raised");
    }
}

/// Serves until SIGTERM, SIGINT or the end of its terminal, or until the member has stopped for good, which is an error. Logs go to the
/// standard error, filtered by RUST_LOG.
pub(crate) fn run(arguments: ServeArgs) -> quorate::Result<&'static str> {
    let audit = arguments.audit_file.as_deref().map(AuditFile::open).transpose()?;
    let (layer, flusher) = audit.unzip();
    crate::logging::log_with("info", layer, arguments.audit_file.is_some() && !arguments.audit);
    if let Some(file) = &arguments.audit_file {
        warn_if_exposed(file);
    }
    let directories = [Some(&arguments.data_dir), arguments.log_dir.as_ref()];
    directories.into_iter().flatten().for_each(|directory| warn_if_shared(directory));
    let mut signals = Signals::new(ending_signals()).map_err(system("signals"))?;
    raise_file_limit();

    let gateways = arguments.gateways()?;
    let member = arguments.member()?;
    let coordinator = match &arguments.discover {
        Some(_) if !arguments.peers.is_empty() => {
            let reason = "the peers are listed or discovered: leave out peers or discover";
            return Err(Error::InvalidSetting { setting: "discover", reason: reason.to_owned() });
        }
        Some(name) => member.discover(name, arguments.expected).wait()?,
        None => member.join(arguments.peers.iter().map(|peer| peer.trim())).wait()?,
    };
    let serve = |(address, gateway): (&str, GatewayBuilder)| gateway.serve(&coordinator, address);
    let gateways: Vec<Gateway> = gateways.into_iter().map(serve).collect::<quorate::Result<_>>()?;
    for gateway in &gateways {
        tracing::info!(address = %gateway.address(), "ZooKeeper's clients are served");
    }
    let admin = arguments.admin.serve(&coordinator)?;
    let (member, signals_end) = (coordinator.clone(), signals.handle());
    let watch = move || {
        let stopped = member.wait_stopped().wait();
        signals_end.close();
        stopped
    };
    let watcher = std::thread::Builder::new().name("quorate-serve".to_owned()).spawn(watch);
    let watcher = watcher.map_err(system("a thread"))?;
    let Some(signal) = signals.forever().next() else {
        // Dropping them would wait for a disk, which may hang.
        std::mem::forget((coordinator, gateways));
        std::mem::forget(admin);
        if let Some(flusher) = flusher {
            flusher.flush();
        }
        let stopped = watcher.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        return stopped.map(|()| "stopped");
    };
    tracing::info!(signal, "stopping");
    drop(gateways);
    drop(admin);
    if arguments.leave
        && let Err(error) = coordinator.leave(LEAVE_TIME).wait()
    {
        tracing::warn!(%error, "it is still a member: it could not leave in time");
    }
    coordinator.close().wait()?;
    if let Some(flusher) = flusher {
        flusher.flush();
    }
    Ok("stopped")
}

/// The signals that close the member: also SIGHUP, unless `nohup` or whoever has started it has told it not to care.
fn ending_signals() -> Vec<i32> {
    #[cfg(target_os = "linux")]
    if let Ok(status) = std::fs::read_to_string("/proc/self/status")
        && !ignores(&status, SIGHUP)
    {
        return vec![SIGINT, SIGTERM, SIGHUP];
    }
    vec![SIGINT, SIGTERM]
}

/// Whether a process ignores a signal, by the text that the system has of it.
#[cfg(target_os = "linux")]
fn ignores(status: &str, signal: i32) -> bool {
    let mut ignored = status.lines().filter_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored.next().and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Refuses to switch quotas off: all replicas must apply writes in the same way, so no member can
/// be lenient on its own.
fn enforced(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "yes" | "true" | "on" | "1" => Ok(true),
        _ => Err("hard limits are always enforced: set soft limits instead".to_owned()),
    }
}

impl ServeArgs {
    /// The settings of the member.
    fn member(&self) -> quorate::Result<Builder> {
        let tick = Duration::from_millis(self.tick_time);
        let timeout = |set: Option<u64>, ticks| set.map_or(tick * ticks, Duration::from_millis);
        let mut builder: Builder = Coordinator::builder()
            .data_dir(&self.data_dir)
            .tick(tick)
            .session_timeout_bounds(
                timeout(self.min_session_timeout, 2),
                timeout(self.max_session_timeout, 20),
            )
            .container_check_interval(Duration::from_millis(self.container_check_interval));
        if let Some(dir) = &self.log_dir {
            builder = builder.log_dir(dir);
        }
        if let Some(address) = &self.listen {
            builder = builder.listen(address);
        }
        if let Some(address) = &self.advertise {
            builder = builder.advertise(address);
        }
        builder = builder.audit(self.audit || self.audit_file.is_some());
        builder = self.keys.encrypted(builder)?;
        builder = builder.zone(&self.zone).leader_priority(self.leader_priority);
        if let Some(digest) = &self.super_digest {
            builder = builder.super_user(Id::new("digest", digest));
        }
        if let Some(file) = &self.secret_file {
            let mut secret = crate::access::secret(file)?;
            if let Some(clients) = &self.clients_secret_file {
                secret = secret.with_clients(crate::access::secret(clients)?)?;
            }
            if let Some(operators) = &self.operators_secret_file {
                secret = secret.with_operators(crate::access::secret(operators)?)?;
            }
            builder = builder.security(secret);
        }
        if let Some(file) = &self.roles_file {
            builder = builder.auth_provider(Roles::from_file(file)?);
        }
        self.tls.member(builder, self.secret_file.is_some())
    }

    /// The gateways, with their addresses.
    fn gateways(&self) -> quorate::Result<Vec<(&str, GatewayBuilder)>> {
        let mut gateway = Gateway::builder()
            .connections_max(self.max_cnxns)
            .connections_per_address_max(self.max_client_cnxns)
            .packet_bytes_max(self.jute_maxbuffer)
            .buffer_bytes_max(self.max_buffer_bytes)
            .read_only_mode(self.read_only_mode)
            .skip_acl(self.skip_acl);
        if let Some(words) = &self.four_letter_words {
            gateway = gateway.four_letter_words(words);
        }
        let mut gateways: Vec<(&str, GatewayBuilder)> = Vec::new();
        gateways.extend(self.tls.gateway(&gateway)?);
        if let Some(address) = &self.zookeeper {
            gateways.push((address, gateway));
        } else if gateways.is_empty() {
            gateways.push((ZOOKEEPER, gateway));
        }
        Ok(gateways)
    }
}
