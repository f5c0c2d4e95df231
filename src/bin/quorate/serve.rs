//! `quorate serve`: a member with a gateway, and nothing else.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use quorate::{Builder, Coordinator, Error, Gateway, Id, Secret};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing_subscriber::EnvFilter;

/// The names of ZooKeeper's settings are taken, too.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// All members that found the cluster: host:port, separated by commas. The same list everywhere.
    #[arg(long, env = "QUORATE_PEERS", value_delimiter = ',', required = true)]
    peers: Vec<String>,
    /// Which of the peers this one is, if their names do not tell: host:port.
    #[arg(long)]
    listen: Option<String>,
    /// Where this member keeps its data.
    #[arg(long, alias = "dataDir")]
    data_dir: PathBuf,
    /// Where ZooKeeper's clients connect: host:port.
    #[arg(long, default_value = "127.0.0.1:2181")]
    zookeeper: String,
    /// A file with the secret that the members share. Without it they must all be on this host.
    #[arg(long, env = "QUORATE_SECRET_FILE")]
    secret_file: Option<PathBuf>,
    /// In milliseconds: sessions last 2 to 20 of it.
    #[arg(long, alias = "tickTime", default_value_t = 2000)]
    tick_time: u64,
    /// How many clients may come from one address; 0: any number.
    #[arg(long, alias = "maxClientCnxns", default_value_t = 60)]
    max_client_cnxns: usize,
    /// How many clients there may be in all.
    #[arg(long, alias = "maxCnxns", default_value_t = 10_000)]
    max_cnxns: usize,
    /// The longest packet in bytes.
    #[arg(long, alias = "jute.maxbuffer", default_value_t = 0xf_ffff)]
    jute_maxbuffer: usize,
    /// Who may do everything: user:hash, as ZooKeeper's superDigest.
    #[arg(long, alias = "superDigest")]
    super_digest: Option<String>,
    /// Which four-letter words are answered: * for all, "" for none. Without it those that name no sessions.
    #[arg(
        long = "4lw-commands-whitelist",
        alias = "4lw.commands.whitelist",
        value_delimiter = ','
    )]
    four_letter_words: Option<Vec<String>>,
}

/// Serves until it is told to stop. Logs go to the standard error, as RUST_LOG says.
pub(crate) fn run(arguments: Arguments) -> quorate::Result<&'static str> {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let system =
        |what| move |error: std::io::Error| Error::System { what, reason: error.to_string() };
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(system("signals"))?;

    let mut builder: Builder = Coordinator::builder()
        .data_dir(&arguments.data_dir)
        .tick(Duration::from_millis(arguments.tick_time));
    if let Some(address) = &arguments.listen {
        builder = builder.listen(address);
    }
    if let Some(digest) = arguments.super_digest {
        builder = builder.super_user(Id::new("digest", digest));
    }
    if let Some(file) = arguments.secret_file {
        let secret = std::fs::read_to_string(file).map_err(system("the file of the secret"))?;
        builder = builder.security(Secret::new(secret.trim())?);
    }
    let coordinator = builder.join(&arguments.peers)?;
    let mut gateway = Gateway::builder()
        .connections_max(arguments.max_cnxns)
        .connections_per_address_max(arguments.max_client_cnxns)
        .packet_bytes_max(arguments.jute_maxbuffer);
    if let Some(words) = arguments.four_letter_words {
        gateway = gateway.four_letter_words(&words);
    }
    let gateway = gateway.serve(&coordinator, &arguments.zookeeper)?;
    tracing::info!(address = %gateway.address(), "ZooKeeper's clients are served");
    let signal = signals.forever().next();
    tracing::info!(?signal, "stopping");
    drop(gateway);
    coordinator.close();
    Ok("stopped")
}
