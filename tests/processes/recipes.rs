//! Groups, persistent ephemerals, elections and shared state in real processes, one of which is killed with
//! SIGKILL.
//!
//! The processes are this test program itself: see `worker`.

#![cfg(unix)]

use std::ops::ControlFlow;
use std::time::Duration;

use crate::common;
use crate::common::{PATIENCE, Process, addresses, name_of, node, place};
use quorate::recipes::{
    Barrier, Cache, Config, ConfigUpdate, Group, Instance, LeaderSelector, PersistentEphemeral,
    Registry,
};
use quorate::{Coordinator, CreateMode, EventKind, Session, WatchMode};

const WORKER: &str = name_of(concat!(module_path!(), "::worker"));

/// Not a test of its own: the code of the process that is killed. It takes part in all of them, and writes
/// until it is killed.
#[test]
fn worker() {
    let Some((peers, address)) = place() else { return };
    // Longer than a restart takes.
    let long = std::path::Path::new(LONG_SESSIONS).exists().then_some(Duration::from_secs(40));
    let builder = node(&address).request_timeout(PATIENCE);
    let builder = builder.session_timeout(long.unwrap_or(common::SESSION_TIMEOUT));
    let coordinator = builder.join(peers).wait().unwrap_or_else(|error| panic!("{error}"));
    let session = coordinator.session();
    let member = Group::new(&session, "/group").unwrap().join("victim", b"here").wait().unwrap();
    let up = PersistentEphemeral::new(&coordinator.session(), "/up/victim", b"up").unwrap();
    let run = up.run();
    let running = std::thread::Builder::new().spawn(move || run.wait()).unwrap();
    assert!(up.wait_present().timeout(PATIENCE).wait() == Ok(true));
    let supervised = coordinator.supervise(|session| {
        let here = Instance::new("victim", "10.0.0.7", 80);
        let here = Registry::new(&session, "/services")?.register("web", &here).wait()?;
        println!("@registered");
        here.wait_lost().wait()?;
        Ok(ControlFlow::Continue(()))
    });
    println!("@up {}", member.fencing_token());
    for line in std::io::stdin().lines().map_while(Result::ok) {
        match line.as_str() {
            "lead" => {
                let selector = LeaderSelector::new(&session, "/selector", "victim").unwrap();
                let led = selector.run(|leadership| async move {
                    println!("@leads {}", leadership.fencing_token());
                    leadership.wait_lost().await.unwrap();
                    ControlFlow::<()>::Continue(())
                });
                let led = led.wait();
                panic!("the process ended before it led: {led:?}");
            }
            "write" => write(&session),
            other => panic!("unknown order {other}"),
        }
    }
    drop((member, running, supervised));
}

/// Writes the shared state until the process is killed.
fn write(session: &Session) {
    Barrier::new(session, "/barrier").unwrap().set().wait().unwrap();
    let config = Config::<u64>::new(session, "/config").unwrap();
    for n in 1.. {
        config.set(&n).wait().unwrap();
        let (path, mode) = ("/list/", CreateMode::PersistentSequential);
        session.create(path, n.to_string(), mode).wait().unwrap();
        println!("@wrote {n}");
    }
}

/// A file in the directory of a test whose processes have sessions with a long timeout.
const LONG_SESSIONS: &str = "long-sessions";

/// What a new process needs. Its data directory is named after its address.
struct Place<'a> {
    dir: &'a std::path::Path,
    addresses: &'a [String],
}

impl Place<'_> {
    fn start(&self) -> (Process, u64) {
        let victim = Process::start(WORKER, self.dir, self.addresses, &self.addresses[0]);
        let joined = number(&victim.wait("up"));
        (victim, joined)
    }

    fn nodes(&self) -> Vec<Coordinator> {
        let join = |address: &String| {
            let data = self.dir.join(address.rsplit(':').next().unwrap());
            node(address)
                .request_timeout(PATIENCE)
                .data_dir(data)
                .join(self.addresses)
                .wait()
                .unwrap()
        };
        self.addresses[1..].iter().map(join).collect()
    }
}

fn number(line: &str) -> u64 {
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Waits for an event of this path, and for nothing else, until the znode exists or is gone.
fn wait_exists(session: &Session, path: &str, there: bool) {
    loop {
        let (exists, watch) = session.exists_and_watch(path).wait().unwrap();
        if exists.is_some() == there {
            return;
        }
        watch.events().recv_timeout(PATIENCE).expect("a change in time");
    }
}

#[test]
fn a_killed_member_is_gone_for_all_and_is_another_when_it_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let addresses = addresses(3);
    let place = Place { dir: dir.path(), addresses: &addresses };
    // Each knows the others before any of them waits.
    let starting = std::thread::scope(|scope| {
        let nodes = scope.spawn(|| place.nodes());
        (place.start(), nodes.join().unwrap())
    });
    let ((mut victim, joined), nodes) = starting;
    let session = nodes[0].session();
    session.sync().wait().unwrap();
    let group = Group::new(&session, "/group").unwrap();
    let _member = group.join("survivor", b"").wait().unwrap();
    let mut changes = group.watch();
    let members = changes.recv().timeout(PATIENCE).wait().expect("the first update comes at once");
    assert!(members.keys().eq(["survivor", "victim"]));
    assert_eq!(members.get("victim").unwrap().joined, joined);
    assert!(group.try_join("victim", b"").wait().unwrap().is_none(), "the name is taken");
    let before = session.get("/up/victim").wait().unwrap().1;
    assert!(before.ephemeral_owner.is_some());

    victim.order("lead");
    let token = number(&victim.wait("leads"));
    std::thread::scope(|scope| {
        let selector = LeaderSelector::new(&nodes[1].session(), "/selector", "survivor").unwrap();
        let latch = selector.latch().clone();
        let leading = scope.spawn(move || {
            let led = selector.run(|leadership| {
                std::future::ready(ControlFlow::Break(leadership.fencing_token()))
            });
            led.wait().unwrap().break_value()
        });
        while latch.candidates().wait().unwrap().len() < 2 {
            let watch = nodes[1].session().children_and_watch("/selector").wait().unwrap().1;
            if latch.candidates().wait().unwrap().len() < 2 {
                watch.events().recv_timeout(PATIENCE).expect("a candidate in time");
            }
        }
        assert!(!leading.is_finished(), "two leaders");
        victim.kill();
        assert!(leading.join().unwrap() > Some(token));
    });
    let members = changes.recv().timeout(PATIENCE).wait().expect("its session has ended");
    assert!(members.keys().eq(["survivor"]));
    wait_exists(&session, "/up/victim", false);

    // When it is back, it is a new member with another znode.
    let (mut victim, again) = place.start();
    assert!(again > joined);
    let members = changes.recv().timeout(PATIENCE).wait().expect("it has come back");
    assert_eq!(members.get("victim").unwrap().joined, again);
    wait_exists(&session, "/up/victim", true);
    let after = session.get("/up/victim").wait().unwrap().1;
    assert!(after.czxid > before.czxid && after.ephemeral_owner != before.ephemeral_owner);

    // Started again at once: the new run takes the former one's znode over, or finds it gone.
    victim.kill();
    let (_victim, last) = place.start();
    assert!(last > again);
    wait_exists(&session, "/up/victim", true);
    let is_new = |stat: quorate::Stat| stat.czxid > after.czxid;
    while !session.exists("/up/victim").wait().unwrap().is_some_and(is_new) {
        let (stat, watch) = session.exists_and_watch("/up/victim").wait().unwrap();
        if !stat.is_some_and(is_new) {
            watch.events().recv_timeout(PATIENCE).expect("a change in time");
        }
    }
}

/// An instance that was killed and started again waited for the end of its former session, or for longer: its
/// own znodes were in its way.
#[test]
fn an_instance_that_is_killed_and_started_again_is_never_missing() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(LONG_SESSIONS), "").unwrap();
    let addresses = addresses(3);
    let place = Place { dir: dir.path(), addresses: &addresses };
    let ((mut victim, _), nodes) = std::thread::scope(|scope| {
        let nodes = scope.spawn(|| place.nodes());
        (place.start(), nodes.join().unwrap())
    });
    let session = nodes[0].session();
    wait_exists(&session, "/services/web/victim", true);
    let paths = ["/group/victim", "/up/victim", "/services/web/victim"];
    let watches = paths.map(|path| session.watch(path, WatchMode::Persistent).wait().unwrap());

    victim.kill();
    let (_victim, _) = place.start();
    for watch in watches {
        let next = || watch.events().recv_timeout(PATIENCE).expect("an event in time");
        let (gone, back) = (next(), next());
        assert_eq!((gone.kind, back.kind), (EventKind::Deleted, EventKind::Created), "{back:?}");
        assert_eq!(gone.zxid, back.zxid, "{} was missing for a while", gone.path);
    }
}

#[test]
fn a_killed_writers_shared_state_stays_and_is_the_same_everywhere() {
    let dir = tempfile::tempdir().unwrap();
    let addresses = addresses(3);
    let place = Place { dir: dir.path(), addresses: &addresses };
    let ((mut victim, _), nodes) = std::thread::scope(|scope| {
        let nodes = scope.spawn(|| place.nodes());
        (place.start(), nodes.join().unwrap())
    });
    let session = nodes[0].session();
    session.create("/list", b"", CreateMode::Persistent).wait().unwrap();
    let mut cache = Cache::new(&session, "/list").wait().unwrap();
    let config = Config::<u64>::new(&session, "/config").unwrap();
    let mut updates = config.watch();
    victim.order("write");
    while number(&victim.wait("wrote")) < 30 {}
    let printed = victim.kill();
    let wrote = printed.iter().map(|line| number(line)).max().unwrap_or(30);
    session.sync().wait().unwrap();

    // All acknowledged writes, and at most the one in flight.
    let value = config.get().wait().unwrap().expect("it was set").value;
    assert!((wrote..=wrote + 1).contains(&value), "{wrote} were written, and the value is {value}");
    let mut last = 0;
    while let Some(update) = updates.try_recv().wait().unwrap() {
        let ConfigUpdate::Value(update) = update else { panic!("{update:?}") };
        assert!(update.version > last);
        last = update.version;
    }
    assert_eq!(config.get().wait().unwrap().unwrap().version, last, "the last update has come");
    let mut names = session.children("/list").wait().unwrap();
    names.sort();
    let data = |name: &String| session.get(&format!("/list/{name}")).wait().unwrap().0;
    let items: Vec<u64> =
        names.iter().map(|name| str::from_utf8(&data(name)).unwrap().parse().unwrap()).collect();
    let count = items.len() as u64;
    assert!((wrote..=value).contains(&count), "{wrote} were created, and there are {count}");
    assert_eq!(items, (1..=count).collect::<Vec<_>>());
    cache.try_recv().wait().unwrap();
    assert_eq!(cache.view().children("/list").unwrap().len() as u64, count);

    // A barrier has no owner: it blocks all until it is removed.
    let barrier = Barrier::new(&session, "/barrier").unwrap();
    wait_exists(&session, "/up/victim", false);
    assert!(barrier.is_set().wait().unwrap());
    std::thread::scope(|scope| {
        let other = Barrier::new(&nodes[1].session(), "/barrier").unwrap();
        let waiting = scope.spawn(move || other.wait_removed().timeout(PATIENCE).wait().unwrap());
        assert!(!waiting.is_finished(), "it is set");
        barrier.remove().wait().unwrap();
        waiting.join().expect("it was removed");
    });
}
