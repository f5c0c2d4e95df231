//! The four-letter words, in ZooKeeper's formats: existing monitors parse them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Display, Write};
use std::fs;
use std::path::Path;
use std::time::Duration;

use super::clients::{Clients, GatewayClient};
use super::quorum::Service;
use super::wire::codes::OpCode;
use crate::api::support::{ReplicaSessions, files};
use crate::types::membership::NodeId;
use crate::types::znode::{SessionId, Zxid};

pub(super) const KNOWN: &[[u8; 4]] = &[
    *b"ruok", *b"isro", *b"srvr", *b"stat", *b"mntr", *b"envi", *b"conf", *b"dirs", *b"wchs",
    *b"wchc", *b"wchp", *b"cons", *b"dump", *b"crst", *b"srst", *b"hash", *b"gtmk", *b"stmk",
];

/// The words that are answered by default: none that names sessions or watched paths, and none that changes
/// something.
pub(super) const HARMLESS: &[&str] =
    &["ruok", "isro", "srvr", "stat", "mntr", "envi", "conf", "dirs", "wchs", "hash", "gtmk"];

/// The words that are answered without a quorum, too.
pub(super) const ALWAYS: &[[u8; 4]] = &[*b"ruok", *b"isro", *b"envi", *b"gtmk", *b"stmk"];

/// The answer to all others then.
pub(super) const NOT_SERVING: &str = "This ZooKeeper instance is not currently serving requests\n";

/// The words of a list; "*" means all.
pub(super) fn named(list: &[impl AsRef<str>]) -> Vec<[u8; 4]> {
    let is_named = |word: &&[u8; 4]| {
        list.iter().any(|name| ["*".as_bytes(), *word].contains(&name.as_ref().trim().as_bytes()))
    };
    KNOWN.iter().filter(is_named).copied().collect()
}

/// The version of ZooKeeper whose behaviour is implemented. Clients derive the features of a server
/// from it.
const VERSION: &str = concat!("3.9.4-quorate-", env!("CARGO_PKG_VERSION"));

/// The data for the answers.
impl Clients {
    fn state(&self) -> &'static str {
        let status = self.shared.readiness.status();
        match (status.is_leader, status.leader) {
            _ if self.quorum.service() == Service::ReadOnly => "read-only",
            (true, _) => "leader",
            (false, Some(_)) if self.shared.has_replica => "follower",
            (false, Some(_)) => "observer",
            (false, None) => "looking",
        }
    }

    /// The zxid of the last write here, and the number of znodes. The status may be a little older.
    fn contents(&self) -> (Zxid, usize) {
        let (tree, status) = (self.shared.tree(), self.shared.readiness.status());
        match self.shared.has_replica {
            true => (tree.zxid(), tree.len()),
            false => (status.zxid, status.znodes),
        }
    }

    fn waiting(&self) -> usize {
        self.connected.values().map(|client| client.connection.waiting.len()).sum()
    }

    /// The ephemeral znodes, by session.
    fn ephemerals(&self) -> BTreeMap<SessionId, Vec<String>> {
        ReplicaSessions::of(&self.shared).iter().flat_map(ReplicaSessions::ephemerals).collect()
    }

    /// A time of the clock as milliseconds since 1970.
    fn wall_ms(&self, at: Duration) -> u128 {
        let clock = &self.shared.clock;
        u128::from(clock.wall_ms()).saturating_sub(clock.now().saturating_sub(at).as_millis())
    }
}

impl GatewayClient {
    fn session(&self) -> u64 {
        self.connection.session.get().map_or(0, |session| session.id.0)
    }
}

/// The answer to a word. (Writing to a string cannot fail.)
pub(super) fn answer(word: [u8; 4], seen: &Clients) -> String {
    let mut text = String::new();
    match &word {
        b"ruok" => text.push_str("imok"),
        b"isro" => text.push_str(match seen.quorum.service() {
            Service::Full => "rw",
            Service::ReadOnly => "ro",
            Service::Refused => "null",
        }),
        b"srvr" => server(&mut text, seen, false),
        b"stat" => server(&mut text, seen, true),
        b"mntr" => monitor(&mut text, seen),
        b"envi" => {
            let _ = writeln!(text, "Environment:\nzookeeper.version={VERSION}");
            let _ = writeln!(text, "os.name={}", std::env::consts::OS);
            let _ = writeln!(text, "os.arch={}", std::env::consts::ARCH);
        }
        b"conf" => configuration(&mut text, seen),
        b"dirs" => {
            let (data, log) = sizes(seen);
            let _ = writeln!(text, "datadir_size: {data}\nlogdir_size: {log}");
        }
        b"wchs" => watch_summary(&mut text, seen),
        b"wchc" => {
            let of = |client: &GatewayClient| {
                let paths = client.connection.watches.paths().map(str::to_owned);
                (format!("{:#x}", client.session()), paths.collect::<Vec<_>>())
            };
            let by_session: BTreeMap<_, _> = seen.connected.values().map(of).collect();
            groups(&mut text, by_session);
        }
        b"wchp" => {
            let mut by_path: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for client in seen.connected.values() {
                for path in client.connection.watches.paths() {
                    let session = format!("{:#x}", client.session());
                    by_path.entry(path.to_owned()).or_default().push(session);
                }
            }
            groups(&mut text, by_path);
        }
        b"cons" => {
            for client in seen.connected.values() {
                connection(&mut text, seen, client, true);
            }
            text.push('\n');
        }
        b"dump" => dump(&mut text, seen),
        // ZooKeeper shows the last of its periodic hashes. Here one is enough: all replicas have
        // the same hash at the same zxid.
        b"hash" => {
            let tree = seen.shared.tree();
            let _ = writeln!(text, "{:x}: {}", tree.zxid(), tree.hash().cast_signed());
        }
        b"gtmk" | b"stmk" => text.push_str(&seen.totals.trace_mask.to_string()),
        b"crst" => text.push_str("Connection stats reset.\n"),
        b"srst" => text.push_str("Server stats reset.\n"),
        _ => {}
    }
    text
}

fn configuration(text: &mut String, seen: &Clients) {
    let limits = seen.shared.limits;
    let tick = limits.tick.as_millis();
    let port = i32::from(seen.address.port());
    let (plain, secure) = if seen.settings.is_secure() { (-1, port) } else { (port, -1) };
    let _ = writeln!(text, "clientPort={plain}\nsecureClientPort={secure}");
    if let Some(directory) = seen.shared.readiness.directory() {
        let (data, log) = sizes(seen);
        let (path, log_path) = (directory.path(), directory.log().unwrap_or_default());
        let _ = writeln!(text, "dataDir={}\ndataDirSize={data}", path.display());
        let _ = writeln!(text, "dataLogDir={}\ndataLogSize={log}", log_path.display());
    }
    let _ = writeln!(text, "tickTime={tick}");
    let _ = writeln!(text, "maxClientCnxns={}", seen.settings.connections_per_address_max);
    let _ = writeln!(text, "minSessionTimeout={}", limits.timeouts.least.as_millis());
    let _ = writeln!(text, "maxSessionTimeout={}", limits.timeouts.most.as_millis());
    let _ = writeln!(text, "clientPortListenBacklog=-1");
    let _ = writeln!(text, "serverId={}", server_id(seen.shared.cluster.node));
}

/// A member's id as a positive number of Java's `long`.
fn server_id(node: NodeId) -> u64 {
    node & (u64::MAX >> 1)
}

fn server(text: &mut String, seen: &Clients, with_clients: bool) {
    let (zxid, znodes) = seen.contents();
    let _ = writeln!(text, "Zookeeper version: {VERSION}, built on -");
    if with_clients {
        let _ = writeln!(text, "Clients:");
        for client in seen.connected.values() {
            connection(text, seen, client, false);
        }
        text.push('\n');
    }
    let (least, mean, most) = seen.totals.counts.latency_ms();
    let _ = writeln!(text, "Latency min/avg/max: {least}/{mean:?}/{most}");
    let _ = writeln!(text, "Received: {}", seen.totals.counts.received);
    let _ = writeln!(text, "Sent: {}", seen.totals.counts.sent);
    let _ = writeln!(text, "Connections: {}", seen.connected.len());
    let _ = writeln!(text, "Outstanding: {}", seen.waiting());
    let _ = writeln!(text, "Zxid: {zxid:#x}");
    let _ = writeln!(text, "Mode: {}", seen.state());
    let _ = writeln!(text, "Node count: {znodes}");
}

fn connection(text: &mut String, seen: &Clients, client: &GatewayClient, in_full: bool) {
    let GatewayClient { address, connection, counts, since, .. } = client;
    let session = connection.session.get();
    let _ = write!(
        text,
        " /{address}[{}](queued={},recved={},sent={}",
        u8::from(session.is_some()),
        connection.waiting.len(),
        counts.received,
        counts.sent
    );
    if let (true, Some(session)) = (in_full, session) {
        let _ = write!(
            text,
            ",sid={:#x},lop={},est={},to={}",
            session.id.0,
            counts.last.map_or("NA", |last| short_name(last.op)),
            seen.wall_ms(*since),
            session.timeout().as_millis()
        );
        if let Some(last) = counts.last {
            let (least, mean, most) = counts.latency_ms();
            let _ = write!(
                text,
                ",lcxid={:#x},lzxid={:#x},lresp={},llat={},minlat={least},avglat={},maxlat={most}",
                last.xid,
                last.zxid,
                last.at.as_millis(),
                last.latency.as_millis(),
                mean as u64
            );
        }
    }
    text.push_str(")\n");
}

/// ZooKeeper's abbreviations of ops.
fn short_name(op: i32) -> &'static str {
    let Ok(op) = OpCode::try_from(op) else { return "NA" };
    match op {
        OpCode::Ping => "PING",
        OpCode::CreateSession => "SESS",
        OpCode::Multi => "MULT",
        OpCode::MultiRead => "MLTR",
        OpCode::Create | OpCode::Create2 | OpCode::CreateContainer | OpCode::CreateTtl => "CREA",
        OpCode::Delete => "DELE",
        OpCode::SetData => "SETD",
        OpCode::SetAcl => "SETA",
        OpCode::CloseSession => "CLOS",
        OpCode::Sync => "SYNC",
        OpCode::Exists => "EXIS",
        OpCode::GetData => "GETD",
        OpCode::SetWatches => "SETW",
        OpCode::SetWatches2 => "STW2",
        OpCode::AddWatch => "ADDW",
        OpCode::GetAcl => "GETA",
        OpCode::GetChildren | OpCode::GetChildren2 => "GETC",
        OpCode::CheckWatches => "CHKW",
        OpCode::RemoveWatches => "REMW",
        OpCode::WhoAmI => "HOMI",
        OpCode::GetEphemerals => "GETE",
        _ => "NA",
    }
}

fn monitor(text: &mut String, seen: &Clients) {
    let status = seen.shared.readiness.status();
    let mut line = |name: &str, value: &dyn Display| {
        let _ = writeln!(text, "zk_{name}\t{value}");
    };
    line("version", &format_args!("{VERSION}, built on -"));
    line("server_state", &seen.state());
    let (least, mean, most) = seen.totals.counts.latency_ms();
    line("min_latency", &least);
    line("avg_latency", &format_args!("{mean:?}"));
    line("max_latency", &most);
    line("packets_received", &seen.totals.counts.received);
    line("packets_sent", &seen.totals.counts.sent);
    line("num_alive_connections", &seen.connected.len());
    line("outstanding_requests", &seen.waiting());
    line("uptime", &seen.shared.clock.now().saturating_sub(seen.totals.since).as_millis());
    for (reason, count) in seen.endings.counts() {
        line(&format!("connections_ended_{reason}"), &count);
    }
    line("buffered_bytes", &seen.held_bytes());
    line("znode_count", &seen.contents().1);
    line("global_sessions", &status.sessions);
    let watches = seen.connected.values().map(|client| client.connection.watches.len());
    line("watch_count", &watches.sum::<usize>());
    if seen.shared.has_replica {
        let sessions = ReplicaSessions::of(&seen.shared);
        let ephemerals = sessions.map_or(0, |sessions| sessions.ephemeral_count());
        line("ephemerals_count", &ephemerals);
        line("approximate_data_size", &seen.shared.tree().bytes());
    }
    if let (Ok(open), Some(most)) = (fs::read_dir("/proc/self/fd"), files::files_max()) {
        line("open_file_descriptor_count", &open.count());
        line("max_file_descriptor_count", &most);
    }
    let voters = &status.availability.voters;
    line("quorum_size", &voters.len());
    if status.is_leader {
        let synced = status.peers.iter().filter(|(_, problem)| problem.is_none());
        let (followers, observers): (Vec<_>, Vec<_>) =
            synced.partition(|(peer, _)| voters.contains(peer));
        line("followers", &status.peers.len());
        line("learners", &status.peers.len());
        line("synced_followers", &followers.len());
        line("synced_observers", &observers.len());
        // A member without a vote is an observer.
        line("synced_non_voting_followers", &0);
        let syncs = seen.connected.values().map(|client| client.connection.waiting.syncs());
        line("pending_syncs", &syncs.sum::<usize>());
        let since = status.leads_since.unwrap_or_else(|| seen.shared.clock.now());
        line("leader_uptime", &seen.shared.clock.now().saturating_sub(since).as_millis());
    }
}

/// The bytes of the data directory without the log, and those of the log.
fn sizes(seen: &Clients) -> (u64, u64) {
    let Some(directory) = seen.shared.readiness.directory() else { return (0, 0) };
    let all = size(directory.path());
    let Some(path) = directory.log() else { return (all, 0) };
    let log = size(&path);
    let within = if path.starts_with(directory.path()) { log } else { 0 };
    (all.saturating_sub(within), log)
}

/// Files that are deleted during the walk count as empty.
fn size(directory: &Path) -> u64 {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    let of = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => size(&entry.path()),
        Ok(metadata) => metadata.len(),
        Err(_) => 0,
    };
    entries.flatten().map(of).sum()
}

fn watch_summary(text: &mut String, seen: &Clients) {
    let watches = || seen.connected.values().map(|client| &client.connection.watches);
    let watching = watches().filter(|watches| watches.paths().next().is_some()).count();
    let paths: BTreeSet<&str> = watches().flat_map(|watches| watches.paths()).collect();
    let all: usize = watches().map(|watches| watches.len()).sum();
    let _ = writeln!(text, "{watching} connections watching {} paths", paths.len());
    let _ = writeln!(text, "Total watches:{all}");
}

fn groups(text: &mut String, groups: BTreeMap<String, Vec<String>>) {
    for (of, members) in groups.into_iter().filter(|(_, members)| !members.is_empty()) {
        let _ = writeln!(text, "{of}");
        for member in members {
            let _ = writeln!(text, "\t{member}");
        }
    }
    text.push('\n');
}

/// The sessions are those of the connections here, as in a ZooKeeper follower's answer.
fn dump(text: &mut String, seen: &Clients) {
    let sessions = || seen.connected.values().filter_map(|client| client.connection.session.get());
    let _ = writeln!(text, "SessionTracker dump:\nGlobal ReplicaSessions({}):", sessions().count());
    for session in sessions() {
        let _ = writeln!(text, "{:#x}\t{}ms", session.id.0, session.timeout().as_millis());
    }
    let ephemerals = seen.ephemerals();
    let _ =
        writeln!(text, "ephemeral nodes dump:\nSessions with Ephemerals ({}):", ephemerals.len());
    for (session, paths) in ephemerals {
        let _ = writeln!(text, "{:#x}:", session.0);
        for path in paths {
            let _ = writeln!(text, "\t{path}");
        }
    }
    let count = seen.connected.len();
    let _ = writeln!(text, "Connections dump:\nConnections Sets ({count})/({count}):");
    for client in seen.connected.values() {
        let (address, session) = (client.address, client.session());
        let _ = writeln!(text, "\tip: /{address} sessionId: {session:#x}");
    }
}
