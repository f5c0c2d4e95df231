//! Replacing secrets and certificates while a node runs.

use std::sync::Arc;
use std::time::Duration;

use super::context::{HelperResult, NetworkContext, NetworkTimer};
use crate::security::{Reading, Security};

/// How often files that change are read again at once.
const READINGS_MAX: u32 = 10;

/// Reads the files of secrets and certificates again now and then, on a thread of its own, `quorate-keys`: a
/// disk may be slow, and a deployment's secrets are often not on a local one. There is one such thread
/// at a time, and it is not joined.
#[derive(Debug, Default)]
pub(super) struct KeyRenewal {
    /// Why the files could not be used at the last reading; logged once.
    reported: Option<String>,
}

impl KeyRenewal {
    /// Sets the timer for the first reading, if there are files.
    pub(super) fn start(context: &mut NetworkContext) {
        if context.options.security.is_from_files() {
            arm(context);
        }
    }

    /// Starts to read the files.
    pub(super) fn read_files(&mut self, context: &mut NetworkContext) {
        let security = context.options.security.clone();
        let answer_tx = context.results_tx.clone();
        let shared = Arc::clone(&context.shared);
        let pause = context.options.reload_interval / 10;
        let started =
            std::thread::Builder::new().name("quorate-keys".to_owned()).spawn(move || {
                if answer_tx.send(HelperResult::Security(settled(&security, pause))).is_ok() {
                    shared.wake();
                }
            });
        if let Err(error) = started {
            let wrong = Some(format!("cannot start a thread to read them: {error}"));
            self.renew(context, Reading { renewed: None, wrong });
        }
    }

    /// Uses the content of the files for new connections, if it can be used. Returns the former one if it has
    /// changed, so that open connections are to be checked.
    pub(super) fn renew(
        &mut self,
        context: &mut NetworkContext,
        read: Reading<Security>,
    ) -> Option<Security> {
        arm(context);
        let former = read.renewed.map(|security| {
            tracing::info!(?security, "new connections use the renewed credentials");
            std::mem::replace(&mut context.options.security, security)
        });
        if let Some(reason) = read.wrong.as_ref().filter(|_| self.reported != read.wrong) {
            let security = &context.options.security;
            tracing::warn!(
                ?security,
                reason,
                "renewed credentials cannot be used; the former ones stay in use"
            );
        }
        self.reported = read.wrong;
        former
    }
}

/// What the files have, once it does not change any more: a file that is being written may be a whole one that
/// says less. What still changes is left to the next reading.
fn settled(security: &Security, pause: Duration) -> Reading<Security> {
    let mut read = security.read_again();
    for _ in 0..READINGS_MAX {
        let Some(new) = &read.renewed else { return read };
        std::thread::park_timeout(pause);
        let again = new.read_again();
        match again.renewed {
            None if again.wrong == read.wrong => return read,
            None => read.wrong = again.wrong,
            renewed => read = Reading { renewed, wrong: again.wrong },
        }
    }
    Reading {
        renewed: None,
        wrong: Some("the files of credentials change all the time".to_owned()),
    }
}

fn arm(context: &mut NetworkContext) {
    let at = context.now + context.options.reload_interval;
    context.timers.set(NetworkTimer::Credentials, at);
}
