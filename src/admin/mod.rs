//! An HTTP endpoint for operators: figures, znodes, locks, and a page.
//!
//! ```text
//! socket -> server -> http -> guard -> routes -> coordinator, session     (status: at once; the rest: workers)
//! events -> server -> sockets of those who listen
//! ```
//!
//! - `server` is the thread with the sockets; it waits for none of them, so a slow client delays nobody.
//!   `connection` is one socket, and `workers` are the threads that may wait for the cluster.
//! - `http` is the protocol: bytes to requests, responses to bytes. It has all limits on requests.
//! - `guard` refuses requests of other sites and those without the token, before anything else happens.
//! - `routes` maps paths to responses, and `tree` has the routes of znodes.
//! - `backup` is the file of a backup that is sent to its reader.
//! - `session` is the session that reads and writes znodes, opened when it is first needed.
//! - `search` looks for paths, and for the ephemerals of a session; `actions` are the operations on the cluster.
//! - `history` keeps the figures of the last hour.
//! - `events` samples and watches the cluster while there are listeners.
//! - `page/` is the page. These routes are its only source of data.
//!
//! Nothing that may block runs on the server's thread. The state of the cluster needs no session and no
//! quorum, and is also served after the node has stopped.

mod actions;
mod backup;
mod connection;
mod events;
mod guard;
mod history;
mod http;
mod recent;
mod routes;
mod search;
mod server;
mod session;
mod tree;
mod workers;

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;

use self::guard::{Guard, WrongTokens};
use self::routes::Routes;
#[cfg(any(test, fuzzing))]
pub(crate) use self::routes::fuzz;
use self::server::AdminServer;
use self::session::AdminSession;
use crate::api::coordinator::Coordinator;
use crate::api::support::Reported;
use crate::runtime::port::{self, Serving, cannot_listen, refused};
use crate::types::error::{Error, Result};

/// The shortest token.
const TOKEN_BYTES_MIN: usize = 16;

/// An endpoint for operators and their tools: the state of the cluster, its members, sessions, locks and
/// znodes over HTTP, metrics for Prometheus, probes, backups, and a page that shows all of these.
///
/// It is read-only unless [`AdminBuilder::writable`] is set. Anybody who reaches it sees what the ids of
/// [`AdminBuilder::auth`] may read, so at an address that is not on the loopback it needs a
/// [token](AdminBuilder::token). Requests from other web sites are refused. For routes and limits see
/// [`guide::admin`](crate::guide::admin).
///
/// It also answers without a quorum, and after the coordinator was closed. It counts as a handle of the
/// coordinator, which runs until this is dropped or the coordinator is closed.
///
/// Dropping it ends its connections and its session. The drop waits for requests in flight, some seconds at
/// most unless a backup is being written. It does not wait if the coordinator was joined by
/// [`Coordinator::join`].
///
/// ```
/// use quorate::{admin::Admin, testing::Cluster};
///
/// let cluster = Cluster::new(3);
/// let admin = Admin::serve(&cluster.node(0), "127.0.0.1:0")?;
/// println!("http://{}/", admin.address());
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Debug)]
pub struct Admin {
    /// Dropped first, so that nobody is sent to an endpoint that has ended.
    _reported: Reported,
    serving: Serving,
}

/// The settings of an endpoint: see [`Admin::builder`].
///
/// ```
/// use quorate::{admin::Admin, testing::Cluster};
///
/// let cluster = Cluster::new(1);
/// let builder = Admin::builder().token("not-much-of-a-secret").writable(true);
/// let admin = builder.serve(&cluster.node(0), "0.0.0.0:0")?;
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct AdminBuilder {
    token: Option<String>,
    writable: bool,
    auths: Vec<(String, Vec<u8>)>,
}

impl fmt::Debug for AdminBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminBuilder").field("writable", &self.writable).finish_non_exhaustive()
    }
}

impl Admin {
    /// Serves at an address of this host's loopback; port 0 takes a free port. Returns as soon as clients
    /// can connect.
    ///
    /// # Errors
    /// As [`AdminBuilder::serve`].
    pub fn serve(coordinator: &Coordinator, address: impl ToSocketAddrs) -> Result<Admin> {
        Admin::builder().serve(coordinator, address)
    }

    /// Returns the settings, to change them before the endpoint is opened.
    pub fn builder() -> AdminBuilder {
        AdminBuilder::default()
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.serving.address()
    }
}

impl AdminBuilder {
    /// Requires this token of every request but the probes and the page itself, as `Authorization: Bearer
    /// TOKEN`. The page asks its user for the token. A token has at least 16 characters of ASCII, without
    /// spaces.
    ///
    /// Requests and responses are not encrypted: across a network, put a proxy with TLS in front of the
    /// endpoint, or forward its port by SSH.
    #[must_use]
    pub fn token(mut self, token: impl Into<String>) -> AdminBuilder {
        self.token = Some(token.into());
        self
    }

    /// Sets whether the cluster can be changed through the endpoint: not by default. Otherwise it reads only. It
    /// can create, set and delete znodes, pause, resume and fire timers, move the lead, remove a dead member, and expire a
    /// session. These last three do not ask access lists.
    #[must_use]
    pub fn writable(mut self, writable: bool) -> AdminBuilder {
        self.writable = writable;
        self
    }

    /// Adds an id to the endpoint's session, as [`Session::add_auth`](crate::Session::add_auth) does. It
    /// applies to access lists, and everybody who reaches the endpoint acts with it.
    #[must_use]
    pub fn auth(mut self, scheme: &str, credentials: impl AsRef<[u8]>) -> AdminBuilder {
        self.auths.push((scheme.to_owned(), credentials.as_ref().to_vec()));
        self
    }

    /// As [`Admin::serve`], with these settings.
    ///
    /// # Errors
    /// [`Error::InvalidSetting`] if the address is not on the loopback and there is no token, or if the token is
    /// too short. [`StartError::CannotListen`](crate::StartError::CannotListen) if the address cannot be bound.
    pub fn serve(self, coordinator: &Coordinator, address: impl ToSocketAddrs) -> Result<Admin> {
        let address =
            port::resolve(address).map_err(cannot_listen("the admin endpoint's address"))?;
        self.check(address)?;

        let session = Arc::new(AdminSession::new(coordinator.clone(), self.auths));
        let wrong_tokens = WrongTokens::default();
        let guard = Guard { token: self.token, writable: self.writable, wrong_tokens };
        let routes = Arc::new(Routes::new(coordinator.clone(), Arc::clone(&session)));
        let server = AdminServer::bind(address, guard, Arc::clone(&routes), coordinator)
            .map_err(cannot_listen(address))?;
        let failed = refused("the admin endpoint's threads");
        let outbox = server.outbox();
        let mut serving = server.port.serving(coordinator.shared());
        let jobs = workers::start(&routes, &outbox, &mut serving).map_err(&failed)?;
        let listeners =
            events::start(coordinator, &session, &outbox, &mut serving).map_err(&failed)?;
        let sampling = history::start(&routes, &mut serving).map_err(&failed)?;
        // The server ends first, since the other threads wait for it.
        serving.spawn("quorate-admin", || server.run(jobs, listeners, sampling)).map_err(failed)?;
        let reported = Reported::new(coordinator.shared(), serving.address());
        Ok(Admin { _reported: reported, serving })
    }

    fn check(&self, address: SocketAddr) -> Result<()> {
        let is_good = |token: &String| {
            token.len() >= TOKEN_BYTES_MIN && token.bytes().all(|byte| byte.is_ascii_graphic())
        };
        let reason = match &self.token {
            None if !address.ip().is_loopback() => format!(
                "{address} can be reached from other hosts: set one with AdminBuilder::token, or \
                 listen on 127.0.0.1"
            ),
            Some(token) if !is_good(token) => {
                format!("it needs {TOKEN_BYTES_MIN} characters of ASCII or more, and no spaces")
            }
            _ => return Ok(()),
        };
        Err(Error::InvalidSetting { setting: "the admin endpoint's token", reason })
    }
}
