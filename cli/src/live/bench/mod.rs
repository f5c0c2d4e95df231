//! `bench`: measures the performance of a cluster for a client on this machine.

mod load;

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use quorate::{Coordinator, CreateMode, Error, Result};
use serde_json::json;

use self::load::{BenchClient, Load, Measurement, Operation};
use super::{ClusterArgs, Shown, above, interrupted, is_watched};
use crate::{Exit, complain};

/// How many calls of a client are in flight when they are pipelined.
const DEPTH: usize = 64;
/// The most bytes in flight of all clients together.
const BYTES_UNDER_WAY: usize = 32 << 20;
/// The meaning of the figures.
const ABOUT: &str =
    "one instance without a replica, over the network, through the member that serves it";
const NOT_ABOUT: &str =
    "a process with a replica reads its own memory, and its writes save that hop";

/// What to measure.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// So many sessions call at the same time, each for a znode of its own.
    #[arg(long, default_value_t = 8, value_parser = RangedU64ValueParser::<usize>::new().range(1..=256))]
    clients: usize,
    /// Each measurement takes so many seconds.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// So many bytes of data has each znode.
    #[arg(long, default_value_t = 100, value_parser = RangedU64ValueParser::<usize>::new().range(0..=1 << 20))]
    size: usize,
    /// Its znodes are created below this one, and removed at the end.
    #[arg(long, default_value = "/quorate-bench")]
    path: String,
    /// Also measures gets and sets mixed, with so many gets in a hundred.
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(0..=100))]
    reads: Option<u8>,
}

impl BenchArgs {
    pub(super) fn run(&self, cluster: &ClusterArgs) -> Result<Exit> {
        let is_over = interrupted()?;
        let coordinator = cluster.coordinator()?;
        let session = cluster.session(&coordinator)?;
        let mut created = Vec::new();
        let mut clients = Vec::new();
        let measured = self
            .prepare(cluster, &coordinator, &session, &mut created, &mut clients)
            .and_then(|()| self.measure(cluster, &clients, &is_over));
        let removed = remove(&session, &created, &clients);
        let measured = measured?;
        removed?;
        let Some(measured) = measured else {
            complain("it was interrupted; its znodes are removed");
            return Ok(Exit::Failed);
        };
        cluster.print(self.shown(&measured))
    }

    /// Creates the znodes for the measurement, and records in `created` which ones to remove, even if it
    /// fails halfway. The clients' znodes are ephemeral and the others are containers: if this program is
    /// killed, the cluster removes them.
    fn prepare(
        &self,
        cluster: &ClusterArgs,
        coordinator: &Coordinator,
        session: &quorate::Session,
        created: &mut Vec<String>,
        clients: &mut Vec<BenchClient>,
    ) -> Result<()> {
        for path in above(&self.path).chain([self.path.as_str()]) {
            match session.create(path, b"", CreateMode::Container).wait() {
                Ok(_) => created.push(path.to_owned()),
                Err(Error::NodeExists { .. }) => {}
                // The outcome of the create may be unknown. Removing the znode later is safe, since
                // one with children is not deleted.
                Err(error) => {
                    if error.is_outcome_unknown() {
                        created.push(path.to_owned());
                    }
                    return Err(error);
                }
            }
        }
        let data = vec![b'.'; self.size];
        for _ in 0..self.clients {
            let session = coordinator.open_session()?;
            cluster.authenticate(&session)?;
            let prefix = format!("{}/client-", self.path.trim_end_matches('/'));
            let path = session.create(&prefix, &data, CreateMode::EphemeralSequential).wait()?.path;
            clients.push(BenchClient { session, path });
        }
        Ok(())
    }

    /// Runs the measurements one after the other; `None` if they were interrupted.
    fn measure(
        &self,
        cluster: &ClusterArgs,
        clients: &[BenchClient],
        is_over: &AtomicBool,
    ) -> Result<Option<Vec<Measurement>>> {
        let data = vec![b'.'; self.size];
        let many = (BYTES_UNDER_WAY / self.clients / self.size.max(1)).clamp(1, DEPTH);
        let mut loads = vec![
            ("set", Operation::Set, 1),
            ("set, pipelined", Operation::Set, many),
            ("get", Operation::Get, 1),
            ("sync", Operation::Sync, 1),
        ];
        if let Some(reads) = self.reads {
            loads.push(("get and set", Operation::Mixed(reads), 1));
        }
        let mut measured = Vec::new();
        for (name, operation, depth) in loads {
            if is_over.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let load = Load {
                name,
                operation,
                depth,
                data: &data,
                time: Duration::from_secs(self.seconds),
                wait: cluster.wait(),
                is_over,
                is_shown: !cluster.json && is_watched(),
            };
            match load.run(clients)? {
                Some(of) => measured.push(of),
                None => return Ok(None),
            }
        }
        Ok(Some(measured))
    }

    fn shown(&self, measured: &[Measurement]) -> Shown {
        let mut text = format!(
            "{} sessions, {} s for each line, znodes of {} B\nmeasured: {ABOUT}\nnot measured: {NOT_ABOUT}\n\n",
            self.clients, self.seconds, self.size
        );
        let titles = ["calls/s", "p50 ms", "p99 ms", "p99.9 ms", "max ms"];
        let _ = write!(text, "{:<22}", "");
        for title in titles {
            let _ = write!(text, "{title:>10}");
        }
        text.push('\n');
        for of in measured {
            let name = match of.depth {
                1 => of.name.to_owned(),
                depth => format!("{} ({depth})", of.name),
            };
            let _ = write!(text, "{name:<22}{:>10.0}", of.per_second());
            for (_, ms) in quantiles(of) {
                let _ = write!(text, "{ms:>10.3}");
            }
            text.push('\n');
        }
        let results: Vec<_> = measured
            .iter()
            .map(|of| {
                let mut result = json!({
                    "operation": of.name,
                    "depth": of.depth,
                    "calls": of.times.len(),
                    "seconds": of.elapsed.as_secs_f64(),
                    "calls_per_second": of.per_second(),
                });
                for (name, ms) in quantiles(of) {
                    result[name] = ms.into();
                }
                result
            })
            .collect();
        let json = json!({
            "about": ABOUT,
            "clients": self.clients,
            "size": self.size,
            "reads_percent": self.reads,
            "results": results,
        });
        Shown::new(text, json)
    }
}

/// Quantiles in milliseconds.
fn quantiles(of: &Measurement) -> [(&'static str, f64); 4] {
    let at = |quantile| of.times.value_at_quantile(quantile) as f64 / 1e6;
    [("p50_ms", at(0.5)), ("p99_ms", at(0.99)), ("p999_ms", at(0.999)), ("max_ms", at(1.0))]
}

/// Removes the created znodes, and nothing that others have created below them.
fn remove(session: &quorate::Session, created: &[String], clients: &[BenchClient]) -> Result<()> {
    let mut removed = Ok(());
    for client in clients {
        // The end of the session removes its znode, even if this fails.
        removed = removed.and(client.session.close().wait());
    }
    for path in created.iter().rev() {
        match session.delete(path).wait() {
            // The cluster may have deleted an empty container already.
            Ok(()) | Err(Error::NoNode { .. } | Error::NotEmpty { .. }) => {}
            Err(error) => removed = removed.and(Err(error)),
        }
    }
    removed
}
