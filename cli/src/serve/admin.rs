//! The admin endpoint of `quorate serve`.

use std::path::PathBuf;

use clap::ArgAction;
use clap::Args;
use clap::builder::BoolishValueParser;
use quorate::Coordinator;
use quorate::admin::Admin;

use crate::access::{content, credentials, warn_if_exposed};

#[derive(Debug, Args)]
pub(super) struct AdminArgs {
    /// Where operators look into the cluster, over HTTP: host:port, such as 127.0.0.1:7480. Without it, nowhere.
    #[arg(long)]
    admin: Option<String>,
    /// A file with the token that they need. Without it, the address must be on the loopback.
    #[arg(long)]
    admin_token_file: Option<PathBuf>,
    /// Whether they can change the cluster there: znodes, the leader, dead members and sessions.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1)]
    #[arg(default_value = "no", default_missing_value = "yes", value_parser = BoolishValueParser::new())]
    admin_writable: bool,
    /// Who the endpoint is for access lists, for example digest:user:password. The variable keeps a password
    /// out of the list of processes.
    #[arg(
        long,
        env = "QUORATE_ADMIN_AUTH",
        hide_env_values = true,
        value_name = "SCHEME:CREDENTIALS"
    )]
    admin_auth: Option<String>,
}

impl AdminArgs {
    /// Opens the endpoint, if it has an address.
    pub(super) fn serve(&self, coordinator: &Coordinator) -> quorate::Result<Option<Admin>> {
        let Some(address) = &self.admin else { return Ok(None) };
        let mut builder = Admin::builder().writable(self.admin_writable);
        if let Some(file) = &self.admin_token_file {
            warn_if_exposed(file);
            builder = builder.token(content(file, "admin-token-file")?.trim());
        }
        if let Some(auth) = &self.admin_auth {
            let (scheme, credentials) = credentials(auth, "admin-auth")?;
            builder = builder.auth(scheme, credentials);
        }
        let admin = builder.serve(coordinator, address.as_str())?;
        tracing::info!(address = %admin.address(), "operators are served");
        Ok(Some(admin))
    }
}
