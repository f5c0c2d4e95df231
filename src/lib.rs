//! ZooKeeper's coordination model inside your own process: znodes, sessions, watches and locks over
//! an embedded Raft cluster. The instances of your application are the cluster; there are no servers
//! to run.
//!
//! ```
//! use quorate::{CreateMode, testing::Cluster};
//!
//! // In an application: Coordinator::join(["127.0.0.1:7400", "127.0.0.1:7401", "127.0.0.1:7402"])?
//! // (on several hosts with a `Secret` or `Tls` of the cluster, by `Coordinator::builder`).
//! // In its unit tests, and here: a cluster in memory.
//! let cluster = Cluster::new(3);
//! let session = cluster.node(0).session();
//!
//! session.create("/config", b"v1", CreateMode::Persistent).wait()?;
//! let (data, _, watch) = session.get_and_watch("/config").wait()?;
//! assert_eq!(&data[..], b"v1");
//! session.set("/config", b"v2").wait()?;
//! assert!(watch.recv().wait()?.is_some());
//!
//! let guard = session.lock("/locks/nightly")?.acquire().wait()?;
//! println!("fencing token {}", guard.fencing_token());
//! # Ok::<(), quorate::Error>(())
//! ```
//!
//! - [`Coordinator`] is this instance's membership: join, status, close.
//! - [`Session`] reads and writes znodes and sets [`Watch`]es. Each call that may wait returns a [`Pending`]: a thread
//!   calls `.wait()?`, a task writes `.await?`.
//! - [`Multi`] does several writes or none; [`Transaction`] reads and writes atomically;
//!   [`Snapshot`] is the whole tree at one write; [`Session::chroot`] confines a handle to a part of
//!   the tree.
//! - [`Security`] authenticates and encrypts the traffic between members, with a [`Secret`] or [`Tls`].
//!
//! The modules have the rest, by subject:
//!
//! - [`recipes`]: what is built on top, [`recipes::Lock`] and its family, [`recipes::LeaderLatch`],
//!   [`recipes::Group`], [`recipes::Queue`], [`recipes::DoubleBarrier`], [`recipes::Counter`],
//!   [`recipes::Config`], [`recipes::Cache`], [`recipes::Registry`], [`recipes::TwoPhaseCommit`] and
//!   others.
//! - [`acl`]: who may do what with a znode; [`quota`]: limits for what is below a path.
//! - [`multi`], [`session`], [`security`]: the further types of these calls.
//! - [`operate`] has what operators and health checks look at: reports, figures, reasons.
//! - [`recovery`] makes a new cluster from what is left of an old one: backups and data
//!   directories.
//! - [`testing::Cluster`] is a whole cluster in memory, with faults, for unit tests.
//! - [`guide`] has the pages about running a cluster and relying on it.
//!
//! # Guarantees
//!
//! Writes are linearizable, durable on a majority before they are answered, and executed exactly
//! once. A session's requests take effect in order. Reads come from this instance's replica: a
//! consistent state, which may lag; after [`Session::sync`] it does not. A watch's event is in its
//! channel before the change can be read. An ephemeral znode exists as long as its session.
//!
//! # Caveats
//!
//! Members trust each other: whoever has the cluster's [`Secret`] or a certificate of its authority
//! ([`Tls`]) can join, and can read and change everything. Without either, all members must be on one
//! host. A cluster is founded once, by all instances of one list of peers, and each name in the list
//! must stand for one host; after that, members join and leave. A panic inside the engine stops the
//! node, not the process, unless the process is built to abort on panics.
//!
//! # Crate features
//!
//! | feature | default | adds |
//! | --- | --- | --- |
//! | `tls` | yes | mutual TLS between members: [`Security`] |
//! | `gateway` | no | [`gateway::Gateway`]: a port for ZooKeeper's own clients, in its wire protocol; [`gateway::import`]: copies a ZooKeeper's tree |
//! | `admin` | no | [`admin::Admin`]: status and operations over HTTP, and a page for operators |
//! | `metrics` | no | [`Coordinator::publish_metrics`]: metrics for the facade `metrics` |
//! | `futures` | no | `futures_core::Stream` for watches, states and changes |
//! | `cron` | no | cron expressions for a schedule: `recipes::Timer::cron` |
//! | `json` | no | `recipes::Json` and `Registry::in_json`: values and instances that people and other languages read |
//!
//! The [program](crate::guide::cli) `quorate` is a package of its own, `quorate-cli`.

#![cfg_attr(docsrs, feature(doc_cfg))]
#![deny(missing_docs)]

// First, for its macros.
#[macro_use]
mod planted;

pub mod acl;
mod addressing;
#[cfg(feature = "admin")]
pub mod admin;
mod api;
pub mod encryption;
#[cfg(any(test, fuzzing))]
#[allow(missing_docs, reason = "for the fuzz targets only")]
#[path = "../fuzz/entry_points/mod.rs"]
pub mod fuzzing;
#[cfg(feature = "gateway")]
pub mod gateway;
#[cfg(test)]
mod golden;
#[cfg(any(doc, doctest))]
pub mod guide;
mod machine;
pub mod multi;
mod node;
pub mod operate;
pub mod quota;
pub mod recipes;
pub mod recovery;
mod runtime;
pub mod security;
pub mod session;
#[cfg(any(test, feature = "simulator"))]
#[doc(hidden)]
#[path = "../simulation/mod.rs"]
pub mod simulation;
mod storage;
mod sync;
pub mod testing;
mod transport;
mod types;

pub use api::builder::Builder;
pub use api::coordinator::Coordinator;
pub use api::multi::Multi;
pub use api::session::Session;
pub use api::snapshot::Snapshot;
pub use api::transaction::Transaction;
pub use api::watch::Watch;
pub use runtime::pending::Pending;
pub use security::secret::Secret;
pub use security::settings::Security;
#[cfg(feature = "tls")]
pub use security::tls::Tls;
pub use types::availability::Availability;
pub use types::error::{Error, Result};
pub use types::session::SessionState;
pub use types::start_error::StartError;
pub use types::watch::{EventKind, WatchEvent, WatchMode, WatcherType};
pub use types::znode::{CreateMode, Created, Stat};

/// The README's examples are tested with the library's own.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
