//! Who may do what with a znode: entries of access lists, ids and permissions.
//!
//! The calls are those of [`Session`](crate::Session): [`create_with_acl`](crate::Session::create_with_acl),
//! [`acl`](crate::Session::acl), [`set_acl`](crate::Session::set_acl), and
//! [`add_auth`](crate::Session::add_auth), which gives a session its ids. All rules are in
//! [`guide::acls`](crate::guide::acls). A scheme of your own is an
//! [`AuthProvider`](crate::security::AuthProvider).
//!
//! ```
//! use quorate::acl::{Acl, Id, Permissions};
//! use quorate::{CreateMode, testing::Cluster};
//!
//! let session = Cluster::new(1).node(0).session();
//! session.add_auth("digest", "alice:secret").wait()?;
//! let acl = [Acl::new(Permissions::ALL, Id::auth()), Acl::new(Permissions::READ, Id::anyone())];
//! session.create_with_acl("/rates", b"7 %", CreateMode::Persistent, &acl).wait()?;
//! # Ok::<(), quorate::Error>(())
//! ```

pub use crate::types::acl::{Acl, Id, Permissions};
