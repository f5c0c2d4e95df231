//! Joining a cluster: the settings.

use crate::runtime::pending::{Pending, Work, on_a_thread};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::addressing::names::Resolver;
use crate::addressing::peers::Peers;
use crate::api::coordinator::Coordinator;
use crate::encryption::AtRest;
use crate::node::{CONTAINER_PERIOD, MembershipPolicy, TimeoutBounds};
use crate::runtime::own_thread;
use crate::security::Security;
use crate::security::auth::{AuthProvider, Schemes};
use crate::types::acl::Id;
use crate::types::error::{Error, Result};
use crate::types::membership::{ZONE_BYTES_MAX, is_name};
#[cfg(doc)]
use crate::types::start_error::StartError;
use crate::types::version::VERSION;

/// The settings of a [`Coordinator`], each with a default that suits a cluster in one data centre.
///
/// `tick`, `heartbeat` and `session_timeout` should be the same on all instances.
///
/// ```no_run
/// use std::time::Duration;
/// use quorate::{Coordinator, Tls};
///
/// let coordinator = Coordinator::builder()
///     .security(Tls::from_pem_files("ca.pem", "node.pem", "node.key")?)
///     .listen("0.0.0.0:7400")
///     .advertise("app-0.app:7400")
///     .data_dir("/var/lib/app/quorate")
///     .session_timeout(Duration::from_secs(6))
///     .join(["app-0.app:7400", "app-1.app:7400", "app-2.app:7400"]).wait()?;
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Builder {
    listen: Option<String>,
    advertise: Option<String>,
    data_dir: Option<PathBuf>,
    log_dir: Option<PathBuf>,
    pub(crate) session_timeout: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) tick: Duration,
    timeouts: Option<TimeoutBounds>,
    pub(crate) container_period: Duration,
    pub(crate) heartbeat: Duration,
    pub(crate) pending_requests_max: usize,
    pub(crate) schemes: Schemes,
    zone: String,
    name: String,
    leader_priority: i32,
    pub(crate) policy: MembershipPolicy,
    pub(crate) audit: bool,
    majority_after: Option<Duration>,
    disk_low: Option<u64>,
    client: bool,
    pub(crate) security: Security,
    pub(crate) encryption: Option<AtRest>,
    /// How names are looked up.
    pub(crate) resolver: Resolver,
    /// How long to wait for a name that shows which of the peers this instance is.
    pub(crate) own_name_wait: Duration,
    /// The version that the instance supports: below this build's only in an in-memory cluster.
    pub(crate) version: u16,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            listen: None,
            advertise: None,
            data_dir: None,
            log_dir: None,
            session_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(30),
            tick: Duration::from_secs(2),
            timeouts: None,
            container_period: CONTAINER_PERIOD,
            heartbeat: Duration::from_millis(100),
            pending_requests_max: 65_536,
            schemes: Schemes::default(),
            zone: String::new(),
            name: String::new(),
            leader_priority: 0,
            policy: MembershipPolicy::default(),
            audit: false,
            majority_after: None,
            disk_low: None,
            client: false,
            security: Security::default(),
            encryption: None,
            resolver: Resolver::default(),
            own_name_wait: address::OWN_NAME_WAIT,
            version: VERSION,
        }
    }
}

impl Builder {
    /// The address to listen on, `host:port`; by default the advertised one. Set it where the two
    /// differ: behind address translation, to listen on all interfaces, or where the instance's own
    /// name resolves only some time after its start, as in Kubernetes. A name is looked up again
    /// and again until it leads to this host; with an IP address, the instance listens at once.
    ///
    /// Not for a [`client`](Builder::client), which does not listen: [`Builder::join`] refuses it.
    #[must_use]
    pub fn listen(mut self, address: impl Into<String>) -> Builder {
        self.listen = Some(address.into());
        self
    }

    /// The address at which the others reach this process. If it is on the list, this process is
    /// that peer; write it exactly as there. The default is the first peer that is an address of
    /// this host and can be bound.
    ///
    /// If the name does not resolve yet, [`Builder::join`] still returns, and the instance listens
    /// once the name resolves. Until then [`Coordinator::status`] and [`Coordinator::wait_ready`]
    /// report that it waits for the name.
    ///
    /// It must lead to this instance alone. Giving several instances the same address is an error,
    /// which is detected at the latest when they meet.
    ///
    /// Not for a [`client`](Builder::client), to which nobody connects: [`Builder::join`] refuses
    /// it.
    #[must_use]
    pub fn advertise(mut self, peer: impl Into<String>) -> Builder {
        self.advertise = Some(peer.into());
        self
    }

    /// Makes this instance a client: it joins without a replica and a vote, stores nothing on disk, and is
    /// served by one of the peers, or by another when that one is lost. It has the same calls, but reads that
    /// return at once on a replica are sent to that peer instead. This is for large fleets, of which a few
    /// instances hold the state; see [`guide::clients`](crate::guide::clients) for the differences.
    ///
    /// A client does not listen, and is served over connections that it makes. So with
    /// [`Builder::listen`] or [`Builder::advertise`], [`Builder::join`] fails with
    /// [`Error::InvalidSetting`]. [`Builder::data_dir`] and the settings of members may be set, but
    /// have no effect.
    ///
    /// It stays with the cluster that first serves it for as long as it runs. If members of another
    /// cluster are later at the addresses of the list, they refuse it.
    ///
    /// ```no_run
    /// use quorate::Coordinator;
    ///
    /// let coordinator = Coordinator::builder()
    ///     .client()
    ///     .join(["127.0.0.1:7400", "127.0.0.1:7401", "127.0.0.1:7402"]).wait()?;
    /// let session = coordinator.session();
    /// # Ok::<(), quorate::Error>(())
    /// ```
    #[must_use]
    pub fn client(mut self) -> Builder {
        self.client = true;
        self
    }

    /// The directory where this instance stores its log and its state. It must be on a local disk,
    /// and not shared with another instance. The default is `quorate-data/<advertised address>`
    /// below the working directory.
    #[must_use]
    pub fn data_dir(mut self, dir: impl Into<PathBuf>) -> Builder {
        self.data_dir = Some(dir.into());
        self
    }

    /// The directory for this instance's log, to have that on a device of its own, as ZooKeeper's `dataLogDir`: a
    /// write waits for the log, and for nothing else that is written. The log is in a directory within it,
    /// `log-*`, so that instances may share one `log_dir`. By default the log is in the
    /// [data directory](Builder::data_dir).
    ///
    /// The data directory records where its log is, and a start without this setting finds it there. A start with
    /// another `log_dir` is refused, as is one without the device of the log, and one with an old copy of either
    /// directory: [`StartError::DataDirUnusable`](crate::StartError::DataDirUnusable). Not noticed is a copy of the
    /// log that was taken after the last start, if the process was killed since, nor an old copy of both. A link or a mount at the
    /// recorded path may lead to another device. Otherwise a log moves only as its instance
    /// [joins again](crate::guide::membership): stop it, remove its data directory and its log, and start it with
    /// the other `log_dir`. Do so only while a majority of the other members runs, which have its data, and with
    /// one instance at a time; never with a cluster's only member.
    ///
    /// ```no_run
    /// let coordinator = quorate::Coordinator::builder()
    ///     .data_dir("/var/lib/app/quorate")
    ///     .log_dir("/mnt/log-device/quorate")
    ///     .join(["127.0.0.1:7400", "127.0.0.1:7401", "127.0.0.1:7402"]).wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    #[must_use]
    pub fn log_dir(mut self, dir: impl Into<PathBuf>) -> Builder {
        self.log_dir = Some(dir.into());
        self
    }

    /// How long a session outlives its process: 10 seconds by default, within the
    /// [bounds](Builder::session_timeout_bounds). A session whose node cannot reach the quorum counts as lost
    /// after nine tenths of this time, before the cluster gives its locks to another session.
    #[must_use]
    pub fn session_timeout(mut self, timeout: Duration) -> Builder {
        self.session_timeout = timeout;
        self
    }

    /// How long [`Pending::wait`] waits for an answer before it fails with [`Error::Timeout`]: 30
    /// seconds by default.
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Builder {
        self.request_timeout = timeout;
        self
    }

    /// The shortest and the longest timeout of a session that this instance opens or resumes: 2 and 20
    /// [ticks](Builder::tick) by default. A session that requests a timeout outside these bounds gets the
    /// nearer bound. The shortest must be at least 8 heartbeats, and the longest at most 20 hours.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let builder = quorate::Coordinator::builder()
    ///     .session_timeout_bounds(Duration::from_secs(1), Duration::from_secs(120));
    /// ```
    ///
    /// Source: ZooKeeper, `minSessionTimeout` and `maxSessionTimeout`.
    #[must_use]
    pub fn session_timeout_bounds(mut self, least: Duration, most: Duration) -> Builder {
        self.timeouts = Some(TimeoutBounds { least, most });
        self
    }

    pub(crate) fn timeouts(&self) -> TimeoutBounds {
        self.timeouts.unwrap_or(TimeoutBounds::of(self.tick))
    }

    /// How often this instance, while it leads, looks for [containers](crate::CreateMode::Container) that are
    /// empty, and deletes them: every minute by default.
    ///
    /// Source: ZooKeeper, `znode.container.checkIntervalMs`.
    #[must_use]
    pub fn container_check_interval(mut self, interval: Duration) -> Builder {
        self.container_period = interval;
        self
    }

    /// ZooKeeper's tick, 2 seconds by default. It limits session timeouts to 2 to 20 ticks, unless
    /// [other bounds](Builder::session_timeout_bounds) are set.
    #[must_use]
    pub fn tick(mut self, tick: Duration) -> Builder {
        self.tick = tick;
        self
    }

    /// The interval of the leader's heartbeats: 100 milliseconds by default. If no heartbeat arrives
    /// for about 5 to 8 of these intervals, the others elect a new leader.
    #[must_use]
    pub fn heartbeat(mut self, heartbeat: Duration) -> Builder {
        self.heartbeat = heartbeat;
        self
    }

    /// How many requests may wait at this node at a time: 65,536 by default. Further ones fail with
    /// [`Error::Busy`]. Those of a gateway's clients do not count, since each client has a limit of its own.
    #[must_use]
    pub fn pending_requests_max(mut self, requests: usize) -> Builder {
        self.pending_requests_max = requests;
        self
    }

    /// The location of this instance, such as a data centre or a rack. Voters are spread over the
    /// zones. At most 64 bytes, without `;` and line breaks.
    #[must_use]
    pub fn zone(mut self, zone: impl Into<String>) -> Builder {
        self.zone = zone.into();
        self
    }

    /// What you call this instance: shown beside its sessions to operators, by `quorate sessions`, by the admin endpoint
    /// and as [`SessionInfo::name`](crate::operate::SessionInfo::name). The name of a pod or a host says whom to ask when
    /// a lock is held for long. Nothing is decided by it, and several instances may have the same. At most 64 bytes,
    /// without control characters; none by default.
    ///
    /// ```
    /// let pod = std::env::var("HOSTNAME").unwrap_or_default();
    /// let builder = quorate::Coordinator::builder().client().name(pod);
    /// ```
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Builder {
        self.name = name.into();
        self
    }

    /// How much this instance is wanted as the leader of the cluster: 0 by default. The leader decides every write, so
    /// writes of its own zone are fast.
    ///
    /// Any voter may be elected, so that elections take no longer for it. Some seconds after, the leader hands the lead
    /// to the voter with the highest priority, if that is higher than its own and the voter is fit: it answers, has had
    /// the whole log for a while, its disk is not nearly full, and it is not being closed. If it does not keep the lead,
    /// for example because others do not reach it, it is offered again after ten seconds, then after twice as long each
    /// time, up to 160 s. So the lead also goes back after an operator has moved
    /// it to a voter with a lower priority. A member that does not vote never leads.
    ///
    /// ```
    /// # let prefers_this_zone = true;
    /// let builder = quorate::Coordinator::builder().zone("eu-1");
    /// let builder = builder.leader_priority(if prefers_this_zone { 1 } else { 0 });
    /// ```
    #[must_use]
    pub fn leader_priority(mut self, priority: i32) -> Builder {
        self.leader_priority = priority;
        self
    }

    /// Whether this instance writes an audit log: an event of `tracing`, with the target
    /// `quorate::audit` and the level `INFO`, for each write requested by its sessions, with the
    /// requester, the path and the result. Off by default.
    ///
    /// The acts of operators ([`Coordinator::expire_session`] and the like) are always logged.
    #[must_use]
    pub fn audit(mut self, on: bool) -> Builder {
        self.audit = on;
        self
    }

    /// The most instances that vote: 1, 3, 5 (the default) or 7. The others have a replica, and can
    /// take over the vote of a lost voter. It should be the same on all instances; the leader's
    /// value counts.
    #[must_use]
    pub fn max_voters(mut self, voters: usize) -> Builder {
        self.policy.max_voters = voters;
        self
    }

    /// How long a voter may be silent before another instance takes over its vote, if one can: one
    /// minute by default. An instance without a vote that is silent for ten times as long is
    /// removed from the members. It should be the same on all instances; the leader's value counts.
    #[must_use]
    pub fn replace_after(mut self, time: Duration) -> Builder {
        self.policy.replace_after = time;
        self
    }

    /// Lets a majority of the listed peers found the cluster if not all of them can be reached
    /// after this time. By default, founding needs all of them.
    ///
    /// The risk is lost disks: if most members of a cluster come back with empty disks while the
    /// others cannot be reached, they found a second cluster. When founding needs all peers, any
    /// member that still has its disk prevents that.
    #[must_use]
    pub fn found_with_majority_after(mut self, time: Duration) -> Builder {
        self.majority_after = Some(time);
        self
    }

    /// The disk of this instance counts as nearly full while its data directory's file system has room for
    /// fewer bytes than this. From then on, it counts as nearly full until there is room for one and a
    /// half times as many bytes. 0 switches the check off.
    ///
    /// The default is twice the size of the state and 64 MiB more; on a small file system, an eighth of it
    /// instead of the 64 MiB. A log on a file system of its own ([`Builder::log_dir`]) needs the part without the
    /// state there. The part for the state is reserved for the next checkpoint, which may use it.
    /// With the default, the disk counts as nearly full until there are 32 MiB more than that. The room is
    /// measured once a second, on Linux and Android only.
    ///
    /// While the voters that have room are a majority, writes are accepted, and one of these voters
    /// leads. Otherwise writes are refused with [`Error::DiskLow`](crate::Error::DiskLow), on all
    /// instances, until there is room. Reads, watches, sessions and deletes are not affected.
    ///
    /// ```
    /// let builder = quorate::Coordinator::builder().disk_low(1 << 30);
    /// # let _ = builder;
    /// ```
    #[must_use]
    pub fn disk_low(mut self, bytes: u64) -> Builder {
        self.disk_low = Some(bytes);
        self
    }

    /// Lets sessions of this instance authenticate by a scheme of your own: see [`AuthProvider`]. A
    /// later provider of the same scheme replaces the earlier one.
    #[must_use]
    pub fn auth_provider(mut self, provider: impl AuthProvider) -> Builder {
        self.schemes.add(provider);
        self
    }

    /// Grants every permission, regardless of ACLs, to sessions of this instance that have
    /// authenticated as this id. May be called more than once.
    ///
    /// An id that comes with the connection, as `x509` and those of [`AuthProvider::connected`], counts only with a
    /// member's or an operator's credential. `GatewayTls::super_user` names a super user among a gateway's clients.
    ///
    /// Source: ZooKeeper, `DigestAuthenticationProvider.superDigest`, for any scheme.
    ///
    /// ```
    /// use quorate::acl::{Acl, Id};
    /// use quorate::{Coordinator, CreateMode, testing::Cluster};
    ///
    /// let cluster = Cluster::with_settings(1, Coordinator::builder().super_user(Id::argon2("root", "secret")));
    /// let alice = cluster.node(0).session();
    /// alice.add_auth("digest", "alice:hers").wait()?;
    /// alice.create_with_acl("/hers", b"", CreateMode::Persistent, &Acl::creator_all()).wait()?;
    /// let session = cluster.node(0).open_session()?;
    /// assert!(session.get("/hers").wait().is_err());
    /// session.add_auth("argon2", "root:secret").wait()?;
    /// assert!(session.get("/hers").wait().is_ok());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    #[must_use]
    pub fn super_user(mut self, id: Id) -> Builder {
        self.schemes.add_super_user(id);
        self
    }

    /// Protects the traffic between members: by a [`Secret`], by certificates ([`Tls`]), or not at
    /// all ([`Security::Insecure`]). The default is no protection, which is allowed on the loopback
    /// only. All members need the same kind.
    ///
    /// [`Secret`]: crate::Secret
    /// [`Tls`]: crate::Tls
    #[must_use]
    pub fn security(mut self, security: impl Into<Security>) -> Builder {
        self.security = security.into();
        self
    }

    /// Encrypts the data directory of this instance, and the backups that it writes, under these keys. For what is
    /// encrypted and how keys are changed, see [`guide::encryption`](crate::guide::encryption).
    ///
    /// A data directory is encrypted from its start on, or never: [`Builder::join`] fails with
    /// [`StartError::EncryptionKey`] if it is in clear. It fails so, too, if the key is missing or wrong; then nothing is
    /// changed, and the data is not taken for damaged. A [`client`](Builder::client) has no data directory, and uses the
    /// keys for backups.
    ///
    /// ```no_run
    /// use quorate::Coordinator;
    /// use quorate::encryption::AtRest;
    ///
    /// let coordinator = Coordinator::builder()
    ///     .encryption(AtRest::from_file("/etc/billing/data.keys")?)
    ///     .join(["127.0.0.1:7400", "127.0.0.1:7401", "127.0.0.1:7402"]).wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    #[must_use]
    pub fn encryption(mut self, keys: AtRest) -> Builder {
        self.encryption = Some(keys);
        self
    }

    pub(crate) fn validate(&self) -> Result<()> {
        let invalid = |setting, reason: &str| {
            Err(Error::InvalidSetting { setting, reason: reason.to_owned() })
        };
        if self.heartbeat < Duration::from_millis(1) || self.heartbeat > Duration::from_secs(10) {
            return invalid("heartbeat", "it must be between 1 millisecond and 10 seconds");
        }
        if self.tick < self.heartbeat || self.tick > Duration::from_secs(3600) {
            return invalid("tick", "it must be at least a heartbeat and at most an hour");
        }
        let TimeoutBounds { least, most } = self.timeouts();
        let setting = "session_timeout_bounds";
        if least < self.heartbeat * 8 || most < least {
            return invalid(setting, "the least is at least 8 heartbeats and at most the most");
        }
        if most > Duration::from_secs(20 * 3600) {
            return invalid(setting, "the most is at most 20 hours");
        }
        if self.container_period < self.heartbeat {
            return invalid("container_check_interval", "it must be at least a heartbeat");
        }
        if self.session_timeout.is_zero() {
            return invalid("session_timeout", "it must not be zero");
        }
        if self.request_timeout.is_zero() {
            return invalid("request_timeout", "it must not be zero");
        }
        let reason = "a client listens nowhere, and nobody connects to it: leave it out";
        if self.client && self.listen.is_some() {
            return invalid("listen", reason);
        }
        if self.client && self.advertise.is_some() {
            return invalid("advertise", reason);
        }
        self.schemes.validate()?;
        if ![1, 3, 5, 7].contains(&self.policy.max_voters) {
            return invalid("max_voters", "it must be 1, 3, 5 or 7");
        }
        if self.policy.replace_after < self.heartbeat * 20 {
            return invalid("replace_after", "it must be at least 20 heartbeats");
        }
        if self.zone.len() > ZONE_BYTES_MAX || self.zone.contains([';', '\n', '\r', '\0']) {
            return invalid("zone", "it must have at most 64 bytes, and no `;` or line breaks");
        }
        if !is_name(&self.name) {
            return invalid("name", "it must have at most 64 bytes, and no control characters");
        }
        if self.pending_requests_max == 0 {
            return invalid("pending_requests_max", "at least one request must be let in");
        }
        Ok(())
    }

    /// Joins the cluster of these peers (`host:port` each), as [`Coordinator::join`] does.
    ///
    /// # Errors
    /// As [`Coordinator::join`], and [`Error::InvalidSetting`], [`StartError::CannotListen`](crate::StartError::CannotListen).
    pub fn join<P: AsRef<str>>(
        self,
        peers: impl IntoIterator<Item = P>,
    ) -> Pending<'static, Coordinator> {
        let peers: Vec<String> = peers.into_iter().map(|peer| peer.as_ref().to_owned()).collect();
        self.starting(move |builder| builder.start(&Peers::parse(peers)?, None))
    }

    fn starting(
        self,
        start: impl FnOnce(Builder) -> Result<Coordinator> + Send + 'static,
    ) -> Pending<'static, Coordinator> {
        let join = move || {
            own_thread::check("joining a cluster")?;
            self.validate()?;
            start(self)
        };
        let for_task = |join: Work<Coordinator>| {
            // Set before the task receives the coordinator, since the call may have been dropped.
            let by_task = |joined: &Coordinator| {
                joined.shared().end.joined_by_task.store(true, Ordering::Relaxed);
            };
            on_a_thread(Box::new(move || join().inspect(by_task)))
        };
        Pending::work(None, "join", join, for_task)
    }
}

mod address;
mod discover;
#[cfg(test)]
mod discover_tests;
mod earlier;
mod start;
#[cfg(test)]
mod tests;
