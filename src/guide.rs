//! The pages of [`docs`](https://github.com/quorate/quorate/tree/main/docs): what quorate promises, and how
//! to run it. For what each call does, see [`Session`](crate::Session), [`Coordinator`](crate::Coordinator) and
//! [`recipes`](crate::recipes).
//!
//! - To start with: [`begin`], [`cookbook`], [`sessions`], [`watches`], [`transactions`], [`from_async`], the
//!   [`recipes`], and [`zookeeper`] for users of ZooKeeper.
//! - To run it: [`membership`], [`clients`], [`kubernetes`], [`security`], [`acls`], [`metrics`], [`admin`], [`cli`],
//!   [`gateway`], [`shared_recipes`], [`recovery`], [`troubleshooting`].
//! - To rely on it: [`guarantees`], [`planted`], [`limits`], [`performance`], [`storage`], [`architecture`].
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
    cookbook: "cookbook.md"
    encryption: "encryption.md"
    from_a_lease: "from-a-lease.md"
    from_async: "async.md"
    #[cfg(any(not(doctest), feature = "gateway"))]
    gateway: "gateway.md"
    guarantees: "guarantees.md"
    index: "README.md"
    kubernetes: "kubernetes.md"
    limits: "limits.md"
    membership: "membership.md"
    metrics: "metrics.md"
    performance: "performance.md"
    planted: "planted.md"
    recipes: "recipes/README.md" {
        discovery: "recipes/discovery.md"
        election: "recipes/election.md"
        locks: "recipes/locks.md"
        partitions: "recipes/partitions.md"
        queue: "recipes/queue.md"
        rate_limits: "recipes/rate-limits.md"
        state: "recipes/state.md"
    }
    recovery: "recovery.md"
    security: "security.md"
    sessions: "sessions.md"
    #[cfg(any(not(doctest), feature = "gateway"))]
    shared_recipes: "shared-recipes.md"
    serde_form: "serde.md"
    storage: "storage.md"
    transactions: "transactions.md"
    troubleshooting: "troubleshooting.md"
    watches: "watches.md"
    zookeeper: "zookeeper.md"
}
