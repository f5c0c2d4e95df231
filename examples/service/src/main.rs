//! `job-service NAME HTTP_ADDRESS DIRECTORY PEER...`: the first peer is this instance.

use std::io::IsTerminal;

use job_service::App;
use quorate::Coordinator;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Without colours in a file.
    let is_colored = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    tracing_subscriber::fmt().with_ansi(is_colored).init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, http, directory, peers @ ..] = &arguments[..] else {
        return Err("usage: job-service NAME HTTP_ADDRESS DIRECTORY OWN_PEER [PEER...]".into());
    };
    let own = peers.first().ok_or("there is no peer, not even this instance")?;
    let mut term = signal(SignalKind::terminate())?;
    let coordinator = Coordinator::builder().advertise(own).data_dir(directory).join(peers).await?;
    let listener = TcpListener::bind(http).await?;
    let at = listener.local_addr()?;
    let app = App {
        coordinator: coordinator.clone(),
        name: name.clone(),
        address: at.ip().to_string(),
        port: at.port(),
    };
    let working = tokio::spawn(app.clone().run());
    let member = coordinator.clone();
    axum::serve(listener, app.router())
        .with_graceful_shutdown(async move {
            tokio::select! {
                _ = term.recv() => {}
                _ = member.wait_stopped() => {}
            }
        })
        .await?;
    // For a restart: the instance comes back with its directory. To leave for good, await `leave`.
    working.abort();
    coordinator.close().await?;
    // If the instance had stopped for good, for example because its disk has failed, the process ends with an
    // error, so that its supervisor starts it again.
    Ok(coordinator.wait_stopped().await?)
}
