//! Shared state: a counter, ids, a configuration value and its followers, a cache, service
//! discovery, and two-phase commits.

use std::rc::Rc;
use std::time::Duration;

use crate::api::session::Session;
use crate::recipes::{
    Cache, Change, Config, ConfigUpdate, Counter, IdGenerator, Instance, Phase, Registration,
    Registry, TwoPhaseCommit, Updates, Versioned, Vote,
};
use crate::simulation::checks::require;
use crate::simulation::checks::state::{Mirror, Transaction};
use crate::simulation::client::{Client, Handle};
use crate::simulation::clock::Nanos;
use crate::simulation::executor::first;
use crate::types::error::{Error, Result};
use crate::types::znode::{SessionId, Zxid};

/// The parent of all these znodes.
const ROOT: &str = "/state";
const SERVICE: &str = "/state/services/s";

/// The participants of each transaction.
const SITES: [&str; 2] = ["a", "b"];

/// The values that a client follows.
struct Followed {
    cache: Cache,
    mirror: Mirror,
    updates: Updates<ConfigUpdate<Vec<u64>>>,
    /// The version of the last value received, if there is one.
    value: Option<Zxid>,
    /// Only without a replica.
    instances: Option<Updates<Vec<Instance>>>,
    /// The ids of the last set of instances received.
    ids: Vec<String>,
}

/// One client's recipes, for as long as its session lives.
struct State {
    client: Client,
    handle: Rc<Handle>,
    counter: Counter,
    ids: IdGenerator,
    config: Config<Vec<u64>>,
    registry: Registry,
}

pub(crate) async fn run(client: Client) {
    while !client.kernel.is_stopping() {
        client.think().await;
        let Ok((handle, _opened)) = client.open(None) else { return };
        let Ok(state) = State::new(client.clone(), handle) else { return };
        // A lost session and `Busy` are expected here.
        match state.live().await {
            Ok(()) => {}
            Err(error) => client.kernel.check(require(is_expected(&error), "no wonder", || {
                format!("a recipe came to {error}")
            })),
        }
    }
}

fn is_expected(error: &Error) -> bool {
    error.is_session_lost()
        || error.is_outcome_unknown()
        || matches!(error, Error::Busy { .. } | Error::DiskLow { .. } | Error::Conflict { .. })
}

impl State {
    fn new(client: Client, handle: Rc<Handle>) -> Result<State> {
        let session = handle.session().clone();
        Ok(State {
            counter: Counter::new(&session, "/state/counter")?,
            ids: IdGenerator::new(&session, "/state/ids", 3)?,
            config: Config::new(&session, "/state/config")?,
            registry: Registry::new(&session, "/state/services")?,
            client,
            handle,
        })
    }

    fn session(&self) -> &Session {
        self.handle.session()
    }

    async fn live(&self) -> Result<()> {
        let kernel = &self.client.kernel;
        let mut registered = None;
        let mut followed = self.follow().await?;
        let mut received = 0;
        while !kernel.is_stopping() && !self.handle.is_over() {
            // Each of these does several writes. The pauses leave time for those of other clients.
            for _ in 0..3 {
                self.client.think().await;
            }
            match self.client.random.below(9) {
                0..2 => self.count().await?,
                2 => self.take_ids().await?,
                3 => self.configure().await?,
                4 => self.register(&mut registered).await?,
                5 => self.discover().await?,
                _ => self.transact().await?,
            }
            if self.client.random.percent(50) {
                continue;
            }
            self.session().sync().await?;
            if !self.session().has_replica() {
                self.follow_remotely(&mut followed).await?;
                continue;
            }
            let Followed { cache, mirror, updates, .. } = &mut followed;
            let update = updates.try_recv().wait()?.filter(|_| !strikes!(ConfigMissed, 3));
            if let Some(ConfigUpdate::Value(value)) = update {
                let version = if strikes!(ValueMisnumbered, 3) { 1 } else { value.version };
                kernel.check(require(version > received, "versions grow", || {
                    format!("a follower received {received}, and then {version}")
                }));
                received = version;
            }
            let shown = self.config.get().wait()?.map_or(received, |shown| shown.version);
            kernel.check(require(shown == received, "a follower receives the last value", || {
                format!("it received {received}, and there is {shown}")
            }));
            let mut changes = cache.try_recv().wait()?;
            changes.retain(|it| {
                !planted!(CacheMissesRemoval) || !matches!(it, Change::Removed { .. })
            });
            kernel.check(mirror.follow(&changes));
            kernel.check(mirror.shows(&self.session().snapshot().wait()?, ROOT));
        }
        Ok(())
    }

    async fn follow(&self) -> Result<Followed> {
        let cache = Cache::new(self.session(), ROOT).await?;
        let mirror = Mirror::new(cache.view(), ROOT);
        let updates = self.config.watch();
        let instances = match self.session().has_replica() {
            true => None,
            false => Some(self.registry.watch("s")?),
        };
        Ok(Followed { cache, mirror, updates, value: None, instances, ids: Vec::new() })
    }

    /// Checks the followers of a client without a replica. Its reads show different moments. But if
    /// a value is the same before and after, it was the same in between, and the followers must
    /// show it.
    async fn follow_remotely(&self, followed: &mut Followed) -> Result<()> {
        let kernel = &self.client.kernel;
        let Followed { cache, mirror, updates, value, instances, ids } = followed;
        if self.client.random.percent(50) {
            // Waits for changes and may give up at any moment.
            if let Ok(changes) = first(cache.recv(), self.client.think()).await {
                kernel.check(mirror.follow(&changes?));
            }
        }
        let before = Mirror::new(&self.handle.view(ROOT).await?, ROOT);
        kernel.check(mirror.follow(&cache.latest().await?));
        kernel.check(mirror.shows(cache.view(), ROOT));
        let after = self.handle.view(ROOT).await?;
        if before == Mirror::new(&after, ROOT) {
            kernel.count("state followed");
            kernel.check(mirror.shows(&after, ROOT));
        }

        let version = async || Ok(self.config.get().await?.map(|value| value.version));
        let update = match self.client.random.percent(50) {
            true => first(updates.recv(), self.client.think()).await.ok().transpose()?,
            false => None,
        };
        let before = version().await?;
        for update in [update, updates.latest().await?].into_iter().flatten() {
            let now = match update {
                ConfigUpdate::Value(value) => Some(value.version),
                _ => None,
            };
            kernel.check(require(now.is_none() || now > *value, "versions grow", || {
                format!("a follower received {value:?}, and then {now:?}")
            }));
            *value = now;
        }
        if before == version().await? {
            kernel.check(require(*value == before, "a follower receives the last value", || {
                format!("it was told {value:?}, and there is {before:?}")
            }));
        }

        let Some(instances) = instances else { return Ok(()) };
        let set = match self.client.random.percent(50) {
            true => first(instances.recv(), self.client.think()).await.ok().transpose()?,
            false => None,
        };
        let before = Mirror::new(&self.handle.view(SERVICE).await?, SERVICE);
        let set = instances.latest().await?.or(set);
        if let Some(set) = set.filter(|_| !strikes!(InstancesMissed, 3)) {
            *ids = set.into_iter().map(|instance| instance.id).collect();
        }
        let after = self.handle.view(SERVICE).await?;
        if before == Mirror::new(&after, SERVICE) {
            let there = after.children(SERVICE).unwrap_or_default();
            kernel.check(require(
                *ids == there,
                "a follower of a service receives all instances",
                || format!("it received {ids:?}, and there are {there:?}"),
            ));
        }
        Ok(())
    }

    /// Waits for a reply, in a third of the cases only for a while.
    async fn with_patience<T>(
        &self,
        what: &'static str,
        asked: impl Future<Output = Result<T>>,
    ) -> Result<Option<T>> {
        let kernel = &self.client.kernel;
        let patience = match self.client.random.below(3) {
            0 => self.client.random.around(kernel.plan.think),
            _ => Nanos::MAX / 2,
        };
        let waits = kernel.wait(what, self.client.place);
        let answer = first(asked, kernel.sleep(patience)).await;
        drop(waits);
        kernel.count(what);
        match answer {
            Ok(Ok(answer)) => Ok(Some(answer)),
            Ok(Err(error)) if is_expected(&error) && !error.is_session_lost() => Ok(None),
            Ok(Err(error)) => Err(error),
            Err(()) => Ok(None),
        }
    }

    async fn count(&self) -> Result<()> {
        let number = 1 + self.client.random.below(9) as i64;
        let Some(added) = self.with_patience("count", self.counter.add(number)).await? else {
            return Ok(());
        };
        let checked = self.client.kernel.checks.borrow_mut().state.counted(added, number);
        self.client.kernel.check(checked);
        Ok(())
    }

    async fn take_ids(&self) -> Result<()> {
        for _ in 0..4 {
            let Some(id) = self.with_patience("take an id", self.ids.next_id()).await? else {
                return Ok(());
            };
            let checked = self.client.kernel.checks.borrow_mut().state.id_given(id);
            self.client.kernel.check(checked);
        }
        Ok(())
    }

    /// Appends numbers and keeps the last few.
    async fn configure(&self) -> Result<()> {
        if self.client.random.percent(20) {
            match self.session().delete("/state/config").await {
                Ok(()) | Err(Error::NoNode { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        for _ in 0..3 {
            let number = self.client.random.below(1 << 40);
            let with = |numbers: Option<Vec<u64>>| {
                let mut numbers = numbers.unwrap_or_default();
                numbers.push(number);
                if numbers.len() > 5 {
                    numbers.remove(0);
                }
                numbers
            };
            let updated = async {
                if planted!(UpdateLost) {
                    let value = with(self.config.get().await?.map(|now| now.value));
                    let version = self.config.set(&value).await?;
                    return Ok(Versioned { value, version });
                }
                self.config.update(with).await
            };
            if let Some(updated) = self.with_patience("configure", updated).await? {
                let checked = self.client.kernel.checks.borrow_mut().state.updated(&updated.value);
                self.client.kernel.check(checked);
            }
        }
        Ok(())
    }

    async fn register(&self, registered: &mut Option<Registration>) -> Result<()> {
        if registered.take().is_some() {
            return Ok(());
        }
        let id = self.session().id().number();
        let instance = Instance::new(format!("{id:016x}"), "address", 1);
        match self.with_patience("register", self.registry.register("s", &instance)).await {
            Ok(made) => {
                if made.is_some() {
                    let session = self.session().id();
                    self.client.kernel.checks.borrow_mut().state.registered(session);
                }
                *registered = made;
            }
            // An earlier registration was dropped before its reply came, and its znode is still
            // there.
            Err(Error::NodeExists { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    async fn discover(&self) -> Result<()> {
        // Sessions that have ended by now must not show after the sync.
        let ended = {
            let checks = self.client.kernel.checks.borrow();
            checks.state.ended(&checks.oracle)
        };
        self.session().sync().await?;
        if !self.session().has_replica() {
            let shown = self.handle.children_seen(SERVICE).await.unwrap_or_default();
            let is_shown = |id: &&SessionId| shown.contains(&format!("{:016x}", id.number()));
            let stale = ended.iter().find(is_shown);
            self.client.kernel.check(require(stale.is_none(), "I18 instances", || {
                format!("{stale:?} is shown to a client, and had ended")
            }));
            return Ok(());
        }
        let mut instances = self.registry.instances("s").wait()?;
        if planted!(InstanceStays) {
            let stay =
                |id: &SessionId| Instance::new(format!("{:016x}", id.number()), "address", 1);
            instances.extend(ended.iter().map(stay));
        }
        let shown = |id: u64| instances.iter().find(|shown| shown.id == format!("{id:016x}"));
        let stale = ended.iter().find_map(|id| shown(id.number()));
        self.client.kernel.check(require(stale.is_none(), "I18 instances", || {
            format!("{stale:?} is shown, and its session had ended")
        }));
        Ok(())
    }

    /// Plays one part in one of a few transactions.
    async fn transact(&self) -> Result<()> {
        let path = format!("{ROOT}/tx-{}", self.client.random.below(2));
        let transaction = TwoPhaseCommit::new(self.session(), &path)?;
        let site = *self.client.random.pick(&SITES);
        let before = self.begun(&path).await?;
        let done = match self.client.random.below(8) {
            0 => self.with_patience("begin", transaction.begin(&SITES, b"")).await.map(drop),
            1..5 => self.take_part(&transaction, site).await,
            5 | 6 => {
                let time = Duration::from_nanos(self.client.kernel.plan.think * 10);
                let deciding = async {
                    let time = self.session().sleep(time);
                    match first(transaction.decide(), time).await {
                        Ok(phase) => phase,
                        Err(_) => transaction.abort().await,
                    }
                };
                match self.with_patience("decide", deciding).await {
                    Ok(phase) => self.decided(before, &path, phase).await,
                    Err(error) => Err(error),
                }
            }
            _ => self.with_patience("forget", transaction.forget()).await.map(drop),
        };
        match done {
            // It has not begun, or somebody else has begun it.
            Err(Error::NoNode { .. } | Error::NodeExists { .. }) => Ok(()),
            // Another transaction has replaced it. That one is undecided, or this site has voted
            // otherwise there.
            Err(Error::InvalidData { .. }) => Ok(()),
            other => other,
        }
    }

    async fn take_part(&self, transaction: &TwoPhaseCommit, site: &'static str) -> Result<()> {
        let (kernel, path) = (&self.client.kernel, transaction.path());
        let begun = self.begun(path).await?;
        let Some(part) = self.with_patience("join", transaction.join(site)).await? else {
            return Ok(());
        };
        if self.client.random.percent(20) {
            self.client.think().await;
        }
        let vote = if self.client.random.percent(75) { Vote::Yes } else { Vote::No };
        // If another transaction has replaced it meanwhile, the vote counts for the new one.
        if let Some(begun) = self.begun(path).await? {
            kernel.checks.borrow_mut().state.voting(&begun, site, vote);
        }
        if let Some(phase) = self.with_patience("vote", part.vote(vote)).await? {
            if let Some(begun) = self.same(begun.clone(), path).await? {
                kernel.check(kernel.checks.borrow_mut().state.voted(&begun, site, vote));
            }
            self.decided(begun.clone(), path, Some(phase)).await?;
        }
        let outcome = self.with_patience("outcome", async {
            match first(part.outcome(), self.client.think()).await {
                Ok(outcome) => outcome,
                Err(()) => Ok(Phase::Voting),
            }
        });
        let outcome = outcome.await?;
        self.decided(begun, path, outcome).await?;
        if matches!(outcome, Some(Phase::Committed | Phase::Aborted)) {
            self.with_patience("acknowledge", part.acknowledge()).await?;
        }
        Ok(())
    }

    /// The transaction that exists at this path now.
    async fn begun(&self, path: &str) -> Result<Option<Transaction>> {
        let stat = self.handle.stat_seen(path).await?;
        Ok(stat.map(|stat| (path.to_owned(), stat.czxid)))
    }

    /// Returns `before` if that transaction still exists: then it has existed all the time.
    async fn same(&self, before: Option<Transaction>, path: &str) -> Result<Option<Transaction>> {
        let now = self.begun(path).await?;
        Ok(before.filter(|before| now.as_ref() == Some(before)))
    }

    async fn decided(
        &self,
        before: Option<Transaction>,
        path: &str,
        phase: Option<Phase>,
    ) -> Result<()> {
        if let (Some(same), Some(phase)) = (self.same(before, path).await?, phase) {
            let kernel = &self.client.kernel;
            kernel.count_event(match phase {
                Phase::Voting => "transactions voted on",
                Phase::Committed => "transactions committed",
                Phase::Aborted => "transactions aborted",
            });
            kernel.check(kernel.checks.borrow_mut().state.decided(&same, phase, &SITES));
        }
        Ok(())
    }
}
