//! An in-memory cluster for your unit tests.
//!
//! It runs the same engine as in production, without ports and files: [`Cluster::new`] takes
//! milliseconds, and faults are methods. See [`Cluster`].

mod faults;
#[cfg(test)]
mod former_run_tests;
mod idle;
mod links;
mod nodes;
#[cfg(test)]
mod partition_tests;
#[cfg(test)]
mod upgrade_tests;

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Sender, bounded, unbounded};

use crate::api::builder::Builder;
use crate::api::coordinator::Coordinator;
use crate::api::session::Session;
use crate::runtime::clock::Clock;
use crate::runtime::own_thread;
use crate::runtime::shared::NodeShared;
use crate::types::error::Result;
use nodes::Nodes;

/// An in-memory cluster.
///
/// **Call [`sync`](Session::sync) before you read at one node what was written at another.** A read is answered by the
/// node's own replica, as in production, and mostly misses the last write of another node.
///
/// Its nodes share one thread and one clock. The clock runs in real time, and [`Cluster::advance`]
/// moves it forward, so that a test of a timeout of half a minute takes milliseconds. Timeouts of
/// blocking calls use this clock, too. Data that a node has "written to disk" survives
/// [`Cluster::stop`] and [`Cluster::restart`].
///
/// The cluster ends when it and all handles of its nodes have been dropped.
///
/// ```
/// use std::time::Duration;
/// use quorate::{CreateMode, SessionState, testing::Cluster};
///
/// let cluster = Cluster::new(3);
/// let (one, two) = (cluster.node(0).session(), cluster.node(1).session());
/// one.create("/here", b"", CreateMode::Ephemeral).wait()?;
/// two.sync().wait()?;
/// assert!(two.exists("/here").wait()?.is_some());
///
/// cluster.isolate(0);
/// cluster.advance(Duration::from_secs(30));
/// assert_eq!(one.state(), SessionState::Expired);
/// assert!(two.exists("/here").wait()?.is_none());
/// # Ok::<(), quorate::Error>(())
/// ```
#[derive(Debug)]
pub struct Cluster {
    running: Arc<ClusterThread>,
    nodes: Mutex<Vec<Coordinator>>,
}

/// The cluster's thread, which ends when the last user of the cluster is dropped.
#[derive(Debug)]
pub(crate) struct ClusterThread {
    /// `None` once the thread is to end.
    orders: Option<Sender<Order>>,
    clock: Clock,
    thread: Option<JoinHandle<()>>,
}

impl Drop for ClusterThread {
    fn drop(&mut self) {
        let thread = self.thread.take();
        if self.clock.is_forked() {
            // The thread does not run in this process.
            return std::mem::forget(thread);
        }
        self.orders = None;
        if let Some(thread) = thread
            && !own_thread::is_this()
        {
            let _ = thread.join();
        }
    }
}

/// A function for the cluster's thread to run.
pub(crate) type Order = Box<dyn FnOnce(&mut Nodes) + Send>;

#[cfg(test)]
impl Builder {
    /// Starts instances that support no version above this one: [`Cluster::restart_as`] upgrades
    /// them.
    pub(crate) fn version(mut self, version: u16) -> Builder {
        self.version = version;
        self
    }
}

impl Cluster {
    /// Starts a cluster with this number of nodes and the default settings. It has a leader when
    /// this returns.
    ///
    /// # Panics
    /// As [`Cluster::with_settings`].
    pub fn new(nodes: usize) -> Cluster {
        Cluster::with_settings(nodes, Builder::default())
    }

    /// Starts a cluster with this number of nodes and the settings of the application itself.
    ///
    /// Those that matter in memory hold: the timeouts and the ticks, the access of users, the limits, the policy of the
    /// membership, the audit, the history and the encryption (of backups). Those of addresses, of the network, of the
    /// disk, and what one instance has for itself, as its name, have no effect.
    ///
    /// # Panics
    /// If a setting is out of its range, if the number is 0, or if the operating system cannot
    /// start a thread.
    ///
    /// ```
    /// use std::time::Duration;
    /// use quorate::{Builder, Coordinator, testing::Cluster};
    ///
    /// // What the application uses where it joins its cluster, too.
    /// fn settings() -> Builder {
    ///     Coordinator::builder().session_timeout(Duration::from_secs(5))
    /// }
    ///
    /// let cluster = Cluster::with_settings(3, settings());
    /// assert_eq!(cluster.node(0).session().timeout(), Duration::from_secs(5));
    /// ```
    pub fn with_settings(nodes: usize, settings: Builder) -> Cluster {
        assert!(nodes > 0, "a cluster has at least one node");
        if let Err(error) = settings.validate() {
            panic!("{error}");
        }
        let (sender, orders) = unbounded();
        let clock = Clock::manual();
        let (all, shared) = Nodes::new(nodes, settings, clock.clone());
        let thread = std::thread::Builder::new()
            .name("quorate-test".to_owned())
            .spawn(move || all.run(&orders))
            .unwrap_or_else(|error| panic!("the system refused a thread: {error}"));
        let running = Arc::new(ClusterThread { orders: Some(sender), clock, thread: Some(thread) });
        let coordinators =
            shared.into_iter().map(|shared| Coordinator::of_cluster(shared, running.clone()));
        let nodes = Mutex::new(coordinators.collect());
        let cluster = Cluster { running, nodes };
        cluster.elect();
        cluster
    }

    /// Advances the clock until there is a leader.
    fn elect(&self) {
        for _ in 0..1000 {
            if self.leader().is_some() {
                return;
            }
            self.advance(Duration::from_millis(50));
        }
        panic!("no leader was elected in 50 seconds");
    }

    /// Runs a function on the cluster's thread, and waits for its result.
    fn order<T: Send + 'static>(&self, order: impl FnOnce(&mut Nodes) -> T + Send + 'static) -> T {
        assert!(!own_thread::is_this(), "a cluster in memory cannot be waited for in a waker");
        let (sender, receiver) = bounded(1);
        if let Some(orders) = &self.running.orders {
            let _ = orders.send(Box::new(move |nodes| {
                let _ = sender.send(order(nodes));
            }));
        }
        // The thread runs as long as this cluster exists, unless it has panicked.
        receiver.recv().expect("the cluster's thread has panicked")
    }

    fn lock_nodes(&self) -> std::sync::MutexGuard<'_, Vec<Coordinator>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The node with this index, from 0.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn node(&self, node: usize) -> Coordinator {
        self.lock_nodes()[node].clone()
    }

    /// All nodes in the order of their indexes, including stopped ones.
    pub fn nodes(&self) -> Vec<Coordinator> {
        self.lock_nodes().clone()
    }

    /// Returns the index of the leader, if there is one. If several nodes believe that they lead,
    /// it is the one with the highest term.
    pub fn leader(&self) -> Option<usize> {
        self.order(Nodes::leader)
    }

    fn check(&self, node: usize) {
        let nodes = self.lock_nodes().len();
        assert!(node < nodes, "there is no node {node} among {nodes}, counted from 0");
    }

    /// Partitions the cluster: nodes reach each other only within their group. A node in no group
    /// reaches nobody.
    ///
    /// # Panics
    /// If there is no such node.
    ///
    /// ```
    /// use quorate::testing::Cluster;
    ///
    /// let cluster = Cluster::new(5);
    /// cluster.partition(&[&[0, 1], &[2, 3, 4]]);
    /// cluster.advance(std::time::Duration::from_secs(5));
    /// assert!(cluster.leader().is_some_and(|leader| leader >= 2));
    /// cluster.heal();
    /// ```
    pub fn partition(&self, groups: &[&[usize]]) {
        let count = self.lock_nodes().len();
        // Each node that is not named gets a group of its own.
        let mut of: Vec<usize> = (groups.len()..groups.len() + count).collect();
        for (group, nodes) in groups.iter().enumerate() {
            for node in *nodes {
                self.check(*node);
                of[*node] = group;
            }
        }
        self.order(|nodes| nodes.regroup(of));
    }

    /// Isolates one node from all others. The others still reach each other.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn isolate(&self, node: usize) {
        self.check(node);
        let others: Vec<usize> =
            (0..self.lock_nodes().len()).filter(|other| *other != node).collect();
        self.partition(&[&[node], &others]);
    }

    /// Ends all partitions, cuts and delays.
    pub fn heal(&self) {
        self.order(Nodes::heal);
    }

    /// Loses all messages from one node to another, in this direction only, until [`Cluster::heal`]. Neither node notices
    /// that by its connection.
    ///
    /// # Panics
    /// If there is no such node.
    ///
    /// ```
    /// use std::time::Duration;
    /// use quorate::testing::Cluster;
    ///
    /// let cluster = Cluster::new(3);
    /// let leader = cluster.leader().expect("one leads");
    /// let other = (leader + 1) % 3;
    /// // It does not hear of the leader any more, and the leader hears of it.
    /// cluster.cut(leader, other);
    /// cluster.advance(Duration::from_secs(10));
    /// assert!(cluster.leader().is_some(), "the other two go on");
    /// ```
    pub fn cut(&self, from: usize, to: usize) {
        self.check(from);
        self.check(to);
        self.order(move |nodes| nodes.cut((from, to)));
    }

    /// Messages from one node to another take this long from now on, in this direction only; without a delay, and after
    /// [`Cluster::heal`], they arrive at once. They arrive while the clock advances.
    ///
    /// # Panics
    /// If there is no such node.
    ///
    /// ```
    /// use std::time::Duration;
    /// use quorate::{CreateMode, testing::Cluster};
    ///
    /// let cluster = Cluster::new(3);
    /// let leader = cluster.leader().expect("one leads");
    /// let far = (leader + 1) % 3;
    /// cluster.delay(leader, far, Duration::from_millis(300));
    /// let here = cluster.node(leader).session();
    /// here.create("/a", b"", CreateMode::Persistent).wait()?;
    /// cluster.advance(Duration::from_secs(1));
    /// assert!(cluster.node(far).session().exists("/a").wait()?.is_some());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn delay(&self, from: usize, to: usize, by: Duration) {
        self.check(from);
        self.check(to);
        self.order(move |nodes| nodes.delay((from, to), by));
    }

    /// Freezes a node, as a stopped process (`SIGSTOP`) or a suspended machine: it does nothing, its connections stay, and
    /// what is sent to it waits. Calls of its handles get no answer, though what they read from its replica they still
    /// read.
    ///
    /// # Panics
    /// If there is no such node.
    ///
    /// ```
    /// use std::time::Duration;
    /// use quorate::{SessionState, testing::Cluster};
    ///
    /// let cluster = Cluster::new(3);
    /// let session = cluster.node(0).session();
    /// session.sync().wait()?;
    /// cluster.freeze(0);
    /// cluster.advance(Duration::from_secs(60));
    /// assert_ne!(cluster.leader(), Some(0));
    /// cluster.thaw(0);
    /// assert_eq!(session.state(), SessionState::Expired);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn freeze(&self, node: usize) {
        self.check(node);
        self.order(move |nodes| nodes.freeze(node, true));
    }

    /// Ends [`Cluster::freeze`]; so do [`Cluster::restart`] and [`Cluster::stop`].
    ///
    /// # Panics
    /// If there is no such node.
    pub fn thaw(&self, node: usize) {
        self.check(node);
        self.order(move |nodes| nodes.freeze(node, false));
    }

    /// Fills the disk of a node, so that it reports that there is no room, or makes room again. It still stores what is
    /// sent to it: in production a member reports that before its disk is full
    /// ([`Builder::disk_low`](crate::Builder::disk_low)).
    ///
    /// # Panics
    /// If there is no such node.
    ///
    /// ```
    /// use std::time::Duration;
    /// use quorate::{CreateMode, Error, testing::Cluster};
    ///
    /// let cluster = Cluster::new(3);
    /// let session = cluster.node(0).session();
    /// (0..3).for_each(|node| cluster.fill_disk(node, true));
    /// cluster.advance(Duration::from_secs(5));
    /// let refused = session.create("/a", b"", CreateMode::Persistent);
    /// assert!(matches!(refused.wait(), Err(Error::DiskLow { .. })));
    ///
    /// (0..3).for_each(|node| cluster.fill_disk(node, false));
    /// cluster.advance(Duration::from_secs(5));
    /// session.create("/a", b"", CreateMode::Persistent).wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn fill_disk(&self, node: usize, is_full: bool) {
        self.check(node);
        self.order(move |nodes| nodes.fill_disk(node, is_full));
    }

    /// Sets the wall clock of a node so many milliseconds ahead of the cluster's clock; behind it, if the number is
    /// negative. Its monotonic clock goes on as before.
    ///
    /// # Panics
    /// If there is no such node.
    ///
    /// ```
    /// use std::time::{Duration, SystemTime};
    /// use quorate::{CreateMode, testing::Cluster};
    ///
    /// const HOUR: i64 = 3_600_000;
    /// let cluster = Cluster::new(1);
    /// let session = cluster.node(0).session();
    /// let before = session.create("/a", b"", CreateMode::Persistent).wait()?.stat.ctime;
    /// cluster.set_clock(0, HOUR);
    /// cluster.advance(Duration::from_secs(60));
    /// let after = session.create("/b", b"", CreateMode::Persistent).wait()?.stat.ctime;
    /// assert!(after - before < 120_000, "the cluster's time does not leap");
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn set_clock(&self, node: usize, ahead_ms: i64) {
        self.check(node);
        self.order(move |nodes| nodes.set_clock(node, ahead_ms));
    }

    /// Stops a node at once, as if its process had been killed. Calls on its handles fail from now
    /// on. ([`Coordinator::close`] stops a node in an orderly way.)
    ///
    /// # Panics
    /// If there is no such node.
    pub fn stop(&self, node: usize) {
        self.check(node);
        self.order(move |nodes| nodes.kill(node));
    }

    /// Starts a stopped node again, from the data that it had "on disk"; a running node is stopped
    /// first. [`Cluster::node`] returns the new handle.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn restart(&self, node: usize) {
        self.check(node);
        self.start_again(node, None).expect("it reads what it has written itself");
    }

    /// As [`Cluster::restart`], with an instance that supports no version above this one: as if it
    /// had been upgraded or downgraded.
    ///
    /// # Errors
    /// [`StartError::DataDirMismatch`](crate::StartError::DataDirMismatch) if its data "on disk" is of a
    /// cluster that uses a higher version; the node does not run then. (If only its log contains
    /// the higher version, it starts, and stops when it applies that entry.)
    #[cfg(test)]
    pub(crate) fn restart_as(&self, node: usize, version: u16) -> Result<()> {
        self.check(node);
        self.start_again(node, Some(version))
    }

    fn start_again(&self, node: usize, version: Option<u16>) -> Result<()> {
        let shared = self.order(move |nodes| nodes.restart(node, version))?;
        self.lock_nodes()[node] = Coordinator::of_cluster(shared, self.running.clone());
        Ok(())
    }

    /// Adds an instance, which joins the cluster, and returns its index. The instance has a replica
    /// once the clock has advanced a little, and votes if the cluster needs another voter.
    ///
    /// ```
    /// use std::time::Duration;
    /// use quorate::testing::Cluster;
    ///
    /// let cluster = Cluster::new(1);
    /// let (second, third) = (cluster.add_node(), cluster.add_node());
    /// cluster.advance(Duration::from_secs(10));
    /// let members = cluster.node(third).status().members;
    /// assert!(members.len() == 3 && members.iter().all(|member| member.votes));
    /// # let _ = second;
    /// ```
    pub fn add_node(&self) -> usize {
        self.added(self.order(Nodes::add))
    }

    /// Adds a client, an instance without a replica that a member serves (see
    /// [`Builder::client`](crate::Builder::client)), and returns its index. A client can be
    /// partitioned, stopped and restarted like a node.
    ///
    /// ```
    /// use quorate::CreateMode;
    ///
    /// let cluster = quorate::testing::Cluster::new(3);
    /// let client = cluster.add_client();
    /// let session = cluster.node(client).session();
    /// session.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// assert_eq!(&session.get("/a").wait()?.0[..], b"1");
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn add_client(&self) -> usize {
        self.added(self.order(Nodes::add_client))
    }

    fn added(&self, shared: Arc<NodeShared>) -> usize {
        let mut nodes = self.lock_nodes();
        nodes.push(Coordinator::of_cluster(shared, self.running.clone()));
        nodes.len() - 1
    }

    /// Stops a node and replaces its disk by an empty one. After that, [`Cluster::restart`] starts
    /// a new member at the same address.
    ///
    /// # Panics
    /// If there is no such node.
    pub fn wipe(&self, node: usize) {
        self.check(node);
        self.order(move |nodes| nodes.replace(node));
    }

    /// Expires a session, as if its node had been silent for the session's timeout. Advances the
    /// clock.
    ///
    /// ```
    /// use quorate::{SessionState, testing::Cluster};
    ///
    /// let cluster = Cluster::new(3);
    /// let session = cluster.node(0).session();
    /// session.sync().wait()?;
    /// cluster.expire(&session);
    /// assert_eq!(session.state(), SessionState::Expired);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// # Panics
    /// If there is no quorum.
    pub fn expire(&self, session: &Session) {
        self.elect();
        let session = session.id();
        self.order(move |nodes| nodes.expire(session));
    }

    /// Advances the clock by `time`, in steps as small as a heartbeat, and processes all resulting
    /// events: when this returns, no timeout is due, and no message is in flight but those that are
    /// [delayed](Cluster::delay).
    ///
    /// Time in which nothing can happen is skipped, so that a day takes little longer than a minute: it has to be quiet for
    /// ten seconds, all nodes must be members that run and reach each other, and nobody's wait may end meanwhile.
    ///
    /// ```
    /// use std::time::Duration;
    /// use quorate::{CreateMode, SessionState, testing::Cluster};
    ///
    /// let cluster = Cluster::new(5);
    /// let session = cluster.node(0).session();
    /// let day = Duration::from_secs(24 * 3600);
    /// session.create("/a", b"", CreateMode::PersistentWithTtl(day)).wait()?;
    /// cluster.advance(day - Duration::from_secs(60));
    /// assert!(session.exists("/a").wait()?.is_some());
    /// cluster.advance(Duration::from_secs(120));
    /// assert!(session.exists("/a").wait()?.is_none());
    /// assert_eq!(session.state(), SessionState::Connected);
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn advance(&self, time: Duration) {
        self.order(move |nodes| nodes.advance(time));
    }
}
