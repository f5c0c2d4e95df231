//! The pages of [`docs`](https://github.com/quorate/quorate/tree/main/docs): what quorate promises, and how
//! to run it. For what each call does, see [`Session`](crate::Session), [`Coordinator`](crate::Coordinator) and
//! [`recipes`](crate::recipes).
//!
//! - To start with: [`begin`], [`cookbook`], [`sessions`], [`watches`], [`snapshots`], [`transactions`], [`one_write`],
//!   [`from_async`], the [`recipes`], [`zookeeper`] for users of ZooKeeper, and [`coming_from`] for those of
//!   etcd, Consul and locks in Redis.
//! - To run it: [`membership`], [`clients`], [`kubernetes`], [`security`], [`acls`], [`quotas`], [`metrics`],
//!   [`logs`], [`admin`], [`cli`], [`gateway`], [`shared_recipes`], [`recovery`], [`upgrades`], [`troubleshooting`].
//! - To rely on it: [`guarantees`], [`planted`], [`limits`], [`performance`], [`storage`], [`time`], [`versions`],
//!   [`serde`], [`architecture`].
//!
//! [`index`] has a line for each.

/// Modules whose documentation is a page of `docs`.
///
/// A page links to other pages by reference, with their addresses in the repository at its end. `links.md`
/// defines the same references as modules. It comes first here, so its definitions win.
macro_rules! pages {
    ($($(#[$attribute:meta])* $name:ident: $file:literal $({ $($below:tt)* })?)*) => {$(
        $(#[$attribute])*
        #[doc = include_str!("guide/links.md")]
        #[doc = include_str!(concat!("../docs/", $file))]
        pub mod $name {
            $(pages! { $($below)* })?
        }
    )*};
}

// The examples of some pages need a feature.
pages! {
    acls: "acls.md"
    #[cfg(any(not(doctest), feature = "admin"))]
    admin: "admin.md"
    architecture: "architecture.md"
    begin: "begin.md"
    cli: "cli.md"
    clients: "clients.md"
    coming_from: "coming-from.md"
    cookbook: "cookbook.md"
    from_async: "async.md"
    #[cfg(any(not(doctest), feature = "gateway"))]
    gateway: "gateway.md"
    guarantees: "guarantees.md"
    index: "README.md"
    kubernetes: "kubernetes.md"
    limits: "limits.md"
    logs: "logs.md"
    membership: "membership.md"
    metrics: "metrics.md"
    one_write: "one-write.md"
    performance: "performance.md"
    planted: "planted.md"
    quotas: "quotas.md"
    recipes: "recipes/README.md" {
        barrier: "recipes/barrier.md"
        discovery: "recipes/discovery.md"
        election: "recipes/election.md"
        group: "recipes/group.md"
        locks: "recipes/locks.md"
        partitions: "recipes/partitions.md"
        persistent_ephemeral: "recipes/persistent-ephemeral.md"
        queue: "recipes/queue.md"
        rate_limiter: "recipes/rate-limiter.md"
        schedule: "recipes/schedule.md"
        state: "recipes/state.md"
        two_phase_commit: "recipes/two_phase_commit.md"
    }
    recovery: "recovery.md"
    security: "security.md"
    #[cfg(any(not(doctest), feature = "serde"))]
    serde: "serde.md"
    sessions: "sessions.md"
    #[cfg(any(not(doctest), feature = "gateway"))]
    shared_recipes: "shared-recipes.md"
    snapshots: "snapshots.md"
    storage: "storage.md"
    time: "time.md"
    transactions: "transactions.md"
    troubleshooting: "troubleshooting.md"
    upgrades: "upgrades.md"
    versions: "versions.md"
    watches: "watches.md"
    zookeeper: "zookeeper.md"
}
