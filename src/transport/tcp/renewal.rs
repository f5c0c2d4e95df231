//! Certificates that are replaced while a node runs.

use std::sync::Arc;

use super::Command;
use super::driver::{Context, Timer};
use crate::security::{Loaded, Security};

/// Reads the files of certificates again now and then, on a thread of its own, `quorate-pem`: a
/// disk may be slow, and secrets of a deployment are often on one that is not local. There is one
/// such thread at a time, and it is not joined.
#[derive(Debug)]
pub(super) struct Renewal {
    /// Why the files could not be used when they were last read: told once.
    told: Option<String>,
}

impl Renewal {
    pub(super) fn start(context: &mut Context) -> Renewal {
        if matches!(&context.options.security, Security::Tls(tls) if tls.is_from_files()) {
            arm(context);
        }
        Renewal { told: None }
    }

    /// Has the files read.
    pub(super) fn look(&mut self, context: &mut Context) {
        let Security::Tls(tls) = &context.options.security else {
            return;
        };
        let tls = tls.clone();
        let answer_tx = context.commands_tx.clone();
        let shared = Arc::clone(&context.shared);
        let started = std::thread::Builder::new().name("quorate-pem".to_owned()).spawn(move || {
            if answer_tx.send(Command::Certificates(tls.read_again())).is_ok() {
                shared.wake();
            }
        });
        if let Err(error) = started {
            self.renew(context, Err(format!("cannot start a thread to read them: {error}")));
        }
    }

    /// The files were read.
    pub(super) fn renew(&mut self, context: &mut Context, read: Result<Option<Loaded>, String>) {
        arm(context);
        let Security::Tls(tls) = &mut context.options.security else {
            return;
        };
        match read {
            Ok(None) => self.told = None,
            Ok(Some(loaded)) => {
                tls.renew(loaded);
                self.told = None;
                tracing::info!(?tls, "new connections have the renewed certificate");
            }
            Err(reason) => {
                if self.told.as_ref() != Some(&reason) {
                    tracing::warn!(
                        ?tls,
                        reason,
                        "the renewed certificate is of no use: keeping the former"
                    );
                }
                self.told = Some(reason);
            }
        }
    }
}

fn arm(context: &mut Context) {
    let at = context.now + context.options.reload_interval;
    context.timers.insert(at, Timer::Certificates);
}
