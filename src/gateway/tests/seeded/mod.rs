//! Random clients of three members' gateways, in virtual time and without a thread. All that each client received is
//! compared with the plain model of ZooKeeper ([`model`](super::model)): replies in the order of the requests, each
//! once; zxids that never go back, events before the reply that shows their change, none lost and none twice, also
//! when a client continues at another member; nothing after a connection's end; what waits for clients within its
//! bounds. The same seed gives the same bytes.

mod check;
mod client;
mod history;
mod members;

use std::sync::Arc;
use std::time::Duration;

use self::check::{Seen, check};
use self::client::{Client, Manners};
use self::members::{MEMBERS, Members, Weather};
use crate::Builder;
use crate::gateway::wire::codes::{CreateFlags, ErrorCode};
use crate::gateway::wire::jute::Credential;
use crate::gateway::wire::request::{self, PathOnly, Request};
use crate::gateway::{Gateway, GatewayBuilder};
use crate::machine::command::Op;
use crate::node::query::EventData;
use crate::planted::{Bug, plant};
use crate::runtime::ask::Ask;
use crate::runtime::entropy::simulated;
use crate::runtime::inbox::RequestOrigin;
use crate::runtime::session::SessionShared;
use crate::security::AuthProvider;
use crate::simulation::random::Random;
use crate::types::znode::{CreateMode, SessionId};

const CLIENTS: usize = 5;
const TICK: Duration = Duration::from_millis(1);
/// How long faults go on.
const STORM: Duration = Duration::from_secs(6);
/// How many worlds of each kind the test runs.
const SEEDS: u64 = 2;
/// How many worlds are looked at for a planted bug.
const SEEDS_OF_BUG: u64 = 40;
/// How long it may take until all is well again.
const CALM: Duration = Duration::from_secs(20);

/// Accepts everybody, but not at once.
struct Slow;

impl AuthProvider for Slow {
    fn scheme(&self) -> &str {
        "slow"
    }

    fn authenticate(&self, credentials: &[u8]) -> std::result::Result<Vec<String>, String> {
        Ok(vec![String::from_utf8_lossy(credentials).into_owned()])
    }
}

/// What a kind of world is like.
#[derive(Clone)]
struct Plan {
    weather: Weather,
    manners: Manners,
    settings: GatewayBuilder,
    /// How many members are cut off in a million milliseconds.
    cuts_ppm: u64,
}

fn plan(random: &Random) -> Plan {
    let settings = Gateway::builder();
    let weather = Weather {
        message_ms: *random.pick(&[2, 20, 100]),
        disk_ms: *random.pick(&[1, 10, 60]),
        step_ms: *random.pick(&[0, 3, 40]),
        turn_ms: *random.pick(&[0, 3, 40]),
        window: *random.pick(&[500, 20_000, 1_000_000]),
    };
    let manners = Manners {
        requests_ppm: *random.pick(&[3_000, 20_000, 60_000]),
        losses_ppm: *random.pick(&[0, 300, 2_000]),
        pauses_ppm: *random.pick(&[0, 200]),
        long_percent: 30,
        data_bytes: *random.pick(&[0, 100, 10_000]),
        burst: 4,
        closes_ppm: 0,
    };
    Plan { weather, manners, settings, cuts_ppm: *random.pick(&[0, 0, 200]) }
}

struct World {
    members: Members,
    clients: Vec<Client>,
    random: Random,
    plan: Plan,
    heals_at: Option<Duration>,
    observer: Arc<SessionShared>,
}

impl World {
    fn new(seed: u64, plan: impl FnOnce(&Random) -> Plan) -> World {
        simulated::seed(Some(seed));
        let random = Random::new(seed);
        let plan = plan(&random.fork(1));
        let builder = Builder::default().auth_provider(Slow);
        let members = Members::new(plan.weather, &plan.settings, &builder, random.fork(2));
        let client = |name| Client::new(name, plan.manners, random.fork(10 + name as u64));
        let clients = (0..CLIENTS).map(client).collect();
        let (id, secret, timeout) = (SessionId(7), [7; 16], Duration::from_secs(20));
        let observer = Arc::new(SessionShared::new(id, 1, secret, timeout));
        let random = random.fork(3);
        let mut world = World { members, clients, random, plan, heals_at: None, observer };
        world.observe(timeout);
        world
    }

    /// Watches everything below the root of the test, which is created then.
    fn observe(&mut self, timeout: Duration) {
        let observer = Arc::clone(&self.observer);
        self.ask(RequestOrigin::Opener(Arc::clone(&observer)), Ask::open(&observer, timeout));
        let watch = Ask::watch(self.members.observer, "/t".into(), true, None, EventData::After);
        self.ask(RequestOrigin::Holder(Arc::clone(&observer)), watch);
        let (path, mode) = ("/t".into(), CreateMode::Persistent);
        let create = Ask::create(Op::Create { path, data: "".into(), mode });
        self.ask(RequestOrigin::Holder(observer), create);
    }

    fn ask<A: 'static>(&mut self, asker: RequestOrigin, ask: Ask<A>) {
        let mut pending = self.members.all[0].shared.ask(asker, ask, None, |_| Ok(()));
        for _ in 0..60_000 {
            if let Some(answer) = pending.try_take() {
                return answer.expect("there is a quorum");
            }
            self.members.time.pass(TICK);
            self.members.run();
        }
        panic!("no answer");
    }

    fn tick(&mut self, is_stormy: bool) {
        self.members.time.pass(TICK);
        let now = self.members.now();
        if is_stormy && self.heals_at.is_none() && self.random.chance(self.plan.cuts_ppm) {
            // The first member observes.
            self.members.cut(1 + self.random.index(MEMBERS - 1), true);
            self.heals_at = Some(now + Duration::from_millis(self.random.below(4_000)));
        }
        if self.heals_at.is_some_and(|at| now >= at || !is_stormy) {
            self.heals_at = None;
            (0..MEMBERS)
                .filter(|of| self.members.is_cut(*of))
                .collect::<Vec<_>>()
                .into_iter()
                .for_each(|of| self.members.cut(of, false));
        }
        self.members.run();
        let is_quiet = self.clients.iter().any(Client::sets_watches);
        for client in &mut self.clients {
            client.act(&mut self.members, is_quiet);
        }
    }

    fn run(mut self) -> (Seen, u64) {
        let until = self.members.now() + STORM;
        while self.members.now() < until {
            self.tick(true);
        }
        self.clients.iter_mut().for_each(|client| client.is_calm = true);
        self.settle();
        let World { members, clients, .. } = &mut self;
        let sync = [Request::Sync(PathOnly { path: Some("/t".into()) })];
        clients.iter_mut().for_each(|client| client.send_all(members, &sync));
        self.settle();
        let mut seen = Seen::default();
        let mut bytes = 0;
        for client in &mut self.clients {
            client.finish();
            bytes ^= client.bytes.rotate_left(7);
            for talk in &client.talks {
                check(talk, &self.members.history, &mut seen);
            }
        }
        let refused = self.clients.iter().flat_map(|client| &client.refused);
        for (session, talk) in refused {
            let is_there = self.members.has_session(*session);
            assert!(!is_there, "{talk}: {session:#x} is refused, and it is there");
        }
        self.members.check_ephemerals();
        simulated::seed(None);
        (seen, bytes)
    }

    fn settle(&mut self) {
        let until = self.members.now() + CALM;
        while !self.clients.iter().all(Client::is_settled) {
            let is_late = self.members.now() >= until;
            let left = self.clients.iter().filter(|client| !client.is_settled());
            assert!(!is_late, "not answered: {:?}", left.map(Client::describe).collect::<Vec<_>>());
            self.tick(false);
        }
    }
}

/// Runs some worlds. Returns what they have seen.
fn worlds(seeds: std::ops::Range<u64>, plan: fn(&Random) -> Plan) -> Seen {
    let mut all = Seen::default();
    for seed in seeds {
        println!("seed {seed}");
        let (seen, _) = World::new(seed, plan).run();
        all.add(&seen);
    }
    all
}

/// Clients that lose their connections all the time.
fn restless(random: &Random) -> Plan {
    let mut plan = plan(random);
    (plan.manners.losses_ppm, plan.manners.requests_ppm) = (1_500, 20_000);
    plan
}

/// Clients that often close their sessions, while others write a lot.
fn closing(random: &Random) -> Plan {
    let mut plan = plan(random);
    plan.weather.step_ms = 40;
    (plan.manners.requests_ppm, plan.manners.closes_ppm) = (60_000, 3_000);
    plan
}

/// Clients that read little and seldom, of a gateway with little memory.
fn lazy(random: &Random) -> Plan {
    let mut plan = plan(random);
    plan.weather.window = 500;
    let (requests_ppm, pauses_ppm) = (60_000, 1_000);
    let (long_percent, data_bytes, burst) = (80, 12_000, 20);
    plan.manners =
        Manners { requests_ppm, pauses_ppm, long_percent, data_bytes, burst, ..plan.manners };
    plan.settings = plan.settings.buffer_bytes_max(*random.pick(&[100_000, 1 << 30]));
    plan
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
}

/// `QUORATE_SEED` and `QUORATE_SEEDS` set the first seed and their number.
#[test]
fn clients_receive_what_zookeeper_would_send() {
    let (from, count) = (number("QUORATE_SEED", 1), number("QUORATE_SEEDS", SEEDS));
    let mut seen = Seen::default();
    for plan in [plan, restless, lazy, closing] {
        seen.add(&worlds(from..from + count, plan));
        println!("{seen:?}");
    }
    let Seen { replies, events, resumptions, missed, acknowledged } = seen;
    let all = [replies, events, resumptions, missed, acknowledged];
    assert!(count < SEEDS || all.iter().all(|seen| *seen > 10), "little was tested: {seen:?}");
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    assert_eq!(World::new(1, restless).run(), World::new(1, restless).run());
}

/// Requests that a client had sent behind a sync ran before it: reads showed what the client wrote only after them.
#[test]
fn requests_do_not_overtake_a_sync() {
    let calm = |random: &Random| {
        let mut plan = restless(random);
        plan.weather =
            Weather { message_ms: 50, disk_ms: 1, step_ms: 0, turn_ms: 0, ..plan.weather };
        plan
    };
    let mut world = World::new(1, calm);
    world.clients.iter_mut().for_each(|client| client.is_calm = true);
    world.settle();
    for round in 0..20 {
        let path = format!("/t/{round}");
        let read = || request::Read { path: Some(path.clone()), watch: false };
        let requests = [
            Request::Sync(PathOnly { path: Some("/t".into()) }),
            Request::Exists(read()),
            Request::Create(Client::create_of(&path, None, CreateFlags::Persistent)),
            Request::Exists(read()),
        ];
        let client = round % CLIENTS;
        world.clients[client].send_all(&mut world.members, &requests);
        world.settle();
        let codes = world.clients[client].last_codes(requests.len());
        let expected = [ErrorCode::Ok, ErrorCode::NoNode, ErrorCode::Ok, ErrorCode::Ok];
        assert_eq!(codes, expected, "in round {round}");
    }
    simulated::seed(None);
}

/// The credentials of a client whose session moved before they were written down were called wrong, after which
/// ZooKeeper's clients give up for good.
#[test]
fn credentials_are_not_wrong_because_the_session_has_moved() {
    let slow = |random: &Random| {
        let mut plan = restless(random);
        plan.weather =
            Weather { message_ms: 2, disk_ms: 300, step_ms: 0, turn_ms: 0, window: 20_000 };
        plan
    };
    let mut world = World::new(1, slow);
    world.clients.iter_mut().for_each(|client| client.is_calm = true);
    world.settle();
    let (scheme, auth) = (Some("slow".to_owned()), Credential(Some("me".into())));
    let auth = [Request::Auth(request::Auth { kind: 0, scheme, auth })];
    for _ in 0..3 {
        for client in &mut world.clients {
            client.send_all(&mut world.members, &auth);
        }
        (0..60).for_each(|_| world.tick(false));
        world.clients.iter_mut().for_each(Client::move_on);
        world.settle();
    }
    let told = world.clients.iter().flat_map(|client| &client.talks).flat_map(|talk| &talk.told);
    let codes: Vec<i32> = told.map(|told| told.header.err).collect();
    assert!(codes.iter().all(|code| *code == 0), "{codes:?}");
    simulated::seed(None);
}

/// Checks that a world of this kind notices a bug.
fn notices(bug: Bug, of: fn(&Random) -> Plan) {
    let is_noticed = (1..=SEEDS_OF_BUG).any(|seed| {
        plant(Some(bug));
        let run = std::panic::catch_unwind(|| World::new(seed, of).run());
        plant(None);
        simulated::seed(None);
        run.is_err()
    });
    assert!(is_noticed, "{bug:?} is not noticed");
}

#[test]
fn requests_wait_for_the_reply_to_the_first_packet() {
    notices(Bug::TakenBeforeGreeting, restless);
}

#[test]
fn requests_wait_for_a_sync() {
    notices(Bug::SyncOvertaken, restless);
}

#[test]
fn events_come_before_the_reply_that_shows_them() {
    notices(Bug::EventBehindReply, restless);
}

#[test]
fn a_session_has_one_connection() {
    notices(Bug::MovedGoesOn, restless);
}

#[test]
fn what_is_not_read_is_bounded() {
    notices(Bug::UnreadUnbounded, lazy);
}
