//! Changes that recipes report on channels.

use std::time::Duration;

use crossbeam_channel::{Select, select};
use quorate::recipes::{Cache, Config, ConfigUpdate, Group, Instance, LeaderLatch, Registry};
use quorate::testing::Cluster;
use quorate::{CreateMode, Session, Watch};

const MOMENT: Duration = Duration::from_millis(10);

/// What an observer of all recipes has seen.
#[derive(Debug, Default, PartialEq)]
struct Known {
    leader: Option<String>,
    members: Vec<String>,
    value: Option<u64>,
    files: usize,
    instances: usize,
}

/// Reads each recipe that has a message, and no other, until `is_all`.
fn observe(session: &Session, is_all: impl Fn(&Known) -> bool) -> Known {
    let mut leaders = LeaderLatch::new(session, "/leader", "").unwrap().watch();
    let mut members = Group::new(session, "/group").unwrap().watch();
    let mut values = Config::<u64>::new(session, "/value").unwrap().watch();
    let mut cache = Cache::new(session, "/files").wait().unwrap();
    let mut instances = Registry::new(session, "/services").unwrap().watch("s").unwrap();
    let signals: [Watch; 5] = [
        leaders.signal().wait().unwrap(),
        members.signal().wait().unwrap(),
        values.signal().wait().unwrap(),
        cache.signal().wait().unwrap(),
        instances.signal().wait().unwrap(),
    ];
    let mut known = Known::default();
    let mut look = |at: usize, known: &mut Known| match at {
        0 => {
            while let Some(leader) = leaders.try_recv().wait().unwrap() {
                known.leader = leader.map(|leader| leader.name().into_owned());
            }
        }
        1 => {
            while let Some(members) = members.try_recv().wait().unwrap() {
                known.members = members.into_keys().collect();
            }
        }
        2 => {
            while let Some(update) = values.try_recv().wait().unwrap() {
                known.value = match update {
                    ConfigUpdate::Value(value) => Some(value.value),
                    _ => None,
                };
            }
        }
        3 => {
            cache.try_recv().wait().unwrap();
            known.files = cache.view().children("/files").map_or(0, |files| files.len());
        }
        _ => {
            while let Some(now) = instances.try_recv().wait().unwrap() {
                known.instances = now.len();
            }
        }
    };
    (0..signals.len()).for_each(|at| look(at, &mut known));
    let mut select = Select::new();
    for signal in &signals {
        select.recv(signal.events());
    }
    while !is_all(&known) {
        let ready = select.select();
        let at = ready.index();
        ready.recv(signals[at].events()).expect("the session lives");
        look(at, &mut known);
    }
    known
}

#[test]
fn each_change_gives_a_message_and_the_last_state_is_seen() {
    let cluster = Cluster::new(3);
    let (writer, observer) = (cluster.node(0).session(), cluster.node(2).session());
    let value = Config::<u64>::new(&writer, "/value").unwrap();
    let (group, registry) =
        (Group::new(&writer, "/group").unwrap(), Registry::new(&writer, "/services").unwrap());
    std::thread::scope(|scope| {
        let observing = scope.spawn(|| {
            let is_all = |known: &Known| {
                known.value == Some(100)
                    && known.leader.as_deref() == Some("second")
                    && known.members == ["me"]
                    && known.files == 200
                    && known.instances == 1
            };
            observe(&observer, is_all)
        });
        writer.create("/files", b"", CreateMode::Persistent).wait().unwrap();
        let first =
            LeaderLatch::new(&writer, "/leader", "first").unwrap().campaign().wait().unwrap();
        let _registered = registry.register("s", &Instance::new("one", "host", 1)).wait().unwrap();
        for n in 0..200 {
            writer.create(&format!("/files/{n}"), b"", CreateMode::Persistent).wait().unwrap();
            if n == 50 {
                // Changes during the isolation arrive all at once later, and none may be missed.
                cluster.isolate(2);
            }
            drop(group.join("you", b"").wait().unwrap());
            value.set(&(n / 2)).wait().unwrap();
        }
        first.release().wait().unwrap();
        let _second =
            LeaderLatch::new(&writer, "/leader", "second").unwrap().campaign().wait().unwrap();
        let _me = group.join("me", b"").wait().unwrap();
        value.set(&100).wait().unwrap();
        cluster.heal();
        while !observing.is_finished() {
            cluster.advance(MOMENT);
        }
        let known = observing.join().unwrap();
        assert_eq!((known.files, known.value), (200, Some(100)));
    });
}

#[test]
fn a_reader_that_looks_late_needs_one_message() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    session.create("/files", b"", CreateMode::Persistent).wait().unwrap();
    let mut cache = Cache::new(&session, "/files").wait().unwrap();
    let signal = cache.signal().wait().unwrap();
    let count = Watch::CAPACITY + 10;
    for n in 0..count {
        session.create(&format!("/files/{n}"), b"", CreateMode::Persistent).wait().unwrap();
    }
    signal.events().recv().unwrap();
    assert_eq!(cache.try_recv().wait().unwrap().len(), count);
    // The remaining messages are of changes that were already read.
    for _ in signal.events().try_iter() {
        assert!(cache.try_recv().wait().unwrap().is_empty());
    }
    session.set("/files/0", b"1").wait().unwrap();
    signal.events().recv().unwrap();
    assert_eq!(cache.try_recv().wait().unwrap().len(), 1);
}

#[test]
fn the_channel_closes_with_the_session_and_the_error_is_session_lost() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    let mut leaders = LeaderLatch::new(&session, "/leader", "").unwrap().watch();
    let mut members = Group::new(&session, "/group").unwrap().watch();
    let mut values = Config::<u64>::new(&session, "/value").unwrap().watch();
    let signal = leaders.signal().wait().unwrap();
    assert_eq!(leaders.try_recv().wait().unwrap(), Some(None));
    assert_eq!(leaders.try_recv().wait().unwrap(), None);
    cluster.expire(&session);
    select! {
        recv(signal.events()) -> message => assert!(message.is_err(), "nothing has changed"),
        default(Duration::from_secs(60)) => panic!("no message about the session's end"),
    }
    assert!(leaders.try_recv().wait().unwrap_err().is_session_lost());
    assert!(members.try_recv().wait().unwrap_err().is_session_lost());
    assert!(values.try_recv().wait().unwrap_err().is_session_lost());
}
