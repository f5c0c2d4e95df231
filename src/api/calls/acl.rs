//! A session's calls about access lists: its ids, and permissions.

use crate::api::nonblocking::NonBlocking;
use crate::api::ops::{check_create, check_data, create_with_acl_op};
use crate::api::session::Session;
use crate::machine::CONFIG;
use crate::machine::command::Op;
use crate::runtime::ask::Ask;
use crate::runtime::chroot::Root;
use crate::runtime::pending::Pending;
use crate::types::acl;
use crate::types::acl::{Acl, Id, Permissions};
use crate::types::error::{Error, Result, id_refused};
use crate::types::znode::{CreateMode, Created, Stat};

impl Session {
    /// Creates a znode with an access list, see [`Acl`]. ([`Session::create`] grants everybody
    /// everything.) Blocks and fails as [`Session::create`], and with [`Error::InvalidAcl`].
    ///
    /// ```
    /// use quorate::acl::Acl;
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create_with_acl("/a", b"", CreateMode::Persistent, &Acl::read_only())?;
    /// assert!(session.set("/a", b"1").is_err());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn create_with_acl(
        &self,
        path: &str,
        data: impl AsRef<[u8]>,
        mode: CreateMode,
        acl: &[Acl],
    ) -> Result<Created> {
        self.wait_for("create", path, self.nonblocking().create_with_acl(path, data, mode, acl))
    }

    /// Replaces the access list of a znode, whatever its aversion, and returns the new stat, in
    /// which only `aversion` has increased, by one. The session needs the permission `ADMIN`. No
    /// watch reports the change. Blocks and fails as [`Session::create_with_acl`].
    ///
    /// ```
    /// use quorate::acl::Acl;
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/a", b"1", CreateMode::Persistent)?;
    /// session.set_acl("/a", &Acl::read_only())?;
    /// assert!(session.set("/a", b"2").is_err());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// Source: ZooKeeper, `setACL`.
    pub fn set_acl(&self, path: &str, acl: &[Acl]) -> Result<Stat> {
        self.wait_for("set_acl", path, self.nonblocking().set_acl(path, acl))
    }

    /// Replaces the access list of a znode if its aversion is `aversion`; otherwise fails with
    /// [`Error::BadVersion`] and changes nothing. Apart from that, as [`Session::set_acl`].
    ///
    /// ```
    /// use quorate::acl::Acl;
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/a", b"1", CreateMode::Persistent)?;
    /// let (_, stat) = session.acl("/a")?;
    /// session.set_acl_if("/a", &Acl::read_only(), stat.aversion)?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn set_acl_if(&self, path: &str, acl: &[Acl], aversion: u64) -> Result<Stat> {
        self.wait_for("set_acl", path, self.nonblocking().set_acl_if(path, acl, aversion))
    }

    /// Returns the access list and the stat of a znode, as this replica has them. The session needs
    /// `READ` or `ADMIN`; without `ADMIN`, password hashes are shown as `x`. Blocks as
    /// [`Session::get`].
    ///
    /// ```
    /// use quorate::acl::Acl;
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/a", b"1", CreateMode::Persistent)?;
    /// let (acl, stat) = session.acl("/a")?;
    /// assert_eq!((acl, stat.aversion), (Acl::open(), 0));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// Source: ZooKeeper, `getACL`.
    pub fn acl(&self, path: &str) -> Result<(Vec<Acl>, Stat)> {
        let Some(tree) = self.tree()? else {
            return self.wait_for("acl", path, self.nonblocking().acl(path));
        };
        self.read_znode(&tree, path, Permissions::READ | Permissions::ADMIN, |znode| {
            let acl = znode.acl().map(|acl| &**acl);
            let closed = self.root.full(path) == CONFIG;
            (acl::shown(acl, closed, &self.ids()), znode.stat())
        })
    }

    /// Authenticates the session with these credentials, and adds the resulting ids to it. They are
    /// `user:password` for the schemes `digest` and `argon2`; an
    /// [`AuthProvider`](crate::security::AuthProvider) defines the credentials of its own scheme. Credentials
    /// do not leave this process. Blocks as [`Session::create`], and before that for as long as the
    /// scheme takes.
    ///
    /// The ids belong to this handle and its clones; after resuming the session, authenticate
    /// again.
    ///
    /// # Errors
    /// [`Error::Refused`] for a 65th id of the session, and for an id of more than 1024 bytes:
    /// the session keeps its former ids. Also for an instance with a client's or an operator's credential
    /// ([`Right`](crate::security::Right)): its sessions have the ids of its connection alone, which members
    /// verify. [`Error::AuthFailed`] for an unknown scheme and for
    /// credentials that the scheme rejects. After `AuthFailed` the session is closed, and its state
    /// is [`SessionState::AuthFailed`](crate::SessionState::AuthFailed), so that nothing is done
    /// with fewer rights than intended. (A wrong password for `digest` or `argon2` does not fail;
    /// it gives another id.) Otherwise as [`Session::create`].
    ///
    /// ```
    /// use quorate::acl::Acl;
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.add_auth("digest", b"user:password")?;
    /// session.create_with_acl("/mine", b"", CreateMode::Persistent, &Acl::creator_all())?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// Source: ZooKeeper, `addAuthInfo`.
    pub fn add_auth(&self, scheme: &str, credentials: impl AsRef<[u8]>) -> Result<()> {
        self.wait_for("add_auth", "/", self.nonblocking().add_auth(scheme, credentials))
    }

    /// Returns the session's ids: those from [`Session::add_auth`], and the address of its
    /// instance. Blocks until the session's earlier calls have been answered.
    ///
    /// ```
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.add_auth("digest", b"user:password")?;
    /// assert!(session.who_am_i()?.iter().any(|id| id.scheme == "digest"));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// Source: ZooKeeper, `whoAmI`.
    pub fn who_am_i(&self) -> Result<Vec<Id>> {
        self.wait_for("who_am_i", "/", self.nonblocking().who_am_i())
    }
}

impl NonBlocking<'_> {
    /// See [`Session::create_with_acl`].
    ///
    /// ```
    /// use quorate::acl::Acl;
    /// use quorate::CreateMode;
    ///
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// let calls = session.nonblocking();
    /// calls.create_with_acl("/a", b"", CreateMode::Persistent, &Acl::read_only()).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn create_with_acl(
        &self,
        path: &str,
        data: impl AsRef<[u8]>,
        mode: CreateMode,
        acl: &[Acl],
    ) -> Pending<Created> {
        let data = data.as_ref();
        let checked =
            check_create(path, data, mode).and_then(|()| self.check_acl(path, data.len(), acl));
        let op = |root: &Root| create_with_acl_op(root, path, data, mode, acl);
        self.ask_create(checked, op)
    }

    /// See [`Session::set_acl`].
    ///
    /// ```
    /// use quorate::acl::Acl;
    ///
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// session.nonblocking().set_acl("/a", &Acl::read_only()).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_acl(&self, path: &str, acl: &[Acl]) -> Pending<Stat> {
        self.set_acl_version(path, acl, None)
    }

    /// See [`Session::set_acl_if`].
    ///
    /// ```
    /// use quorate::acl::Acl;
    ///
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// let calls = session.nonblocking();
    /// let (mut acl, stat) = calls.acl("/a").await?;
    /// acl.extend(Acl::read_only());
    /// calls.set_acl_if("/a", &acl, stat.aversion).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_acl_if(&self, path: &str, acl: &[Acl], aversion: u64) -> Pending<Stat> {
        self.set_acl_version(path, acl, Some(aversion))
    }

    fn set_acl_version(&self, path: &str, acl: &[Acl], version: Option<u64>) -> Pending<Stat> {
        let checked = self.validate(path).and_then(|()| self.check_acl(path, 0, acl));
        let op =
            |root: &Root| Op::SetAcl { path: root.full(path).into(), acl: acl.to_vec(), version };
        self.ask(checked, |root| Ask::set(op(root)), Ok)
    }

    /// Checks the size of the list together with `size` bytes of data, and whether the schemes
    /// accept its ids, which the state machine cannot check.
    pub(crate) fn check_acl(&self, path: &str, size: usize, acl: &[Acl]) -> Result<()> {
        if acl.len() > Acl::ENTRIES_MAX {
            let reason = format!("{} entries are more than {}", acl.len(), Acl::ENTRIES_MAX);
            return Err(Error::InvalidAcl { path: path.to_owned(), reason });
        }
        check_data(path, size + acl.iter().map(Acl::bytes).sum::<usize>())?;
        self.session.shared().schemes.check(path, acl)
    }

    /// See [`Session::add_auth`]. The credentials are checked before it returns; later calls use
    /// the new ids.
    ///
    /// ```
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// session.nonblocking().add_auth("digest", b"user:password").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn add_auth(&self, scheme: &str, credentials: impl AsRef<[u8]>) -> Pending<()> {
        let ids = self.session.authenticate(scheme, credentials.as_ref());
        let (checked, ids) = ids.map_or_else(|error| (Err(error), Vec::new()), |ids| (Ok(()), ids));
        let (scheme, asked) = (scheme.to_owned(), ids.clone());
        self.ask(
            checked,
            |_| Ask::authenticate(ids),
            move |known| {
                if asked.iter().all(|id| known.contains(id)) {
                    return Ok(());
                }
                // The member has taken the ids of this instance's connection instead.
                let reason =
                    "this instance has a client's credential, and the members do not take its word";
                Err(id_refused(&scheme, reason))
            },
        )
    }

    /// See [`Session::who_am_i`].
    ///
    /// ```
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// println!("{:?}", session.nonblocking().who_am_i().await?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn who_am_i(&self) -> Pending<Vec<Id>> {
        self.ask(Ok(()), |_| Ask::ids(), Ok)
    }

    /// See [`Session::acl`]; this form sees the session's earlier writes.
    ///
    /// ```
    /// # async fn example(session: &quorate::Session) -> quorate::Result<()> {
    /// let (acl, stat) = session.nonblocking().acl("/a").await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn acl(&self, path: &str) -> Pending<(Vec<Acl>, Stat)> {
        self.read(path, Ask::acl, Ok)
    }
}
