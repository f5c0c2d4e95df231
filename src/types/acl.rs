//! Access control: permissions, ids and access lists.
//!
//! Values and pure functions. Whether a request is allowed is decided where it is applied, equally
//! on every replica, from the ids of its session and the list of the znode. How a session gets its
//! ids is in `auth`.

use std::fmt::{self, Write};
use std::net::IpAddr;
use std::ops::BitOr;
use std::str::FromStr;

use xxhash_rust::xxh3::xxh3_64;

use crate::types::log_form::Written;

/// How many ids a session may have.
pub(crate) const SESSION_IDS_MAX: usize = 64;

/// How many bytes the scheme and the id of an [`Id`] may have together.
pub(crate) const ID_BYTES_MAX: usize = 1024;

/// Permissions for a znode: any of five.
///
/// | permission | of a znode: to | of its children: to |
/// | --- | --- | --- |
/// | `READ` | read its data, stat, children and ACL; check it in a multi; see events of its changes | |
/// | `WRITE` | set its data | |
/// | `CREATE` | | create them |
/// | `DELETE` | | delete them |
/// | `ADMIN` | set its ACL, and see it in full | |
///
/// Permissions are not inherited. Source: ZooKeeper Programmer's Guide, "ACL Permissions".
///
/// ```
/// use quorate::acl::Permissions;
///
/// let permissions = Permissions::READ | Permissions::CREATE;
/// assert!(permissions.contains(Permissions::READ));
/// assert!(!permissions.contains(Permissions::READ | Permissions::WRITE));
/// assert_eq!(permissions.to_string(), "cr");
/// assert_eq!(Permissions::ALL.to_string(), "cdrwa");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Permissions(pub(crate) u8);

/// The letter of each permission, in the order of ZooKeeper's command line.
pub(crate) const LETTERS: [(Permissions, char); 5] = [
    (Permissions::CREATE, 'c'),
    (Permissions::DELETE, 'd'),
    (Permissions::READ, 'r'),
    (Permissions::WRITE, 'w'),
    (Permissions::ADMIN, 'a'),
];

impl Permissions {
    /// None of them.
    pub const NONE: Permissions = Permissions(0);
    /// To read the znode.
    pub const READ: Permissions = Permissions(1);
    /// To set its data.
    pub const WRITE: Permissions = Permissions(2);
    /// To create children.
    pub const CREATE: Permissions = Permissions(4);
    /// To delete children.
    pub const DELETE: Permissions = Permissions(8);
    /// To set its ACL.
    pub const ADMIN: Permissions = Permissions(16);
    /// All of them.
    pub const ALL: Permissions = Permissions(31);

    /// ZooKeeper's bits for these permissions: READ 1, WRITE 2, CREATE 4, DELETE 8, ADMIN 16.
    pub fn bits(self) -> u8 {
        self.0
    }

    /// The permissions with ZooKeeper's bits; `None` if there are other bits.
    pub fn from_bits(bits: u8) -> Option<Permissions> {
        (bits & !Permissions::ALL.0 == 0).then_some(Permissions(bits))
    }

    /// Whether all of `others` are among these.
    pub fn contains(self, others: Permissions) -> bool {
        self.0 & others.0 == others.0
    }

    /// Whether any of `others` is among these.
    fn has_any(self, others: Permissions) -> bool {
        self.0 & others.0 != 0
    }
}

impl BitOr for Permissions {
    type Output = Permissions;

    fn bitor(self, other: Permissions) -> Permissions {
        Permissions(self.0 | other.0)
    }
}

/// In the format of ZooKeeper's command line: `cdrwa`.
impl fmt::Display for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut granted = LETTERS.iter().filter(|(permission, _)| self.contains(*permission));
        granted.try_for_each(|(_, letter)| f.write_char(*letter))
    }
}

impl fmt::Debug for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Permissions({self})")
    }
}

/// An identity within a scheme. Sessions get ids by
/// [`Session::add_auth`](crate::Session::add_auth), and an [`Acl`] grants permissions to them.
///
/// | scheme | id | who has it |
/// | --- | --- | --- |
/// | `world` | `anyone` | everybody |
/// | `auth` | ignored | in an ACL only: each id that the session setting it has authenticated |
/// | `digest` | `user:base64(SHA-1(user:password))` | anybody with the password: ZooKeeper's scheme, see [`Id::digest`] |
/// | `argon2` | `user:base64(Argon2id(password))` | the same with a salted hash that is slow to brute-force: see [`Id::argon2`] |
/// | `ip` | an address, or `address/bits` | sessions of the instances at such an address, IPv4 or IPv6 |
/// | `x509` | the subject of a certificate, as `CN=app-0,O=Example` | sessions of the instances that have such a certificate: see [`Tls`](crate::Security) |
/// | `super` | | a session with every permission: see [`Builder::super_user`](crate::Builder::super_user) |
/// | others | defined by their [`AuthProvider`](crate::security::AuthProvider) | sessions that it authenticates |
///
/// ```
/// use quorate::acl::Id;
///
/// // As ZooKeeper's own tools make it.
/// let id = Id::digest("super", "test");
/// assert_eq!(id.to_string(), "digest:super:D/InIHSb7yEEbrWz8b9l71RjZJU=");
/// assert_eq!(Id::new("ip", "10.1.0.0/16").to_string(), "ip:10.1.0.0/16");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    /// The scheme.
    pub scheme: String,
    /// The name within the scheme.
    pub id: String,
}

impl Id {
    /// The id with this name in this scheme.
    pub fn new(scheme: impl Into<String>, id: impl Into<String>) -> Id {
        Id { scheme: scheme.into(), id: id.into() }
    }

    /// Everybody: `world:anyone`.
    pub fn anyone() -> Id {
        Id::new("world", "anyone")
    }

    /// The session that sets the ACL, by each id that it has authenticated: `auth:`.
    pub fn auth() -> Id {
        Id::new("auth", "")
    }

    /// The id of a session with every permission.
    pub(crate) fn superuser() -> Id {
        Id::new("super", "")
    }

    fn is(&self, scheme: &str) -> bool {
        self.scheme == scheme
    }

    /// Whether the id was authenticated, so that `auth` includes it: an address is not.
    fn is_authenticated(&self) -> bool {
        !self.is("ip") && !self.is("super")
    }

    /// Whether this session's id matches an ACL's entry.
    fn matches(&self, entry: &Id) -> bool {
        if !self.is(&entry.scheme) {
            return false;
        }
        match (self.is("ip"), self.id.parse(), entry.id.parse::<AddressRange>()) {
            (true, Ok(address), Ok(network)) => network.contains(address),
            (true, _, _) => false,
            (false, _, _) => self.id == entry.id,
        }
    }

    /// Whether it is too long for a session or an ACL.
    pub(crate) fn is_too_long(&self) -> bool {
        self.scheme.len() + self.id.len() > ID_BYTES_MAX
    }

    /// Checks whether an ACL may contain it, as far as that is possible without the scheme's
    /// provider.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.is_too_long() {
            return Err(format!("an id of more than {ID_BYTES_MAX} bytes"));
        }
        // Whoever lists it would print them to a terminal, where they could pass for other lines.
        if self.scheme.chars().chain(self.id.chars()).any(char::is_control) {
            return Err(format!("{:?} has a control character", self.to_string()));
        }
        let is_valid = match self.scheme.as_str() {
            "" | "super" => false,
            "auth" => true,
            "world" => self.id == "anyone",
            "x509" => !self.id.is_empty(),
            "ip" => self.id.parse::<AddressRange>().is_ok(),
            "digest" | "argon2" => {
                let hash = self.id.split_once(':').map(|(_, hash)| hash);
                hash.is_some_and(|hash| !hash.is_empty() && !hash.contains(':'))
            }
            _ => true,
        };
        if is_valid { Ok(()) } else { Err(format!("{:?} is no id", self.to_string())) }
    }

    /// The id without what could be used to guess a password.
    pub(crate) fn redacted(&self) -> Id {
        match self.id.split_once(':') {
            Some((user, _)) if self.is("digest") || self.is("argon2") => {
                Id::new(self.scheme.clone(), format!("{user}:x"))
            }
            _ => self.clone(),
        }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.scheme, self.id)
    }
}

/// An address, and the number of its significant bits.
struct AddressRange {
    address: IpAddr,
    bits: u32,
}

impl FromStr for AddressRange {
    type Err = ();

    fn from_str(text: &str) -> Result<AddressRange, ()> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| ())?;
        let all = if address.is_ipv4() { 32 } else { 128 };
        let bits: u32 = match bits {
            Some(bits) if bits.bytes().all(|byte| byte.is_ascii_digit()) => {
                bits.parse().map_err(|_| ())?
            }
            Some(_) => return Err(()),
            None => all,
        };
        match (address.to_canonical(), address) {
            _ if bits > all => Err(()),
            // Sessions' addresses are stored in this form.
            (IpAddr::V4(mapped), IpAddr::V6(_)) => {
                Ok(AddressRange { address: mapped.into(), bits: bits.saturating_sub(96) })
            }
            (address, _) => Ok(AddressRange { address, bits }),
        }
    }
}

impl AddressRange {
    fn contains(&self, address: IpAddr) -> bool {
        let (ours, theirs, unused) = match (self.address, address.to_canonical()) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                (u128::from(ours.to_bits()), u128::from(theirs.to_bits()), 32 - self.bits)
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => {
                (ours.to_bits(), theirs.to_bits(), 128 - self.bits)
            }
            _ => return false,
        };
        (ours ^ theirs).checked_shr(unused).unwrap_or(0) == 0
    }
}

/// One entry of an access list: permissions for an id.
///
/// ```
/// use quorate::acl::{Acl, Id, Permissions};
/// use quorate::{CreateMode, Error};
///
/// let cluster = quorate::testing::Cluster::new(1);
/// let owner = cluster.node(0).session();
/// owner.add_auth("digest", "alice:secret").wait()?;
/// let everybody_reads = Acl::new(Permissions::READ, Id::anyone());
/// let acl = [Acl::new(Permissions::ALL, Id::auth()), everybody_reads];
/// owner.create_with_acl("/rates", b"7 %", CreateMode::Persistent, &acl).wait()?;
///
/// let other = cluster.node(0).open_session()?;
/// assert_eq!(&other.get("/rates").wait()?.0[..], b"7 %");
/// let failed = other.set("/rates", b"0 %").wait().unwrap_err();
/// let permission = Permissions::WRITE;
/// assert_eq!(failed, Error::NoAuth { path: "/rates".into(), permission });
/// // Only who may set the ACL sees the hash of the password.
/// assert_eq!(other.acl("/rates").wait()?.0[0].id, Id::new("digest", "alice:x"));
/// # Ok::<(), Error>(())
/// ```
#[derive(
    Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
pub struct Acl {
    /// The permissions.
    pub permissions: Permissions,
    /// The id that has them.
    #[serde(deserialize_with = "crate::types::serde_form::id_of_acl")]
    pub id: Id,
}

impl Acl {
    /// How many entries an access list may have.
    pub const ENTRIES_MAX: usize = 128;

    /// Its approximate size in bytes.
    pub(crate) fn bytes(&self) -> usize {
        1 + self.id.scheme.len() + self.id.id.len()
    }

    /// Grants these permissions to this id.
    pub fn new(permissions: Permissions, id: Id) -> Acl {
        Acl { permissions, id }
    }

    /// Everybody has every permission. This is the default for znodes created without an ACL.
    /// (ZooKeeper's `OPEN_ACL_UNSAFE`.)
    pub fn open() -> Vec<Acl> {
        vec![Acl::new(Permissions::ALL, Id::anyone())]
    }

    /// Everybody may read. (ZooKeeper's `READ_ACL_UNSAFE`.)
    pub fn read_only() -> Vec<Acl> {
        vec![Acl::new(Permissions::READ, Id::anyone())]
    }

    /// The creator has every permission, and nobody else has any. (ZooKeeper's `CREATOR_ALL_ACL`.)
    pub fn creator_all() -> Vec<Acl> {
        vec![Acl::new(Permissions::ALL, Id::auth())]
    }
}

/// The access list of a znode, if not everybody has every permission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AccessList {
    entries: Box<[Acl]>,
    hash: u64,
}

impl AccessList {
    /// The list in its stored form.
    pub(crate) fn stored(entries: Vec<Acl>) -> AccessList {
        let bytes = postcard::to_stdvec(&Written(&entries))
            .expect("encoding to a Vec fails only for types that have no length, none is used");
        AccessList { entries: entries.into(), hash: xxh3_64(&bytes) }
    }

    /// The list requested by a session with these ids: `auth` is replaced by what it has
    /// authenticated, and duplicates are removed. `None` if everybody has every permission.
    ///
    /// Source: ZooKeeper, `PrepRequestProcessor.fixupACL`.
    pub(crate) fn requested(entries: &[Acl], ids: &[Id]) -> Result<Option<AccessList>, String> {
        if entries.len() > Acl::ENTRIES_MAX {
            return Err(format!("{} entries are more than {}", entries.len(), Acl::ENTRIES_MAX));
        }
        let mut kept: Vec<Acl> = Vec::with_capacity(entries.len());
        let mut keep = |entry: Acl| {
            if !kept.contains(&entry) {
                kept.push(entry);
            }
            match kept.len() <= Acl::ENTRIES_MAX {
                true => Ok(()),
                false => Err(format!("more than {} entries", Acl::ENTRIES_MAX)),
            }
        };
        for entry in entries {
            entry.id.check()?;
            if Permissions::from_bits(entry.permissions.0).is_none() {
                return Err("an unknown permission".to_owned());
            }
            if !entry.id.is("auth") {
                keep(entry.clone())?;
                continue;
            }
            let mut authenticated = ids.iter().filter(|id| id.is_authenticated()).peekable();
            if authenticated.peek().is_none() {
                return Err("it names who sets it, who has authenticated as nobody".to_owned());
            }
            for id in authenticated {
                keep(Acl::new(entry.permissions, id.clone()))?;
            }
        }
        match kept.len() {
            0 => Err("it is empty, so that nobody could do anything".to_owned()),
            1 if kept == Acl::open() => Ok(None),
            _ => Ok(Some(AccessList::stored(kept))),
        }
    }

    pub(crate) fn entries(&self) -> &[Acl] {
        &self.entries
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// Its approximate size in memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let of = |entry: &Acl| size_of_val(entry) + entry.bytes();
        self.entries.iter().map(of).sum()
    }
}

/// Whether a session with these ids has any of these permissions by this list.
///
/// Source: ZooKeeper, `ZooKeeperServer.checkACL`.
pub(crate) fn permits(list: Option<&AccessList>, ids: &[Id], wanted: Permissions) -> bool {
    let Some(list) = list else { return true };
    if ids.iter().any(|id| id.is("super")) {
        return true;
    }
    list.entries
        .iter()
        .filter(|entry| entry.permissions.has_any(wanted))
        .any(|entry| entry.id.is("world") || ids.iter().any(|id| id.matches(&entry.id)))
}

/// The list of a znode as a session with these ids may see it. With `closed`, nobody may write the
/// znode, whatever its list.
pub(crate) fn shown(list: Option<&AccessList>, closed: bool, ids: &[Id]) -> Vec<Acl> {
    let Some(all) = list else {
        return if closed { Acl::read_only() } else { Acl::open() };
    };
    if permits(list, ids, Permissions::ADMIN) {
        return all.entries.to_vec();
    }
    let redacted = all.entries.iter();
    redacted.map(|entry| Acl::new(entry.permissions, entry.id.redacted())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requested(entries: &[Acl], ids: &[Id]) -> Result<Vec<String>, String> {
        let list = AccessList::requested(entries, ids)?;
        let Some(list) = list else { return Ok(vec!["open".to_owned()]) };
        let shown = |entry: &Acl| format!("{} {}", entry.permissions, entry.id);
        Ok(list.entries().iter().map(shown).collect())
    }

    fn list(entries: &[(Permissions, &str, &str)]) -> AccessList {
        let entries = entries.iter();
        AccessList::stored(
            entries
                .map(|(permissions, scheme, id)| Acl::new(*permissions, Id::new(*scheme, *id)))
                .collect(),
        )
    }

    /// S25.
    #[test]
    fn a_requested_acl_is_checked_and_expanded() {
        let read = |scheme: &str, id: &str| Acl::new(Permissions::READ, Id::new(scheme, id));
        let alice = Id::new("digest", "alice:h");
        let bob = Id::new("sso", "bob");
        let ids = [Id::new("ip", "10.0.0.1"), alice.clone(), bob, Id::superuser()];
        assert_eq!(requested(&Acl::open(), &[]).unwrap(), ["open"]);
        let twice = [read("world", "anyone"), read("ip", "::1"), read("world", "anyone")];
        assert_eq!(requested(&twice, &[]).unwrap(), ["r world:anyone", "r ip:::1"]);
        // `auth` is replaced by each authenticated id, whatever its own id. Addresses are not
        // authenticated.
        let auth = [Acl::new(Permissions::ALL, Id::new("auth", "ignored"))];
        assert_eq!(requested(&auth, &ids).unwrap(), ["cdrwa digest:alice:h", "cdrwa sso:bob"]);
        let twice = [read("digest", "alice:h"), read("auth", "")];
        assert_eq!(requested(&twice, &[alice]).unwrap(), ["r digest:alice:h"]);
        assert!(requested(&auth, &ids[..1]).is_err());
        assert!(requested(&[], &ids).is_err());
        for (scheme, id) in [
            ("", "a"),
            ("world", "all"),
            ("world", ""),
            ("super", ""),
            ("digest", "alice"),
            ("digest", "alice:"),
            ("digest", "a:b:c"),
            ("argon2", "a"),
            ("ip", ""),
            ("ip", "10.0.0"),
            ("ip", "10.0.0.0/33"),
            ("ip", "10.0.0.0/+8"),
            ("ip", "::/129"),
            ("sso", &"a".repeat(ID_BYTES_MAX)),
            ("sso", "a\nb"),
            ("x509", "CN=\u{9b}2J"),
        ] {
            assert!(requested(&[read(scheme, id)], &ids).is_err(), "{scheme}:{id}");
        }
        let many = |count: usize| -> Vec<Acl> {
            (0..count).map(|number| read("sso", &number.to_string())).collect()
        };
        assert_eq!(requested(&many(Acl::ENTRIES_MAX), &[]).unwrap().len(), Acl::ENTRIES_MAX);
        assert!(requested(&many(Acl::ENTRIES_MAX + 1), &[]).is_err());
        let odd = Acl::new(Permissions(32), Id::anyone());
        assert!(requested(&[odd], &ids).is_err());
    }

    /// S23.
    #[test]
    fn any_entry_that_matches_permits() {
        let all = list(&[
            (Permissions::READ, "world", "anyone"),
            (Permissions::WRITE | Permissions::READ, "digest", "alice:h"),
            (Permissions::CREATE, "digest", "alice:h"),
            (Permissions::NONE, "digest", "bob:h"),
        ]);
        let may = |ids: &[Id], wanted| permits(Some(&all), ids, wanted);
        let alice = [Id::new("digest", "alice:h")];
        assert!(may(&[], Permissions::READ) && !may(&[], Permissions::WRITE));
        assert!(may(&alice, Permissions::WRITE) && may(&alice, Permissions::CREATE));
        assert!(!may(&alice, Permissions::DELETE));
        // One of the wanted permissions suffices.
        assert!(may(&[], Permissions::READ | Permissions::ADMIN));
        assert!(!may(&[Id::new("digest", "bob:h")], Permissions::WRITE));
        assert!(!may(&[Id::new("argon2", "alice:h")], Permissions::WRITE));
        assert!(may(&[Id::superuser()], Permissions::ALL));
        assert!(permits(None, &[], Permissions::ADMIN));
    }

    #[test]
    fn addresses_match_by_their_leading_bits() {
        for (entry, address, expected) in [
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3", "10.1.2.4", false),
            ("10.1.0.0/16", "10.1.255.1", true),
            ("10.1.0.0/16", "10.2.0.0", false),
            ("10.1.2.0/23", "10.1.3.9", true),
            ("10.1.2.0/23", "10.1.4.0", false),
            ("0.0.0.0/0", "192.0.2.1", true),
            ("0.0.0.0/0", "::1", false),
            ("::/0", "::1", true),
            ("2001:db8::/32", "2001:db8:1::1", true),
            ("2001:db8::/32", "2001:db9::1", false),
            ("::1", "::1", true),
            ("10.1.2.3", "::ffff:10.1.2.3", true),
            ("::ffff:10.1.2.3", "10.1.2.3", true),
            ("::ffff:10.1.0.0/112", "10.1.9.9", true),
            ("::ffff:10.1.0.0/112", "10.2.0.0", false),
        ] {
            let list = list(&[(Permissions::READ, "ip", entry)]);
            let may = permits(Some(&list), &[Id::new("ip", address)], Permissions::READ);
            assert_eq!(may, expected, "{address} by {entry}");
        }
    }

    /// S24.
    #[test]
    fn hashes_are_shown_only_with_permission_to_set_the_acl() {
        let all = list(&[
            (Permissions::READ, "world", "anyone"),
            (Permissions::ALL, "digest", "alice:hash"),
            (Permissions::READ, "argon2", "bob:hash"),
            (Permissions::READ, "sso", "carol:plain"),
        ]);
        let ids =
            |acl: Vec<Acl>| acl.into_iter().map(|entry| entry.id.to_string()).collect::<Vec<_>>();
        let redacted = ["world:anyone", "digest:alice:x", "argon2:bob:x", "sso:carol:plain"];
        assert_eq!(ids(shown(Some(&all), false, &[])), redacted);
        assert_eq!(
            shown(Some(&all), true, &[Id::new("digest", "alice:hash")]),
            all.entries().to_vec()
        );
        assert_eq!(shown(None, false, &[]), Acl::open());
        assert_eq!(shown(None, true, &[]), Acl::read_only());
    }
}
