//! Checks credentials that take long, on a thread of its own, so that they delay nobody else: a hash may take 20
//! ms, and a provider of the application even longer.
//!
//! Anybody who can connect may ask for checks. So the addresses of clients take turns, and schemes that cost
//! nothing do not come here.

use std::io;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::fair_queue::FairQueue;
use crate::api::support::{Delivery, NodeShared, Recipient};
use crate::types::error::Error;

/// How many credentials of one address may wait to be checked. Clients that reconnect all at once wait; their
/// own libraries would give up after an error.
const WAITING_MAX: usize = 256;
/// The longest credentials.
const CREDENTIALS_BYTES_MAX: usize = 4 << 10;

/// Requests checks of credentials. Each connection has its own.
#[derive(Clone, Debug)]
pub(super) struct Authenticator {
    /// A message for each job.
    added: Sender<()>,
    jobs: Arc<Mutex<FairQueue<AuthenticationJob>>>,
    /// The xid of the request whose credentials are being checked. Later requests wait, since they may
    /// need the ids.
    checked: Option<(i32, Arc<()>)>,
}

/// The requested checks. Its owner runs them, a thread or a test.
pub(super) struct Checks {
    shared: Arc<NodeShared>,
    additions: Receiver<()>,
    jobs: Arc<Mutex<FairQueue<AuthenticationJob>>>,
}

#[derive(Debug)]
struct AuthenticationJob {
    of: Recipient,
    /// Dropped with the connection.
    asker: Weak<()>,
    scheme: String,
    credentials: Vec<u8>,
}

impl Authenticator {
    pub(super) fn new(shared: Arc<NodeShared>) -> (Authenticator, Checks) {
        let (added, additions) = unbounded();
        let jobs: Arc<Mutex<FairQueue<AuthenticationJob>>> = Arc::default();
        let checks = Checks { shared, additions, jobs: Arc::clone(&jobs) };
        (Authenticator { added, jobs, checked: None }, checks)
    }

    /// Starts the thread that checks credentials. It ends when the last handle is dropped.
    pub(super) fn start(shared: Arc<NodeShared>) -> io::Result<Authenticator> {
        let (authenticator, mut checks) = Authenticator::new(shared);
        let run = move || while checks.run_next() {};
        thread::Builder::new().name("quorate-gateway-auth".to_owned()).spawn(run)?;
        Ok(authenticator)
    }

    /// Requests a check, whose result goes to the connection's port. Each connection requests one check at
    /// a time. Fails if the credentials are too long, or if too many of this address are waiting.
    pub(super) fn check(
        &mut self,
        xid: i32,
        of: Recipient,
        from: IpAddr,
        scheme: String,
        credentials: &[u8],
    ) -> Result<(), Error> {
        if credentials.len() > CREDENTIALS_BYTES_MAX {
            let reason = format!("credentials of more than {CREDENTIALS_BYTES_MAX} bytes");
            return Err(Error::AuthFailed { scheme, reason });
        }
        let credentials = credentials.to_vec();
        let waits = Arc::new(());
        let asker = Arc::downgrade(&waits);
        let job = AuthenticationJob { of, asker, scheme, credentials };
        if let Err(AuthenticationJob { scheme, .. }) = lock(&self.jobs).push(from, WAITING_MAX, job)
        {
            let reason = format!("{WAITING_MAX} others of its address wait to be checked");
            return Err(Error::AuthFailed { scheme, reason });
        }
        // The thread ends after the last handle.
        let _ = self.added.send(());
        self.checked = Some((xid, waits));
        Ok(())
    }

    pub(super) fn is_busy(&self) -> bool {
        self.checked.is_some()
    }

    /// The request whose check is done.
    pub(super) fn done(&mut self) -> Option<i32> {
        self.checked.take().map(|(xid, _)| xid)
    }
}

impl Checks {
    /// Waits for the next check, and runs it, unless nobody waits for its result any more. Returns `false` when
    /// the last handle is gone.
    pub(super) fn run_next(&mut self) -> bool {
        if self.additions.recv().is_err() {
            return false;
        }
        let Some(AuthenticationJob { of, asker, scheme, credentials }) = lock(&self.jobs).pop()
        else {
            return true;
        };
        if asker.strong_count() > 0 {
            let check = || self.shared.schemes.authenticate(&scheme, &credentials);
            let ids = catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|_| {
                let reason = "its provider panicked".to_owned();
                Err(Error::AuthFailed { scheme: scheme.clone(), reason })
            });
            of.send(Delivery::Authenticated(ids));
        }
        true
    }

    /// Whether no check is requested now.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.additions.is_empty()
    }
}

fn lock(
    jobs: &Mutex<FairQueue<AuthenticationJob>>,
) -> MutexGuard<'_, FairQueue<AuthenticationJob>> {
    jobs.lock().unwrap_or_else(PoisonError::into_inner)
}
