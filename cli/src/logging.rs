//! Log lines of the program, on the standard error.

use std::io::{self, IsTerminal};

use tracing_subscriber::filter::FilterFn;
use tracing_subscriber::layer::{Identity, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

/// Writes log lines to the standard error, filtered by RUST_LOG; coloured on a terminal, unless NO_COLOR is set.
pub(crate) fn log(default: &str) {
    log_with(default, None::<Identity>, false);
}

/// As [`log`], with a further layer; `audits_elsewhere`: the lines of the audit log are not written here, too.
pub(crate) fn log_with(
    default: &str,
    layer: Option<impl Layer<Registry> + Send + Sync>,
    audits_elsewhere: bool,
) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let is_colored = io::stderr().is_terminal() && !is_plain;
    let lines = tracing_subscriber::fmt::layer().with_ansi(is_colored).with_writer(io::stderr);
    let elsewhere = FilterFn::new(move |of| !(audits_elsewhere && of.target() == "quorate::audit"));
    let lines = lines.with_filter(filter).with_filter(elsewhere);
    tracing_subscriber::registry().with(layer).with(lines).init();
}
