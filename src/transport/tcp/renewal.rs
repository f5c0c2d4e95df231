//! Replacing certificates while a node runs.

use std::sync::Arc;

use super::context::{Context, HelperResult, Timer};
use crate::security::{Loaded, Security};

/// Reads the certificate files again now and then, on a thread of its own, `quorate-pem`: a disk
/// may be slow, and a deployment's secrets are often not on a local one. There is one such thread
/// at a time, and it is not joined.
#[derive(Debug, Default)]
pub(super) struct Renewal {
    /// Why the files could not be used at the last reading; logged once.
    reported: Option<String>,
}

impl Renewal {
    /// Sets the timer for the first reading, if there are files.
    pub(super) fn start(context: &mut Context) {
        if matches!(&context.options.security, Security::Tls(tls) if tls.is_from_files()) {
            arm(context);
        }
    }

    /// Starts to read the files.
    pub(super) fn read_files(&mut self, context: &mut Context) {
        let Security::Tls(tls) = &context.options.security else {
            return;
        };
        let tls = tls.clone();
        let answer_tx = context.results_tx.clone();
        let shared = Arc::clone(&context.shared);
        let started = std::thread::Builder::new().name("quorate-pem".to_owned()).spawn(move || {
            if answer_tx.send(HelperResult::Certificates(tls.read_again())).is_ok() {
                shared.wake();
            }
        });
        if let Err(error) = started {
            self.renew(context, Err(format!("cannot start a thread to read them: {error}")));
        }
    }

    /// Uses the content of the files for new connections, if it can be used.
    pub(super) fn renew(&mut self, context: &mut Context, read: Result<Option<Loaded>, String>) {
        arm(context);
        let Security::Tls(tls) = &mut context.options.security else {
            return;
        };
        self.reported = match read {
            Ok(None) => None,
            Ok(Some(loaded)) => {
                tls.renew(loaded);
                tracing::info!(?tls, "new connections use the renewed certificate");
                None
            }
            Err(reason) => {
                if self.reported.as_ref() != Some(&reason) {
                    tracing::warn!(
                        ?tls,
                        reason,
                        "the renewed certificate cannot be used; the former one stays in use"
                    );
                }
                Some(reason)
            }
        };
    }
}

fn arm(context: &mut Context) {
    let at = context.now + context.options.reload_interval;
    context.timers.set(Timer::Certificates, at);
}
