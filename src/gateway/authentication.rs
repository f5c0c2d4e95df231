//! Checks credentials on a thread of its own, so that it delays nobody else: a hash may take 20 ms, and a
//! provider of the application even longer.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread;

use crossbeam_channel::{Sender, bounded};

use crate::runtime::mailbox::{Delivery, Recipient};
use crate::runtime::shared::NodeShared;
use crate::types::error::Error;

/// How many credentials may wait to be checked.
const WAITING_MAX: usize = 256;
/// The longest credentials.
const CREDENTIALS_BYTES_MAX: usize = 4 << 10;

/// The thread that checks credentials. It ends when the last handle is dropped.
#[derive(Clone, Debug)]
pub(super) struct Authenticator {
    jobs: Sender<Job>,
}

#[derive(Debug)]
struct Job {
    of: Recipient,
    /// Dropped with the connection.
    asker: Weak<()>,
    scheme: String,
    credentials: Vec<u8>,
}

impl Authenticator {
    pub(super) fn start(shared: Arc<NodeShared>) -> io::Result<Authenticator> {
        let (jobs, asked) = bounded::<Job>(WAITING_MAX);
        let run = move || {
            for Job { of, asker, scheme, credentials } in asked {
                if asker.strong_count() == 0 {
                    continue;
                }
                let check = || shared.schemes.authenticate(&scheme, &credentials);
                let ids = catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|_| {
                    let reason = "its provider panicked".to_owned();
                    Err(Error::AuthFailed { scheme: scheme.clone(), reason })
                });
                of.send(Delivery::Authenticated(ids));
            }
        };
        thread::Builder::new().name("quorate-gateway-auth".to_owned()).spawn(run)?;
        Ok(Authenticator { jobs })
    }

    /// Requests a check, whose result goes to the connection's port. Each connection requests one check at
    /// a time. Returns `false` if too many are waiting.
    pub(super) fn check(
        &self,
        of: Recipient,
        asker: &Arc<()>,
        scheme: String,
        credentials: &[u8],
    ) -> bool {
        let credentials = credentials.to_vec();
        let job = Job { of, asker: Arc::downgrade(asker), scheme, credentials };
        job.credentials.len() <= CREDENTIALS_BYTES_MAX && self.jobs.try_send(job).is_ok()
    }
}
