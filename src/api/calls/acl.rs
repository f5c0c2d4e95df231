//! A session's calls about access lists: its ids, and permissions.

use crate::api::ops::{check_create, check_data, create_with_acl_op};
use crate::api::session::Session;
use crate::machine::CONFIG;
use crate::machine::Tree;
use crate::machine::Znode;
use crate::machine::command::Op;
use crate::runtime::ask::Ask;
use crate::runtime::chroot::Root;
use crate::runtime::pending::Pending;
use crate::types::acl;
use crate::types::acl::{Acl, Id, Permissions};
use crate::types::error::{Error, Result, id_refused};
use crate::types::znode::{CreateMode, Created, Stat};

impl Session {
    /// Creates a znode with an access list, see [`Acl`]. ([`Session::create`] grants everybody everything.) Fails as
    /// [`Session::create`], and with [`Error::InvalidAcl`].
    ///
    /// ```
    /// use quorate::acl::Acl;
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create_with_acl("/a", b"", CreateMode::Persistent, &Acl::read_only()).wait()?;
    /// assert!(session.set("/a", b"1").wait().is_err());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn create_with_acl(
        &self,
        path: &str,
        data: impl AsRef<[u8]>,
        mode: CreateMode,
        acl: &[Acl],
    ) -> Pending<'static, Created> {
        let data = data.as_ref();
        let checked =
            check_create(path, data, mode).and_then(|()| self.check_acl(path, data.len(), acl));
        let op = |root: &Root| create_with_acl_op(root, path, data, mode, acl);
        self.ask_create(checked, op)
    }

    /// Replaces the access list of a znode, whatever its aversion, and returns the new stat, in which only `aversion`
    /// has increased, by one. The session needs the permission `ADMIN`. No watch reports the change. Fails as
    /// [`Session::create_with_acl`].
    ///
    /// ```
    /// use quorate::acl::Acl;
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// session.set_acl("/a", &Acl::read_only()).wait()?;
    /// assert!(session.set("/a", b"2").wait().is_err());
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// Source: ZooKeeper, `setACL`.
    pub fn set_acl(&self, path: &str, acl: &[Acl]) -> Pending<'static, Stat> {
        self.set_acl_version(path, acl, None)
    }

    /// Replaces the access list of a znode if its aversion is `aversion`; otherwise fails with
    /// [`Error::BadVersion`] and changes nothing. Apart from that, as [`Session::set_acl`].
    ///
    /// ```
    /// use quorate::acl::Acl;
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// let (_, stat) = session.acl("/a").wait()?;
    /// session.set_acl_if("/a", &Acl::read_only(), stat.aversion).wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    pub fn set_acl_if(&self, path: &str, acl: &[Acl], aversion: u64) -> Pending<'static, Stat> {
        self.set_acl_version(path, acl, Some(aversion))
    }

    /// Returns the access list and the stat of a znode, as this replica has them. The session needs `READ` or
    /// `ADMIN`; without `ADMIN`, password hashes are shown as `x`.
    ///
    /// ```
    /// use quorate::acl::Acl;
    /// use quorate::CreateMode;
    ///
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.create("/a", b"1", CreateMode::Persistent).wait()?;
    /// let (acl, stat) = session.acl("/a").wait()?;
    /// assert_eq!((acl, stat.aversion), (Acl::open(), 0));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// Source: ZooKeeper, `getACL`.
    pub fn acl(&self, path: &str) -> Pending<'static, (Vec<Acl>, Stat)> {
        let both = |znode: &Znode| {
            let acl = znode.acl().map(|acl| &**acl);
            let closed = self.root.full(path) == CONFIG;
            (acl::shown(acl, closed, &self.ids()), znode.stat())
        };
        let wanted = Permissions::READ | Permissions::ADMIN;
        let read = |tree: &Tree| self.read_znode(tree, path, wanted, both);
        self.read_or_ask(path, read, Ask::acl, |read| read)
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
    /// session.add_auth("digest", b"user:password").wait()?;
    /// session.create_with_acl("/mine", b"", CreateMode::Persistent, &Acl::creator_all()).wait()?;
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// Source: ZooKeeper, `addAuthInfo`.
    pub fn add_auth(&self, scheme: &str, credentials: impl AsRef<[u8]>) -> Pending<'static, ()> {
        let ids = self.authenticate(scheme, credentials.as_ref());
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

    /// Returns the session's ids: those from [`Session::add_auth`], and the address of its instance. Waits until the
    /// session's earlier calls have been answered.
    ///
    /// ```
    /// # let session = quorate::testing::Cluster::new(1).node(0).session();
    /// session.add_auth("digest", b"user:password").wait()?;
    /// assert!(session.who_am_i().wait()?.iter().any(|id| id.scheme == "digest"));
    /// # Ok::<(), quorate::Error>(())
    /// ```
    ///
    /// Source: ZooKeeper, `whoAmI`.
    pub fn who_am_i(&self) -> Pending<'static, Vec<Id>> {
        self.ask(Ok(()), |_| Ask::ids(), Ok)
    }

    fn set_acl_version(
        &self,
        path: &str,
        acl: &[Acl],
        version: Option<u64>,
    ) -> Pending<'static, Stat> {
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
        self.shared().schemes.check(path, acl)
    }
}
