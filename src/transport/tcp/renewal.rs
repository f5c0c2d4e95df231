//! Replacing secrets and certificates while a node runs.

use std::sync::Arc;
use std::time::Duration;

use super::context::{Context, HelperResult, Timer};
use crate::security::Security;

/// Reads the files of secrets and certificates again now and then, on a thread of its own, `quorate-keys`: a
/// disk may be slow, and a deployment's secrets are often not on a local one. There is one such thread
/// at a time, and it is not joined.
#[derive(Debug, Default)]
pub(super) struct Renewal {
    /// Why the files could not be used at the last reading; logged once.
    reported: Option<String>,
}

impl Renewal {
    /// Sets the timer for the first reading, if there are files.
    pub(super) fn start(context: &mut Context) {
        if context.options.security.is_from_files() {
            arm(context);
        }
    }

    /// Starts to read the files.
    pub(super) fn read_files(&mut self, context: &mut Context) {
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
            self.renew(context, Err(format!("cannot start a thread to read them: {error}")));
        }
    }

    /// Uses the content of the files for new connections, if it can be used. Returns the former one if it has
    /// changed, so that open connections are to be checked.
    pub(super) fn renew(
        &mut self,
        context: &mut Context,
        read: Result<Option<Security>, String>,
    ) -> Option<Security> {
        arm(context);
        let (changed, failed) = match read {
            Ok(None) => (None, None),
            Ok(Some(security)) => {
                tracing::info!(?security, "new connections use the renewed credentials");
                (Some(std::mem::replace(&mut context.options.security, security)), None)
            }
            Err(reason) => {
                if self.reported.as_ref() != Some(&reason) {
                    let security = &context.options.security;
                    tracing::warn!(
                        ?security,
                        reason,
                        "the renewed credentials cannot be used; the former ones stay in use"
                    );
                }
                (None, Some(reason))
            }
        };
        self.reported = failed;
        changed
    }
}

/// The content of the files, if it has changed and does not change any more: a file that is being written may be
/// a whole one that says less.
fn settled(security: &Security, pause: Duration) -> Result<Option<Security>, String> {
    let mut read = security.read_again()?;
    while let Some(new) = &read {
        std::thread::park_timeout(pause);
        match new.read_again()? {
            Some(newer) => read = Some(newer),
            None => break,
        }
    }
    Ok(read)
}

fn arm(context: &mut Context) {
    let at = context.now + context.options.reload_interval;
    context.timers.set(Timer::Credentials, at);
}
