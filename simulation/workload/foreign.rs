//! Locks that are shared with clients in other languages: plain models of Curator's and kazoo's algorithms over
//! the calls of a session, beside this library's lock at the same path.

use std::rc::Rc;

use super::lock_family::{hold, with_patience};
use crate::api::session::Session;
use crate::recipes::Naming;
use crate::simulation::checks::shares::Holding;
use crate::simulation::client::{Client, Handle};
use crate::simulation::random::Random;
use crate::types::error::{Error, Result};
use crate::types::znode::CreateMode;

/// A path, how contenders of this library are named there, and the others that contend.
const PATHS: [(&str, Naming, [Form; 2]); 3] = [
    ("/foreign/curator", Naming::Curator, [Form::Curator, Form::KazooAsCurator]),
    ("/foreign/kazoo", Naming::Kazoo, [Form::Kazoo, Form::Kazoo]),
    ("/foreign/pattern", Naming::Curator, [Form::KazooWithPattern, Form::KazooWithPattern]),
];

/// How a client of another library names its contenders, and which ones it counts. `docs/shared-recipes.md` has
/// the sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Curator,
    /// With the names of the page's `SharedLock`.
    KazooAsCurator,
    Kazoo,
    /// With `extra_lock_patterns=["-lock-"]`.
    KazooWithPattern,
}

impl Form {
    /// The name of a contender, to which the cluster appends the number.
    fn name(self, random: &Random) -> String {
        let (high, low) = (random.next(), random.next());
        match self {
            Form::Curator => format!(
                "_c_{:08x}-{:04x}-{:04x}-{:04x}-{:012x}-lock-",
                high >> 32,
                high >> 16 & 0xffff,
                high & 0xffff,
                low >> 48,
                low & 0xffff_ffff_ffff
            ),
            Form::KazooAsCurator => format!("{high:016x}{low:016x}-lock-"),
            Form::Kazoo | Form::KazooWithPattern => format!("{high:016x}{low:016x}__lock__"),
        }
    }

    /// What of a name is its place in the order; `None` if it is no contender.
    fn place(self, name: &str) -> Option<&str> {
        let ends: &[&str] = match self {
            // `StandardLockInternalsDriver.standardFixForSorting`. All children are contenders.
            Form::Curator => {
                return Some(name.rsplit_once("lock-").map_or(name, |(_, number)| number));
            }
            Form::KazooAsCurator => &["-lock-"],
            Form::Kazoo => &["__lock__"],
            Form::KazooWithPattern => &["__lock__", "-lock-"],
        };
        let (rest, number) = name.split_at_checked(name.len().checked_sub(10)?)?;
        ends.iter().any(|end| rest.ends_with(end)).then_some(number)
    }

    /// The contender before this one, or none if it holds.
    ///
    /// # Errors
    /// It is not there any more.
    fn predecessor(self, children: Vec<String>, own: &str) -> Result<Option<String>> {
        let missing = || Error::NoNode { path: own.to_owned() };
        let place = self.place(own).ok_or_else(missing)?.to_owned();
        if !children.iter().any(|child| child == own) {
            return Err(missing());
        }
        let before = children.into_iter().filter(|child| self.place(child) < Some(place.as_str()));
        let before = before.filter(|child| self.place(child).is_some());
        Ok(before.max_by(|one, other| self.place(one).cmp(&self.place(other))))
    }
}

/// What a client of another library holds, until it lets go: as long as it hears from the cluster.
struct Held(Session);

impl Holding for Held {
    fn is_held(&self) -> bool {
        self.0.is_alive()
    }
}

pub(crate) async fn run(client: Client) {
    client
        .in_sessions(async |handle| {
            let (path, naming, others) = client.random.pick(&PATHS);
            // Any call may fail. The checks look at what succeeded.
            drop(match client.random.below(3) {
                0 => ours(&client, handle, path, *naming).await,
                number => theirs(&client, handle, path, others[number as usize - 1]).await,
            });
        })
        .await;
}

async fn ours(client: &Client, handle: &Rc<Handle>, path: &str, naming: Naming) -> Result<()> {
    let lock = handle.session().lock(path)?.with_naming(naming);
    if let Some(guard) = with_patience(client, "shared lock", lock.acquire()).await {
        hold(client, handle, path, (1, 1), guard).await;
    }
    Ok(())
}

async fn theirs(client: &Client, handle: &Rc<Handle>, path: &str, form: Form) -> Result<()> {
    let calls = &handle.session();
    let name = format!("{path}/{}", form.name(&client.random));
    let mode = CreateMode::EphemeralSequential;
    let created = match calls.create(&name, b"", mode).await {
        Err(Error::NoNode { .. }) => {
            for parent in ["/foreign", path] {
                // It may be there.
                drop(calls.create(parent, b"", CreateMode::Persistent).await);
            }
            calls.create(&name, b"", mode).await
        }
        created => created,
    };
    let own = created?.path;
    let turn = with_patience(client, "their lock", turn(handle.session(), path, form, &own));
    if turn.await.is_some() {
        let held = Held(handle.session().clone());
        hold(client, handle, path, (1, 1), held).await;
    }
    while let Err(Error::Busy { .. } | Error::DiskLow { .. }) = calls.delete(&own).await {
        client.think().await;
    }
    Ok(())
}

/// Waits until a contender is the first.
async fn turn(session: &Session, path: &str, form: Form, own: &str) -> Result<()> {
    let calls = &session.in_turn();
    let name = own.rsplit('/').next().unwrap_or(own);
    while let Some(before) = form.predecessor(calls.children(path).await?, name)? {
        let (stat, watch) = calls.exists_and_watch(&format!("{path}/{before}")).await?;
        if stat.is_some() {
            watch.next().await;
        }
    }
    Ok(())
}
