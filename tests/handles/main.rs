//! The handles of users, on clusters in memory, and on disks where it matters.

#[path = "../common/mod.rs"]
mod common;

mod acl;
#[cfg(feature = "futures")]
mod async_streams;
mod async_waits;
mod chroot;
mod clients;
mod durations;
mod handles;
mod lock;
mod membership;
mod metrics;
#[cfg(feature = "metrics")]
mod metrics_facade;
mod operate;
mod parents;
mod partition;
mod quota;
mod reads;
mod scenarios;
mod serde_form;
mod sessions;
mod supervise;
mod testing_cluster;
mod waiting;
mod wakers;
mod watches;
mod watches_past;
