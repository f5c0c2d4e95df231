//! Authentication: the schemes by which a session gets its ids.
//!
//! A scheme's provider runs where the session is, once, when the session authenticates. It returns
//! ids, which go into the log; credentials do not. The state machine only compares ids, so that
//! replicas agree whatever providers they have.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use sha1::{Digest, Sha1};

use super::Roles;
use crate::types::acl::{Acl, ID_BYTES_MAX, Id};
use crate::types::error::{Error, Result, id_refused};
use crate::types::right::{Connection, Right};

/// A custom authentication scheme: see [`Builder::auth_provider`].
///
/// After [`Session::add_auth`] with its scheme, the session has the ids that
/// [`AuthProvider::authenticate`] returns, and [`Acl`]s may name these ids. An id has only the
/// permissions that an ACL grants to exactly the same id. For groups, roles or patterns, return
/// several ids. A session has 64 ids at most.
///
/// The provider is called only by the instance where a session authenticates. Replicas, which may have
/// other providers or none, decide by comparing ids. So a provider cannot decide which sessions an
/// entry matches. The scheme `auth` stands for all ids that the provider has returned.
///
/// Source: ZooKeeper, `AuthenticationProvider`, whose `matches` and `isAuthenticated` run on the
/// server.
///
/// ```
/// use quorate::acl::{Acl, Id, Permissions};
/// use quorate::security::AuthProvider;
/// use quorate::{Coordinator, CreateMode, testing::Cluster};
///
/// /// Tokens that the deployment has issued, each for a user and the user's teams.
/// struct Tokens;
///
/// impl AuthProvider for Tokens {
///     fn scheme(&self) -> &str {
///         "token"
///     }
///
///     fn authenticate(&self, credentials: &[u8]) -> Result<Vec<String>, String> {
///         match credentials {
///             b"7f3a" => Ok(vec!["alice".into(), "team:billing".into()]),
///             _ => Err("no such token".into()),
///         }
///     }
/// }
///
/// let cluster = Cluster::with_settings(1, Coordinator::builder().auth_provider(Tokens));
/// let session = cluster.node(0).session();
/// session.add_auth("token", "7f3a").wait()?;
/// let billing = Acl::new(Permissions::ALL, Id::new("token", "team:billing"));
/// session.create_with_acl("/billing", b"", CreateMode::Persistent, &[billing]).wait()?;
/// # Ok::<(), quorate::Error>(())
/// ```
///
/// [`Builder::auth_provider`]: crate::Builder::auth_provider
/// [`Session::add_auth`]: crate::Session::add_auth
pub trait AuthProvider: Send + Sync + 'static {
    /// The name of the scheme, as in `add_auth` and in [`Id::scheme`]. The schemes listed at [`Id`]
    /// cannot be replaced.
    fn scheme(&self) -> &str;

    /// The ids for these credentials. On an error, `add_auth` fails with its text. Runs on the
    /// caller's thread and may block it.
    fn authenticate(&self, credentials: &[u8]) -> std::result::Result<Vec<String>, String>;

    /// The ids that every session has from its start which comes over this connection, in addition to those
    /// of [`AuthProvider::authenticate`]. By default none. A session has at most 64 ids. A member asks for them when a client without a
    /// replica with a client's or operator's credential connects ([`Right`]), and when a client of its
    /// gateway begins a session. Runs on the node's thread or the gateway's: it must not block.
    ///
    /// What it returns counts for sessions that begin on this connection, until they end.
    fn connected(&self, _connection: &Connection) -> Vec<String> {
        Vec::new()
    }

    /// Whether an ACL set through this instance may name this id. By default, every id that is not
    /// empty.
    fn is_valid(&self, id: &str) -> bool {
        !id.is_empty()
    }
}

impl Id {
    /// An id for a user and a password, in ZooKeeper's scheme `digest`: the SHA-1 hash of both.
    /// ACLs from ZooKeeper use it. A weak password can be recovered from the hash: prefer
    /// [`Id::argon2`] for new ones.
    ///
    /// Source: ZooKeeper, `DigestAuthenticationProvider.generateDigest`.
    pub fn digest(user: &str, password: &str) -> Id {
        digest(user, format!("{user}:{password}").as_bytes())
    }

    /// An id for a user and a password, with a hash that takes 19 MiB of memory and about 20 ms for
    /// each guess: Argon2id with two passes, as OWASP recommends.
    ///
    /// The salt is derived from the user's name, so that the same user and password give the same
    /// id everywhere. If that is not wanted, add the place to the name, as in `alice@billing`.
    pub fn argon2(user: &str, password: &str) -> Id {
        argon2(user, password.as_bytes())
    }
}

fn digest(user: &str, credentials: &[u8]) -> Id {
    Id::new("digest", format!("{user}:{}", BASE64.encode(Sha1::digest(credentials))))
}

fn argon2(user: &str, password: &[u8]) -> Id {
    let salt = Sha1::new().chain_update("quorate argon2 ").chain_update(user).finalize();
    let hash = super::stretched(password, &salt)
        .expect("the salt has 20 bytes, the hash 32, and a password less than 4 GiB");
    Id::new("argon2", format!("{user}:{}", BASE64.encode(hash)))
}

/// The schemes that an instance knows, and the ids of all its sessions.
#[derive(Clone, Default)]
pub(crate) struct Schemes {
    providers: BTreeMap<String, Arc<dyn AuthProvider>>,
    super_users: Vec<Id>,
    /// The ids of every session of this instance: its address, and the subject of its certificate.
    own: Vec<Id>,
}

impl fmt::Debug for Schemes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.providers.keys()).finish()
    }
}

impl Schemes {
    /// The schemes that always exist and that no provider can replace.
    const BUILT_IN: [&'static str; 7] =
        ["world", "auth", "digest", "argon2", "ip", "x509", "super"];

    pub(crate) fn add(&mut self, provider: impl AuthProvider) {
        self.providers.insert(provider.scheme().to_owned(), Arc::new(provider));
    }

    pub(crate) fn add_super_user(&mut self, id: Id) {
        self.super_users.push(id);
    }

    /// Sets the ids of every session of this instance. Call it after the super users are set.
    pub(crate) fn set_own(&mut self, ids: impl IntoIterator<Item = Id>) {
        self.own = self.with_super(ids.into_iter().collect());
    }

    /// These ids of a session, and the super user's id if one of them is a super user.
    pub(crate) fn with_super(&self, mut ids: Vec<Id>) -> Vec<Id> {
        if ids.iter().any(|id| self.super_users.contains(id)) {
            ids.push(Id::superuser());
        }
        ids
    }

    /// The ids of all sessions of a client with this connection. A client's credential makes no super user: its
    /// authority could sign one for any subject.
    pub(crate) fn of_connection(&self, connection: &Connection) -> Vec<Id> {
        let ip = Id::new("ip", connection.address.ip().to_canonical().to_string());
        let subject = connection.subject.as_ref().filter(|subject| !subject.is_empty());
        let subject = subject.map(|subject| Id::new("x509", subject.clone()));
        let given = self.given(connection);
        let known = [ip].into_iter().chain(subject).chain(given).filter(|id| id.check().is_ok());
        let known = known.collect();
        if connection.right < Right::Operator {
            return known;
        }
        self.with_super(known)
    }

    /// The ids that the providers give by the connection.
    pub(crate) fn given(&self, connection: &Connection) -> Vec<Id> {
        let of = |(scheme, provider): (&String, &Arc<dyn AuthProvider>)| {
            let ids = provider.connected(connection).into_iter();
            ids.map(|id| Id::new(scheme, id)).collect::<Vec<_>>()
        };
        self.providers.iter().flat_map(of).filter(|id| id.check().is_ok()).collect()
    }

    pub(crate) fn own(&self) -> &[Id] {
        &self.own
    }

    pub(crate) fn validate(&self) -> Result<()> {
        let invalid = |setting, reason| Err(Error::InvalidSetting { setting, reason });
        let built_in = |scheme: &&String| scheme.is_empty() || Self::BUILT_IN.contains(&&***scheme);
        if let Some(scheme) = self.providers.keys().find(built_in) {
            let reason = format!("{scheme:?} is not a name that a scheme can have");
            return invalid("auth_provider", reason);
        }
        let open = |id: &&Id| matches!(&*id.scheme, "world" | "auth" | "ip" | "super");
        if let Some(id) = self.super_users.iter().find(open) {
            return invalid(
                "super_user",
                format!("{id} is not an id that a session gets by authenticating"),
            );
        }
        let wrong = self.super_users.iter().find_map(|id| id.check().err());
        wrong.map_or(Ok(()), |reason| invalid("super_user", reason))
    }

    /// Whether a check of this scheme's credentials may take long.
    #[cfg(feature = "gateway")]
    pub(crate) fn takes_long(&self, scheme: &str) -> bool {
        scheme == "argon2" || self.providers.contains_key(scheme)
    }

    /// The ids for these credentials.
    pub(crate) fn authenticate(&self, scheme: &str, credentials: &[u8]) -> Result<Vec<Id>> {
        let failed = |reason| Error::AuthFailed { scheme: scheme.to_owned(), reason };
        let ids = match scheme {
            // ZooKeeper reads them as a string: what is not UTF-8 becomes U+FFFD, and that is hashed.
            "digest" => {
                let credentials = String::from_utf8_lossy(credentials);
                let (user, _) = user(credentials.as_bytes()).map_err(failed)?;
                vec![digest(user, credentials.as_bytes())]
            }
            "argon2" => {
                let (user, password) = user(credentials).map_err(failed)?;
                vec![argon2(user, password)]
            }
            "ip" => self.own_of("ip").collect(),
            "x509" => {
                let ids: Vec<Id> = self.own_of("x509").collect();
                if ids.is_empty() {
                    return Err(failed("this instance has no certificate with a subject".into()));
                }
                ids
            }
            _ => {
                let Some(provider) = self.providers.get(scheme) else {
                    return Err(failed("this instance has no provider for it".to_owned()));
                };
                let ids = provider.authenticate(credentials).map_err(failed)?;
                ids.into_iter().map(|id| Id::new(scheme, id)).collect()
            }
        };
        if ids.iter().any(Id::is_too_long) {
            let reason = format!("an id of more than {ID_BYTES_MAX} bytes");
            return Err(id_refused(scheme, reason));
        }
        if let Some(reason) = ids.iter().find_map(|id| id.check().err()) {
            return Err(failed(reason));
        }
        Ok(self.with_super(ids))
    }

    fn own_of(&self, scheme: &str) -> impl Iterator<Item = Id> {
        self.own.iter().filter(move |id| id.scheme == scheme).cloned()
    }

    /// Checks that this instance's schemes accept all ids in an ACL.
    pub(crate) fn check(&self, path: &str, acl: &[Acl]) -> Result<()> {
        let invalid = |reason| Err(Error::InvalidAcl { path: path.to_owned(), reason });
        for Acl { id, .. } in acl {
            // Roles are given by members; whoever sets an access list need not have their file.
            if Self::BUILT_IN.contains(&id.scheme.as_str()) || id.scheme == Roles::SCHEME {
                continue;
            }
            match self.providers.get(&id.scheme) {
                None => return invalid(format!("this instance has no provider for {id}")),
                Some(provider) if !provider.is_valid(&id.id) => {
                    return invalid(format!("the provider of its scheme rejects {id}"));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }
}

/// The user and the password of `user:password`.
fn user(credentials: &[u8]) -> std::result::Result<(&str, &[u8]), String> {
    let mut parts = credentials.splitn(2, |byte| *byte == b':');
    let user = std::str::from_utf8(parts.next().unwrap_or_default());
    match (user, parts.next()) {
        (Ok(user), Some(password)) if !user.is_empty() => Ok((user, password)),
        _ => Err("the credentials are not of the form user:password".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S26: compared with the output of ZooKeeper's tools.
    #[test]
    fn digests_are_those_of_zookeeper() {
        for (credentials, id) in [
            ("super:test", "super:D/InIHSb7yEEbrWz8b9l71RjZJU="),
            ("bob:", "bob:tK1fpNO1hB0F++FhHpSq0Fa4tv0="),
            ("a:b:c", "a:cLzgnoJ6mP5qz3w+mwvPE2vDgu0="),
        ] {
            let ids = Schemes::default().authenticate("digest", credentials.as_bytes()).unwrap();
            assert_eq!(ids, [Id::new("digest", id)]);
            let (user, password) = credentials.split_once(':').unwrap();
            assert_eq!(ids, [Id::digest(user, password)]);
        }
    }

    /// ZooKeeper's hashes of the same bytes.
    #[test]
    fn credentials_that_are_no_text_are_read_as_zookeeper_reads_them() {
        for (credentials, id) in [
            (&b"\xff\xfe:p"[..], "\u{fffd}\u{fffd}:CHAajMjCV+FUX0fRvRN/qglqzJ0="),
            (b"u:\xff", "u:NP+S9gihaPOxs49p+sWDO0/R0ac="),
            (b"u:\xe2\x82", "u:NP+S9gihaPOxs49p+sWDO0/R0ac="),
            (b"u:\xf0\x9f\x98", "u:NP+S9gihaPOxs49p+sWDO0/R0ac="),
        ] {
            let ids = Schemes::default().authenticate("digest", credentials).unwrap();
            assert_eq!(ids, [Id::new("digest", id)]);
        }
    }

    #[test]
    fn slow_hashes_tell_users_and_passwords_apart() {
        let id = Id::argon2("alice", "secret");
        assert_eq!(
            Schemes::default().authenticate("argon2", b"alice:secret").unwrap(),
            std::slice::from_ref(&id)
        );
        assert!(id.id.starts_with("alice:") && id.check().is_ok());
        assert_ne!(id, Id::argon2("alice", "other"));
        let hash = |id: Id| id.id.split_once(':').unwrap().1.to_owned();
        assert_ne!(hash(id), hash(Id::argon2("bob", "secret")));
    }

    #[test]
    fn what_is_no_credential_fails() {
        let schemes = Schemes::default();
        for (scheme, credentials) in [
            ("digest", &b"alice"[..]),
            ("digest", b":secret"),
            ("argon2", b"\xff:secret"),
            ("argon2", b""),
            ("world", b"anyone"),
            ("super", b""),
            ("x509", b"CN=app-0"),
            ("none", b""),
            ("", b""),
        ] {
            let failed = schemes.authenticate(scheme, credentials);
            assert!(matches!(failed, Err(Error::AuthFailed { .. })), "{scheme} {credentials:?}");
        }
    }

    /// Whoever ran the clients' authority was the super user.
    #[test]
    fn a_clients_certificate_makes_no_super_user() {
        let mut schemes = Schemes::default();
        schemes.add_super_user(Id::new("x509", "CN=root"));
        for (right, subject, is_super) in [
            (Right::Client, "CN=root", false),
            (Right::Operator, "CN=root", true),
            (Right::Member, "CN=root", true),
            (Right::Operator, "CN=other", false),
        ] {
            let address = "10.0.0.7:4000".parse().unwrap();
            let ids = schemes.of_connection(&Connection::new(address, Some(subject), right));
            assert!(ids.contains(&Id::new("x509", subject)));
            assert_eq!(ids.contains(&Id::superuser()), is_super, "{right} {subject}");
        }
    }

    #[test]
    fn super_users_are_more() {
        let mut schemes = Schemes::default();
        schemes.add_super_user(Id::digest("super", "test"));
        schemes.validate().unwrap();
        let ids = schemes.authenticate("digest", b"super:test").unwrap();
        assert_eq!(ids, [Id::digest("super", "test"), Id::superuser()]);
        assert_eq!(schemes.authenticate("digest", b"super:other").unwrap().len(), 1);
        for id in [Id::anyone(), Id::auth(), Id::superuser(), Id::new("ip", "::1")] {
            schemes.super_users = vec![id];
            assert!(schemes.validate().is_err());
        }
    }
}
