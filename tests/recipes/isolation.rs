//! Recipes during partitions: never two holders, tokens only increase, nothing is done twice, and no call
//! waits for ever once the partition is healed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quorate::recipes::{
    Barrier, DoubleBarrier, LeaderSelector, MultiLock, Phase, Queue, ReentrantLock, TwoPhaseCommit,
    Vote,
};
use quorate::testing::Cluster;
use quorate::{Coordinator, CreateMode, Error, Result, Session};

const SECOND: Duration = Duration::from_secs(1);
/// Threads of a busy machine react within this real time.
const REACTS_WITHIN: Duration = Duration::from_secs(30);

/// A cluster of three with short session timeouts.
fn cluster() -> Cluster {
    Cluster::with_settings(3, Coordinator::builder().session_timeout(4 * SECOND))
}

/// Two threads on each node call `turn` with the node's current session, while one node after another is
/// isolated. Ends after this many turns, and then waits for all threads.
#[expect(clippy::disallowed_methods, reason = "threads take real time")]
fn storm(cluster: &Cluster, enough: u64, turn: impl Fn(&Session, usize) -> bool + Sync) {
    let (turns, done) = (AtomicU64::new(0), AtomicBool::new(false));
    let waits_for_ever = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (turns, done, turn) = (&turns, &done, &turn);
        let work = |thread: usize| {
            move || {
                while !done.load(Ordering::SeqCst) {
                    if turn(&cluster.node(thread % 3).session(), thread) {
                        turns.fetch_add(1, Ordering::SeqCst);
                    }
                }
            }
        };
        let threads: Vec<_> = (0..6).map(|thread| scope.spawn(work(thread))).collect();
        let has_failed = || threads.iter().any(|thread| thread.is_finished());
        let mut random = 11_u64;
        // This many steps without a turn, and so long that threads have run: none will get one any more.
        let (mut last, mut stalled, mut since) = (0, 0, Instant::now());
        while (stalled < 60 || since.elapsed() < REACTS_WITHIN) && last < enough && !has_failed() {
            let now = turns.load(Ordering::SeqCst);
            stalled += 1;
            if now > last {
                (last, stalled, since) = (now, 0, Instant::now());
            }
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            cluster.isolate(((random >> 33) % 3) as usize);
            for _ in 0..(random >> 50) % 70 {
                cluster.advance(SECOND / 10);
            }
            cluster.heal();
            cluster.advance(SECOND);
        }
        done.store(true, Ordering::SeqCst);
        // Far longer than any of them waits, and than any session lasts.
        let (mut steps, since) = (0, Instant::now());
        while steps < 3000 || since.elapsed() < REACTS_WITHIN {
            if threads.iter().all(|thread| thread.is_finished()) {
                return;
            }
            cluster.advance(SECOND / 10);
            steps += 1;
        }
        waits_for_ever.store(true, Ordering::SeqCst);
        // Stopping the nodes ends the threads, and with them the test.
        (0..cluster.nodes().len()).for_each(|node| cluster.stop(node));
    });
    assert!(!waits_for_ever.into_inner(), "a call waits for ever");
    assert!(turns.into_inner() >= enough, "there were too few turns");
}

/// The largest tokens that were held, by the name of what they protect.
#[derive(Default)]
struct Tokens(Mutex<BTreeMap<String, u64>>);

impl Tokens {
    /// Holds something for a while and returns whether it was held at all. While it is held, no other thread
    /// may have held it with a later token.
    fn hold(&self, tokens: &[(&str, u64)], is_held: impl Fn() -> bool) -> bool {
        let last = |path: &str| self.0.lock().unwrap().get(path).copied().unwrap_or(0);
        let before: Vec<u64> = tokens.iter().map(|(path, _)| last(path)).collect();
        if !is_held() {
            return false;
        }
        for ((path, token), before) in tokens.iter().zip(before) {
            assert!(*token > before, "{path}: {token} after {before}");
            let mut all = self.0.lock().unwrap();
            let last = all.entry((*path).to_owned()).or_default();
            *last = (*last).max(*token);
        }
        for _ in 0..50 {
            let now: Vec<u64> = tokens.iter().map(|(path, _)| last(path)).collect();
            if !is_held() {
                break;
            }
            for ((path, token), now) in tokens.iter().zip(now) {
                assert_eq!(*token, now, "two hold {path}");
            }
            std::thread::yield_now();
        }
        true
    }
}

#[test]
fn a_reentrant_lock_has_one_owner() {
    let (cluster, tokens) = (cluster(), Tokens::default());
    storm(&cluster, 60, |session, _| {
        let lock = ReentrantLock::new(session, "/lock").unwrap();
        let Ok(outer) = lock.acquire().timeout(10 * SECOND).wait() else { return false };
        let again = lock.clone().try_acquire().wait();
        if outer.is_held() {
            let inner = again.as_ref().unwrap().as_ref().expect("it is its own");
            assert_eq!(inner.fencing_token(), outer.fencing_token());
        }
        drop(again);
        tokens.hold(&[("/lock", outer.fencing_token())], || outer.is_held())
    });
}

#[test]
fn locks_that_are_taken_together_have_one_holder_each() {
    let (cluster, tokens) = (cluster(), Tokens::default());
    storm(&cluster, 60, |session, thread| {
        let paths = [["/a", "/b"], ["/c", "/b"], ["/a", "/c"]][thread % 3];
        let lock = MultiLock::new(session, paths).unwrap();
        let Ok(guard) = lock.acquire().timeout(20 * SECOND).wait() else { return false };
        let held: Vec<(&str, u64)> = guard
            .guards()
            .iter()
            .map(|guard| (&guard.path()[..2], guard.fencing_token()))
            .collect();
        tokens.hold(&held, || guard.is_held())
    });
}

#[test]
fn one_selector_runs_at_a_time() {
    let (cluster, tokens) = (cluster(), Tokens::default());
    storm(&cluster, 60, |session, thread| {
        let selector = LeaderSelector::new(session, "/leader", format!("{thread}")).unwrap();
        let led = selector.run(|leadership| {
            let token = leadership.fencing_token();
            let held = tokens.hold(&[("/leader", token)], || leadership.is_held());
            std::future::ready(ControlFlow::Break(held))
        });
        led.wait().is_ok_and(|led| led == ControlFlow::Break(true))
    });
}

#[test]
fn a_bounded_queue_is_never_too_full_and_loses_nothing() {
    #[derive(Default)]
    struct Items {
        put: BTreeSet<String>,
        done: BTreeMap<String, u32>,
        perhaps_done: BTreeSet<String>,
    }
    const MAX: usize = 3;
    let cluster = cluster();
    let (items, next) = (Mutex::new(Items::default()), AtomicU64::new(0));
    storm(&cluster, 80, |session, thread| {
        let queue = Queue::new(session, "/queue").unwrap().max(MAX);
        assert!(queue.len().wait().unwrap_or(0) <= MAX);
        if thread < 3 {
            let item = next.fetch_add(1, Ordering::SeqCst).to_string();
            let put = queue.put(item.as_str()).timeout(5 * SECOND);
            if let Ok(()) = put.wait() {
                items.lock().unwrap().put.insert(item);
            }
            return false;
        }
        let Ok(item) = queue.take().timeout(5 * SECOND).wait() else { return false };
        let data = String::from_utf8(item.data().to_vec()).unwrap();
        // Recorded beforehand: the write may succeed although its reply is lost.
        items.lock().unwrap().perhaps_done.insert(data.clone());
        let is_done = item.done().wait().is_ok();
        if is_done {
            *items.lock().unwrap().done.entry(data).or_default() += 1;
        }
        is_done
    });
    let items = items.into_inner().unwrap();
    let session = cluster.node(0).session();
    session.sync().wait().unwrap();
    let queue = Queue::new(&session, "/queue").unwrap();
    let mut left = BTreeSet::new();
    while let Some(data) = queue.try_pop().wait().unwrap() {
        assert!(left.insert(String::from_utf8(data).unwrap()), "an item is there twice");
    }
    for item in &items.put {
        let found = items.perhaps_done.contains(item) || left.contains(item);
        assert!(found, "{item} is lost");
    }
    for (item, times) in &items.done {
        assert_eq!(*times, 1, "{item}");
        assert!(!left.contains(item), "{item} was done, and is there");
    }
}

#[test]
fn a_sequential_znode_is_created_once_and_in_order() {
    let cluster = cluster();
    let (created, next) = (Mutex::new(BTreeMap::new()), AtomicU64::new(0));
    storm(&cluster, 200, |session, _| {
        let data = next.fetch_add(1, Ordering::SeqCst).to_string();
        let made = session.create_with_parents("/list/", &data, CreateMode::PersistentSequential);
        let made = made.wait();
        if let Ok(made) = &made {
            created.lock().unwrap().insert(data, made.path.clone());
        }
        made.is_ok()
    });
    let session = cluster.node(0).session();
    session.sync().wait().unwrap();
    let mut names = session.children("/list").wait().unwrap();
    names.sort();
    let znodes: Vec<_> = names
        .iter()
        .map(|name| format!("/list/{name}"))
        .map(|path| (session.get(&path).wait().unwrap(), path))
        .collect();
    assert!(znodes.is_sorted_by_key(|((_, stat), _)| stat.czxid));
    let found: BTreeMap<String, String> = znodes
        .iter()
        .map(|((data, _), path)| (String::from_utf8_lossy(data).into_owned(), path.clone()))
        .collect();
    assert_eq!(found.len(), znodes.len(), "a znode is there twice");
    for (data, path) in created.into_inner().unwrap() {
        assert_eq!(found.get(&data), Some(&path));
    }
}

#[test]
fn all_participants_learn_the_same_outcome_of_a_transaction() {
    let cluster = cluster();
    // The outcomes that threads have learned, and whether one has surely voted against it.
    let known: Mutex<BTreeMap<u64, (BTreeSet<String>, bool)>> = Mutex::default();
    let number = AtomicU64::new(0);
    storm(&cluster, 40, |session, thread| {
        // All threads take part in each transaction: they begin it, vote, and decide.
        let at = number.fetch_add(1, Ordering::SeqCst) / 6;
        let transaction = TwoPhaseCommit::new(session, &format!("/tx-{at}")).unwrap();
        let decided = (|| -> Result<Phase> {
            let _ = transaction.begin(&["a", "b"], b"").wait();
            if thread < 4 {
                let part = transaction.join(["a", "b"][thread % 2]).wait()?;
                let vote = match thread == 3 && at.is_multiple_of(3) {
                    true => Vote::No,
                    false => Vote::Yes,
                };
                part.vote(vote).wait()?;
                if vote == Vote::No {
                    known.lock().unwrap().entry(at).or_default().1 = true;
                }
            }
            match transaction.decide().timeout(5 * SECOND).wait() {
                Err(Error::NotInTime { .. }) => transaction.abort().wait(),
                decided => decided,
            }
        })();
        let mut known = known.lock().unwrap();
        if let Ok(phase) = &decided {
            known.entry(at).or_default().0.insert(format!("{phase:?}"));
        }
        decided.is_ok()
    });
    let session = cluster.node(1).session();
    session.sync().wait().unwrap();
    for (at, (phases, against)) in known.into_inner().unwrap() {
        assert!(phases.len() <= 1, "transaction {at}: {phases:?}");
        assert!(!against || !phases.contains("Committed"), "transaction {at}: a vote is lost");
        if let Some(phase) = phases.first() {
            let transaction = TwoPhaseCommit::new(&session, &format!("/tx-{at}")).unwrap();
            assert_eq!(
                format!("{:?}", transaction.decide().wait().unwrap()),
                *phase,
                "it is for good"
            );
        }
    }
}

#[test]
fn an_isolated_instance_passes_a_barrier_when_it_is_back_or_knows_that_it_cannot() {
    let cluster = cluster();
    for cut in [SECOND, 30 * SECOND] {
        let barriers: Vec<Barrier> = (0..3)
            .map(|node| Barrier::new(&cluster.node(node).session(), "/barrier").unwrap())
            .collect();
        barriers[0].set().wait().unwrap();
        std::thread::scope(|scope| {
            let wait = |node: usize| {
                let barrier = barriers[node].clone();
                scope.spawn(move || barrier.wait_removed().wait())
            };
            let (near, far) = (wait(1), wait(2));
            cluster.advance(SECOND);
            assert!(!near.is_finished() && !far.is_finished(), "it is set");
            cluster.isolate(2);
            barriers[0].remove().wait().unwrap();
            while !near.is_finished() {
                cluster.advance(SECOND / 100);
            }
            assert_eq!(near.join().unwrap(), Ok(()));
            assert!(!far.is_finished(), "it cannot know");
            cluster.advance(cut);
            cluster.heal();
            while !far.is_finished() {
                cluster.advance(SECOND / 100);
            }
            let passed = far.join().unwrap();
            match cut > 4 * SECOND {
                true => assert!(passed.unwrap_err().is_session_lost()),
                false => assert_eq!(passed, Ok(())),
            }
        });
    }
}

#[test]
fn a_double_barrier_waits_for_isolated_participants_and_not_for_lost_ones() {
    let cluster = cluster();
    let double =
        |node: usize| DoubleBarrier::new(&cluster.node(node).session(), "/double", 3).unwrap();
    for _ in 0..2 {
        // With new sessions where the former ones are over.
        let doubles: Vec<DoubleBarrier> = (0..3).map(double).collect();
        std::thread::scope(|scope| {
            let near: Vec<_> = (0..2)
                .map(|node| {
                    let double = &doubles[node];
                    scope.spawn(move || double.enter().wait())
                })
                .collect();
            cluster.advance(SECOND);
            cluster.isolate(2);
            let far = scope.spawn(|| doubles[2].enter().wait());
            cluster.advance(SECOND);
            assert!(!near.iter().any(|entering| entering.is_finished()), "one is missing");
            assert!(!far.is_finished(), "it reaches nobody");
            cluster.heal();
            while !far.is_finished() || near.iter().any(|entering| !entering.is_finished()) {
                cluster.advance(SECOND / 100);
            }
            let far = far.join().unwrap().unwrap();
            let near: Vec<_> = near.into_iter().map(|one| one.join().unwrap().unwrap()).collect();

            // One participant is lost inside: the others wait for it no longer than for its session.
            cluster.isolate(2);
            let leaving: Vec<_> =
                near.into_iter().map(|one| scope.spawn(move || one.leave().wait())).collect();
            cluster.advance(SECOND);
            assert!(!leaving.iter().any(|leaving| leaving.is_finished()), "one is inside");
            while leaving.iter().any(|leaving| !leaving.is_finished()) {
                cluster.advance(SECOND / 10);
            }
            for left in leaving {
                assert_eq!(left.join().unwrap(), Ok(()));
            }
            assert!(far.leave().wait().unwrap_err().is_session_lost());
            cluster.heal();
            cluster.advance(SECOND);
        });
    }
}
