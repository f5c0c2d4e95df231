//! A writer that never pauses, on every instance that an operator closes. It stands for application
//! threads that know nothing of the shutdown. It opens a new session whenever the last one is over.

use crate::simulation::checks::{Violation, require};
use crate::simulation::client::Client;
use crate::simulation::clock::{MILLI, Nanos};
use crate::simulation::kernel::Phase;
use crate::types::error::Error;
use crate::types::znode::{CreateMode, Created};

/// The pause after each write, which keeps the log small.
pub(crate) const PAUSE: Nanos = 20 * MILLI;

pub(crate) async fn run(client: Client) {
    let kernel = &client.kernel;
    while kernel.phase.get() == Phase::Chaos {
        let Ok((handle, opened)) = client.open(None) else { return };
        let opened = opened.await;
        if opened.is_err() {
            kernel.sleep(PAUSE).await;
        }
        let path = format!("/steady-{}", client.place);
        while opened.is_ok() && !handle.is_over() && kernel.phase.get() == Phase::Chaos {
            let written = handle.create_or_set(&path, b"on", CreateMode::Persistent).await;
            let checked = check(&client, &written);
            kernel.check(checked);
            kernel.sleep(PAUSE).await;
        }
    }
}

/// Checks M3 for one write.
fn check(client: &Client, written: &Result<Created, Error>) -> Result<(), Violation> {
    let kernel = &client.kernel;
    let mut checks = kernel.checks.borrow_mut();
    match written {
        Ok(_) => checks.handover.acknowledged(kernel.now(), &kernel.plan),
        // Any client may get these: before it has joined, or where few requests may wait.
        Err(Error::Busy { .. } | Error::DiskLow { .. } | Error::Unsupported { .. }) => Ok(()),
        Err(error) => {
            let goes = checks.handover.is_stopped(client.place);
            require(goes, "M3 a close fails no writes of others", || {
                format!("a write on instance {} failed: {error}", client.place)
            })
        }
    }
}
