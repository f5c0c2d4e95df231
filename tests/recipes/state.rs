//! Shared state: counters, ids, configuration, caches.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use quorate::WatcherType;
use quorate::recipes::{Cache, Change, Codec, Config, ConfigUpdate, Counter, IdGenerator, Raw};
use quorate::testing::Cluster;
use quorate::{Coordinator, CreateMode, Error, Session, Snapshot, Watch};

#[test]
fn additions_of_many_are_each_counted_once() {
    let cluster = Cluster::new(3);
    let leader_leaves = std::thread::scope(|scope| {
        for thread in 0..6 {
            let counter = Counter::new(&cluster.node(thread % 3).session(), "/deep/count").unwrap();
            scope.spawn(move || {
                let mut last = 0;
                for number in 1..=10 {
                    let added = counter.add(number).wait().unwrap();
                    assert!(
                        added >= last + number,
                        "it found a value from before its last addition"
                    );
                    last = added;
                }
            });
        }
        // A change of the leader loses and repeats no addition.
        let leader = cluster.leader().unwrap();
        cluster.isolate(leader);
        cluster.advance(Duration::from_secs(3));
        cluster.heal();
        leader
    });
    let session = cluster.node((leader_leaves + 1) % 3).session();
    session.sync().wait().unwrap();
    assert_eq!(Counter::new(&session, "/deep/count").unwrap().get().wait(), Ok(6 * 55));
}

#[test]
fn a_counter_is_set_compared_and_kept_in_range() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let counter = Counter::new(&session, "/count").unwrap();
    assert_eq!(counter.get().wait(), Ok(0));
    assert_eq!(counter.compare_and_set(1, 5).wait(), Ok(false));
    assert_eq!(counter.compare_and_set(0, 5).wait(), Ok(true));
    assert_eq!(counter.set(i64::MAX).wait(), Ok(5), "the value before");
    assert!(matches!(counter.add(1).wait(), Err(Error::InvalidData { .. })));
    assert_eq!(counter.get().wait(), Ok(i64::MAX), "nothing was added");
    session.set("/count", b"three").wait().unwrap();
    assert!(
        matches!(counter.get().wait(), Err(Error::InvalidData { path, .. }) if path == "/count")
    );
    assert!(matches!(counter.add(1).wait(), Err(Error::InvalidData { .. })));
    // With a chroot the same path is another counter.
    let below = session.chroot("/below").unwrap();
    session.create("/below", b"", CreateMode::Persistent).wait().unwrap();
    assert_eq!(Counter::new(&below, "/a/count").unwrap().add(2).wait(), Ok(2));
    assert!(session.exists("/below/a/count").wait().unwrap().is_some());
}

#[test]
fn a_counter_without_a_quorum_reports_an_unknown_outcome() {
    let cluster =
        Cluster::with_settings(3, Coordinator::builder().request_timeout(Duration::from_secs(2)));
    let session = cluster.node(0).session();
    let counter = Counter::new(&session, "/count").unwrap();
    counter.add(1).wait().unwrap();
    cluster.isolate(0);
    std::thread::scope(|scope| {
        let adding = scope.spawn(|| counter.add(1).wait());
        while !adding.is_finished() {
            cluster.advance(Duration::from_millis(100));
        }
        assert!(adding.join().unwrap().unwrap_err().is_outcome_unknown());
    });
    // It is one write: either it reached the leader or it did not.
    cluster.heal();
    cluster.advance(Duration::from_secs(10));
    let other = cluster.node(1).session();
    other.sync().wait().unwrap();
    let value = Counter::new(&other, "/count").unwrap().get().wait().unwrap();
    assert!((1..=2).contains(&value), "{value}");
}

#[test]
fn ids_are_given_once_and_a_block_costs_one_write() {
    let cluster = Cluster::new(3);
    let ids = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..6)
            .map(|thread| {
                let session = cluster.node(thread % 3).session();
                let ids = IdGenerator::new(&session, "/ids", 7).unwrap();
                let shared = ids.clone();
                scope.spawn(move || -> Vec<u64> {
                    let two = [&ids, &shared];
                    (0..50).map(|n| two[n % 2].next_id().wait().unwrap()).collect()
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<u64>>()
    });
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 300, "an id was given twice");
    let session = cluster.node(0).session();
    session.sync().wait().unwrap();
    // 50 ids take eight blocks of seven, and a clone takes from the same block.
    assert_eq!(session.get("/ids").wait().unwrap().1.version, 6 * 8 - 1);
    assert!(*ids.iter().max().unwrap() <= 6 * 8 * 7);
    // Without a quorum, the rest of a block is still available.
    let ids = IdGenerator::new(&session, "/ids", 3).unwrap();
    let first = ids.next_id().wait().unwrap();
    cluster.isolate(0);
    assert_eq!((ids.next_id().wait(), ids.next_id().wait()), (Ok(first + 1), Ok(first + 2)));
    assert!(IdGenerator::new(&session, "/ids", 0).is_err());
}

#[test]
fn updates_of_a_value_are_not_lost() {
    let cluster = Cluster::new(3);
    std::thread::scope(|scope| {
        for place in 0..3u32 {
            let config =
                Config::<Vec<u32>>::new(&cluster.node(place as usize).session(), "/a/b").unwrap();
            scope.spawn(move || {
                for number in 0..10 {
                    config
                        .update(|list| {
                            let mut list = list.unwrap_or_default();
                            list.push(10 * place + number);
                            list
                        })
                        .wait()
                        .unwrap();
                }
            });
        }
    });
    let session = cluster.node(0).session();
    session.sync().wait().unwrap();
    let config = Config::<Vec<u32>>::new(&session, "/a/b").unwrap();
    let mut all = config.get().wait().unwrap().unwrap().value;
    all.sort_unstable();
    assert_eq!(all, (0..30).collect::<Vec<_>>());
}

/// A version identifies a write: a value that was deleted and created again has another one, though
/// ZooKeeper's version is the same.
#[test]
fn a_value_created_again_does_not_match_the_version_that_was_read() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let config = Config::<Vec<u8>, Raw>::with_codec(&session, "/config").unwrap();
    let (old, new) = (b"old".to_vec(), b"new".to_vec());
    let first = config.compare_and_set(None, &old).wait().unwrap();
    assert!(matches!(config.compare_and_set(None, &new).wait(), Err(Error::NodeExists { .. })));
    session.delete("/config").wait().unwrap();
    let gone = config.compare_and_set(Some(first), &new).wait();
    assert!(matches!(gone, Err(Error::NoNode { .. })), "{gone:?}");
    let again = config.set(&old).wait().unwrap();
    let other = config.compare_and_set(Some(first), &new).wait();
    assert!(matches!(other, Err(Error::Unmet { .. })), "{other:?}");
    let last = config.compare_and_set(Some(again), &new).wait().unwrap();
    assert!(last > again && again > first);
}

#[test]
fn a_follower_receives_the_last_value_whatever_it_missed() {
    let cluster = Cluster::new(3);
    let config = Config::<u32>::new(&cluster.node(0).session(), "/config").unwrap();
    let follower = cluster.node(1).open_session().unwrap();
    let mut updates = Config::<u32>::new(&follower, "/config").unwrap().watch();
    assert_eq!(updates.recv().wait(), Ok(ConfigUpdate::Missing));
    let mut last = 0;
    for round in 0..3 {
        cluster.isolate(1);
        for number in 0..40 {
            config.set(&(100 * round + number)).wait().unwrap();
        }
        cluster.heal();
        loop {
            let ConfigUpdate::Value(value) = updates.recv().wait().unwrap() else { continue };
            assert!(value.version > last, "it went back");
            last = value.version;
            if value.value == 100 * round + 39 {
                break;
            }
        }
    }
    assert!(matches!(updates.recv().timeout(Duration::ZERO).wait(), Err(Error::NotInTime { .. })));
    cluster.node(0).session().delete("/config").wait().unwrap();
    assert_eq!(updates.recv().wait(), Ok(ConfigUpdate::Missing));
    let twice = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| updates.recv().wait());
        cluster.expire(&follower);
        waiting.join().unwrap()
    });
    assert!(twice.unwrap_err().is_session_lost());
}

/// A codec that fails to decode values with a leading question mark.
struct Strict;

impl Codec<String> for Strict {
    fn encode(value: &String) -> Result<Vec<u8>, String> {
        if value.is_empty() { Err("empty".to_owned()) } else { Ok(value.clone().into_bytes()) }
    }

    fn decode(data: &[u8]) -> Result<String, String> {
        if data.first() == Some(&b'?') {
            return Err("a question".to_owned());
        }
        String::from_utf8(data.to_vec()).map_err(|error| error.to_string())
    }
}

#[test]
fn a_value_that_cannot_be_decoded_is_reported_and_does_not_end_the_watch() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let config = Config::<String, Strict>::with_codec(&session, "/config").unwrap();
    assert!(matches!(config.set(&String::new()).wait(), Err(Error::InvalidData { .. })));
    assert_eq!(config.get().wait(), Ok(None));
    let mut updates = config.watch();
    assert_eq!(updates.try_recv().wait(), Ok(Some(ConfigUpdate::Missing)));
    let version =
        session.create("/config", b"?", CreateMode::Persistent).wait().unwrap().stat.mzxid;
    let reason = "a question".to_owned();
    assert_eq!(updates.recv().wait(), Ok(ConfigUpdate::Invalid { version, reason }));
    assert!(matches!(config.update(|_| "x".to_owned()).wait(), Err(Error::InvalidData { .. })));
    config.set(&"an answer".to_owned()).wait().unwrap();
    assert!(
        matches!(updates.recv().wait(), Ok(ConfigUpdate::Value(now)) if now.value == "an answer")
    );
}

#[test]
fn updates_continue_when_somebody_has_removed_their_watch() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let config = Config::<u32>::new(&session, "/config").unwrap();
    let mut updates = config.watch();
    assert_eq!(updates.recv().wait(), Ok(ConfigUpdate::Missing));
    // The first wait sets the watch.
    while session.remove_watches("/config", WatcherType::Any).wait().is_err() {
        assert!(matches!(
            updates.recv().timeout(Duration::from_millis(10)).wait(),
            Err(Error::NotInTime { .. })
        ));
    }
    std::thread::scope(|scope| {
        let received = scope.spawn(|| updates.recv().wait().unwrap());
        config.set(&7).wait().unwrap();
        assert!(matches!(received.join().unwrap(), ConfigUpdate::Value(now) if now.value == 7));
    });
}

type View = BTreeMap<String, (Vec<u8>, u64, u64)>;

fn view(snapshot: &Snapshot, path: &str) -> View {
    let Ok(walk) = snapshot.walk(path) else { return View::new() };
    walk.map(|(path, data, stat)| (path.to_owned(), (data.to_vec(), stat.czxid, stat.mzxid)))
        .collect()
}

/// Applies changes to a view; each of them must fit it.
fn follow(view: &mut View, changes: &[Change]) {
    let mut last = 0;
    for change in changes {
        assert!(change.zxid() >= last, "not in order: {changes:?}");
        last = change.zxid();
        let (path, before, after) = match change {
            Change::Added { path, new, .. } => (path, None, Some(new)),
            Change::Changed { path, old, new, .. } => (path, Some(old), Some(new)),
            Change::Removed { path, old, .. } => (path, Some(old), None),
            other => panic!("{other:?}"),
        };
        let entry = |entry: &quorate::recipes::Entry| {
            (entry.data.to_vec(), entry.stat.czxid, entry.stat.mzxid)
        };
        assert_eq!(view.remove(path), before.map(entry), "before {change:?}");
        if let Some(after) = after {
            view.insert(path.clone(), entry(after));
        }
    }
}

#[test]
fn a_cache_that_keeps_up_sees_every_write() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let mut cache = Cache::new(&session, "/c").wait().unwrap();
    let root = session.create("/c", b"", CreateMode::Persistent).wait().unwrap().stat.czxid;
    let changes = cache.recv().wait().unwrap();
    assert_eq!((changes.len(), changes[0].zxid()), (1, root));
    session.create("/cc", b"", CreateMode::Persistent).wait().unwrap();
    assert_eq!(cache.try_recv().wait(), Ok(Vec::new()), "beside it");
    // All changes of one write, in an order that can be applied.
    let mut followed = view(cache.view(), "/c");
    session
        .multi()
        .create("/c/a", b"1", CreateMode::Persistent)
        .create("/c/a/b", b"2", CreateMode::Persistent)
        .set("/c", b"3")
        .commit()
        .wait()
        .unwrap();
    let changes = cache.recv().wait().unwrap();
    let paths: Vec<&str> = changes.iter().map(Change::path).collect();
    assert_eq!(paths, ["/c", "/c/a", "/c/a/b"]);
    follow(&mut followed, &changes);
    session.delete_recursive("/c").wait().unwrap();
    session.create("/c", b"4", CreateMode::Persistent).wait().unwrap();
    let changes = cache.recv().wait().unwrap();
    let paths: Vec<&str> = changes.iter().map(Change::path).collect();
    assert_eq!(paths, ["/c/a/b", "/c/a", "/c", "/c"], "deleted, and created again");
    follow(&mut followed, &changes);
    assert_eq!(followed, view(cache.view(), "/c"));
}

/// More writes than a channel holds: the cache finds the changes that were left out.
#[test]
fn a_cache_is_right_after_a_gap() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    session.create("/c", b"", CreateMode::Persistent).wait().unwrap();
    for gone in ["/c/same", "/c/gone"] {
        session.create(gone, b"x", CreateMode::Persistent).wait().unwrap();
    }
    let mut cache = Cache::new(&session, "/c").wait().unwrap();
    let mut followed = view(cache.view(), "/c");
    let calls = &session;
    for n in 0..Watch::CAPACITY {
        let _created = calls.create(&format!("/c/{n}"), b"", CreateMode::Persistent);
    }
    // All of these are left out of the channel.
    let _deleted = calls.delete("/c/gone");
    let _deleted = calls.delete("/c/7");
    let _deleted = calls.delete("/c/same");
    calls.create("/c/same", b"x", CreateMode::Persistent).wait().unwrap();
    let changes = cache.recv().wait().unwrap();
    follow(&mut followed, &changes);
    while let Ok(more) = cache.try_recv().wait()
        && !more.is_empty()
    {
        follow(&mut followed, &more);
    }
    assert_eq!(followed, view(&session.snapshot().wait().unwrap(), "/c"));
    let same: Vec<bool> = changes
        .iter()
        .filter(|change| change.path() == "/c/same")
        .map(|change| matches!(change, Change::Removed { .. }))
        .collect();
    assert_eq!(same, [true, false], "it is another one, with the same version and data");
}

#[test]
fn a_cache_follows_through_partitions_with_writers_all_over() {
    let cluster = Cluster::new(3);
    let writers: Vec<Session> = (1..3).map(|place| cluster.node(place).session()).collect();
    writers[0].create("/c", b"", CreateMode::Persistent).wait().unwrap();
    let reader = cluster.node(0).session();
    reader.sync().wait().unwrap();
    let mut cache = Cache::new(&reader, "/c").wait().unwrap();
    let mut followed = view(cache.view(), "/c");
    std::thread::scope(|scope| {
        for (number, writer) in writers.iter().enumerate() {
            scope.spawn(move || {
                for n in 0..150u64 {
                    let path = format!("/c/{}", (n * 7 + number as u64) % 5);
                    let _may_fail = match n % 3 {
                        0 => writer.create(&path, b"", CreateMode::Persistent).wait().map(drop),
                        1 => writer.set(&path, n.to_string()).wait().map(drop),
                        _ => writer.delete(&path).wait(),
                    };
                }
                let end = format!("/c/end-{number}");
                writer.create(&end, b"", CreateMode::Persistent).wait().unwrap();
            });
        }
        let followed = &mut followed;
        let following = scope.spawn(move || {
            while !["/c/end-0", "/c/end-1"].iter().all(|end| followed.contains_key(*end)) {
                follow(followed, &cache.recv().wait().unwrap());
                assert_eq!(*followed, view(cache.view(), "/c"));
            }
        });
        for _ in 0..5 {
            cluster.isolate(0);
            cluster.advance(Duration::from_millis(300));
            cluster.heal();
            cluster.advance(Duration::from_millis(300));
        }
        following.join().unwrap();
    });
}
