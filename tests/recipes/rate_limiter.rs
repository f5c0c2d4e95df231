//! A rate that all instances share.

use std::time::Duration;

use proptest::prelude::*;
use quorate::quota::Quota;
use quorate::recipes::{KeyedRateLimiter, RateLimiter};
use quorate::testing::Cluster;
use quorate::{CreateMode, Error, Session};

const SECOND: Duration = Duration::from_secs(1);

/// The log's time, in milliseconds.
fn log_time(session: &Session) -> u64 {
    session.create_or_set("/now", b"", CreateMode::Persistent).wait().unwrap().stat.mtime
}

#[test]
fn all_instances_together_stay_below_the_rate() {
    let cluster = Cluster::new(3);
    let limiters: Vec<RateLimiter> = (0..3)
        .map(|node| RateLimiter::new(&cluster.node(node).session(), "/deep/limit", 10, SECOND))
        .collect::<Result<_, _>>()
        .unwrap();
    let session = cluster.node(0).session();
    let start = log_time(&session);
    let mut used = 0;
    for round in 0..40 {
        for limiter in &limiters {
            while limiter.try_acquire(1).wait().unwrap() {
                used += 1;
            }
        }
        // The lead changes meanwhile, twice.
        if round % 15 == 10 {
            let leader = cluster.leader().unwrap();
            cluster.isolate(leader);
            cluster.advance(3 * SECOND);
            cluster.heal();
            cluster.advance(SECOND);
        }
        cluster.advance(SECOND / 20);
    }
    let passed = log_time(&session) - start;
    let most = 10 + passed / 100 + 1;
    assert!(used <= most, "{used} permits in {passed} ms are more than {most}");
    // What an instance has taken and not used is lost.
    assert!(used >= 10 + 10, "only {used} permits in {passed} ms");
}

#[test]
fn a_busy_instance_takes_blocks() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    let limiter = RateLimiter::new(&session, "/limit", 1_000_000, SECOND).unwrap();
    for _ in 0..10_000 {
        assert!(limiter.try_acquire(1).wait().unwrap());
    }
    let writes = session.exists("/limit").wait().unwrap().unwrap().version;
    assert!(writes <= 100, "{writes} writes for 10,000 permits");
}

#[test]
fn permits_that_come_too_late_are_refused_at_once_and_cost_nothing() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let limiter = RateLimiter::new(&session, "/limit", 1, 10 * SECOND).unwrap();
    assert_eq!(limiter.acquire_within(1, SECOND).wait(), Ok(true));
    let before = session.get("/limit").wait().unwrap();
    for _ in 0..3 {
        assert_eq!(limiter.acquire_within(1, SECOND).wait(), Ok(false));
        assert_eq!(limiter.try_acquire(1).wait(), Ok(false));
    }
    assert_eq!(session.get("/limit").wait().unwrap(), before, "nothing was taken");
    cluster.advance(10 * SECOND);
    assert_eq!(limiter.try_acquire(1).wait(), Ok(true), "one in ten seconds");
    assert_eq!(limiter.try_acquire(1).wait(), Ok(false));
}

#[test]
fn whoever_waits_has_the_next_permits() {
    let cluster = Cluster::new(3);
    let limiter = |node: usize| {
        let limiter = RateLimiter::new(&cluster.node(node).session(), "/limit", 1, 2 * SECOND);
        limiter.unwrap()
    };
    let (first, second) = (limiter(0), limiter(1));
    assert_eq!(first.try_acquire(1).wait(), Ok(true));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| first.acquire_within(1, 60 * SECOND).wait());
        let session = cluster.node(1).session();
        // It has reserved the next permit.
        while session.sync().wait().is_err() || session.get("/limit").wait().unwrap().1.version < 2
        {
            std::thread::yield_now();
        }
        assert_eq!(second.try_acquire(1).wait(), Ok(false));
        cluster.advance(2 * SECOND);
        assert_eq!(second.try_acquire(1).wait(), Ok(false), "the next one is another's");
        cluster.advance(SECOND);
        assert_eq!(waiting.join().unwrap(), Ok(true));
        cluster.advance(2 * SECOND);
        assert_eq!(second.try_acquire(1).wait(), Ok(true));
    });
}

#[test]
fn clones_share_their_permits_and_a_lost_session_gets_no_more() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let limiter = RateLimiter::new(&session, "/limit", 2, SECOND).unwrap();
    let other = limiter.clone();
    assert!(limiter.try_acquire(1).wait().unwrap() && other.try_acquire(1).wait().unwrap());
    assert_eq!(limiter.try_acquire(1).wait(), Ok(false));
    session.close().wait().unwrap();
    cluster.advance(10 * SECOND);
    assert!(matches!(other.try_acquire(1).wait(), Err(error) if error.is_session_lost()));
    let strange = RateLimiter::new(&cluster.node(0).session(), "limit", 2, SECOND);
    assert!(matches!(strange, Err(Error::InvalidPath { .. })));
}

#[test]
fn a_byte_quota_is_an_error_and_no_reason_to_wait() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    session.create("/limits", b"", CreateMode::Persistent).wait().unwrap();
    session.set_quota("/limits", &Quota::new().bytes_hard(4)).wait().unwrap();
    let limiter = RateLimiter::new(&session, "/limits/mails", 5, SECOND).unwrap();
    for _ in 0..2 {
        let refused = limiter.acquire(1).wait();
        assert!(
            matches!(refused, Err(Error::QuotaExceeded { resource: "bytes", .. })),
            "{refused:?}"
        );
    }
}

fn keyed(session: &Session, permits: u32) -> KeyedRateLimiter {
    RateLimiter::keyed(session, "/limits/users", permits, SECOND).unwrap()
}

/// A znode and a handle stayed for each key, for ever.
#[test]
fn keys_leave_nothing_behind() {
    let cluster = Cluster::new(3);
    let sessions = [0, 1].map(|node| cluster.node(node).session());
    let limiters = sessions.each_ref().map(|session| keyed(session, 2));
    for number in 0..100 {
        let key = format!("user {number}");
        assert_eq!(limiters[number % 2].try_acquire(&key, 2).wait(), Ok(true));
        assert_eq!(
            limiters[number % 2].try_acquire(&key, 1).wait(),
            Ok(false),
            "its burst is used"
        );
    }
    sessions[0].sync().wait().unwrap();
    assert_eq!(sessions[0].children("/limits/users").wait().unwrap().len(), 100);
    assert!(sessions[0].exists("/limits/users/user%207").wait().unwrap().is_some());
    // A second for the burst, two for what may be reserved, one until the leader looks.
    cluster.advance(5 * SECOND);
    sessions[0].sync().wait().unwrap();
    assert_eq!(sessions[0].children("/limits/users").wait().unwrap().len(), 0);
    for limiter in &limiters {
        assert_eq!(
            limiter.try_acquire("user 7", 1).wait(),
            Ok(true),
            "all of the burst is there again"
        );
    }
    assert_eq!(limiters[0].try_acquire("user 7", 1).wait(), Ok(false));
}

#[test]
fn a_key_costs_one_write_for_many_permits() {
    let cluster = Cluster::new(3);
    for node in [0, cluster.add_client()] {
        let session = cluster.node(node).session();
        let path = format!("/limits/{node}");
        let limiter = RateLimiter::keyed(&session, &path, 1_000_000, SECOND).unwrap();
        limiter.acquire("first", 1).wait().unwrap();
        let before = session.sync().wait().unwrap();
        limiter.acquire("second", 1000).wait().unwrap();
        assert_eq!(session.sync().wait().unwrap() - before, 1, "its znode and the permits");
        for _ in 0..10_000 {
            limiter.acquire("second", 1).wait().unwrap();
        }
        let writes = session.sync().wait().unwrap() - before;
        assert!(writes <= 100, "{writes} writes for 11,000 permits");
    }
}

#[test]
fn another_limit_of_the_path_is_refused() {
    let cluster = Cluster::new(2);
    let session = cluster.node(0).session();
    let limiter = keyed(&session, 10);
    limiter.acquire("a", 1).wait().unwrap();
    let refused = |result: Result<bool, Error>| {
        let Err(Error::InvalidSetting { reason, .. }) = result else {
            panic!("{result:?}");
        };
        assert!(reason.contains("100000000 ns, burst 10"), "{reason}");
        assert!(reason.contains("100000000 ns, burst 7"), "{reason}");
    };
    let other = keyed(&cluster.node(1).session(), 10).with_burst(7).unwrap();
    refused(other.try_acquire("b", 1).wait());
    let plain = RateLimiter::new(&session, "/limits/users", 10, SECOND).unwrap();
    assert!(matches!(plain.try_acquire(1).wait(), Err(Error::InvalidData { .. })));
    // A handle in use notices it, too.
    session.delete_recursive("/limits/users").wait().unwrap();
    assert_eq!(other.try_acquire("b", 1).wait(), Ok(true));
    session.sync().wait().unwrap();
    refused(limiter.try_acquire("a", 10).wait());
    let plain = RateLimiter::new(&session, "/limits/plain", 10, SECOND).unwrap();
    plain.acquire(1).wait().unwrap();
    let strange = RateLimiter::keyed(&session, "/limits/plain", 10, SECOND).unwrap();
    assert!(matches!(strange.try_acquire("a", 1).wait(), Err(Error::InvalidData { .. })));
}

#[test]
fn a_quota_bounds_the_keys() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let limiter = keyed(&session, 5);
    limiter.acquire("a", 1).wait().unwrap();
    session.set_quota("/limits/users", &Quota::new().znodes_hard(3)).wait().unwrap();
    limiter.acquire("b", 1).wait().unwrap();
    let refused = limiter.try_acquire("c", 1).wait();
    assert!(matches!(refused, Err(Error::QuotaExceeded { .. })), "{refused:?}");
    cluster.advance(10 * SECOND);
    assert_eq!(limiter.try_acquire("c", 1).wait(), Ok(true), "others have gone");
}

/// A use of a key: how much time passes before it, at which instance, which key, and how many permits.
type KeyUse = (u64, usize, usize, u32);

fn key_uses() -> impl Strategy<Value = Vec<KeyUse>> {
    let passes = prop_oneof![2 => Just(0), 2 => 1..800u64, 1 => 2_000..9_000u64];
    proptest::collection::vec((passes, 0..2usize, 0..3usize, 1..=4u32), 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// The model: in any span, each key has its burst, and what the rate allows in that span and two seconds more. After
    /// a time without a use, it has its whole burst again, whether its znode is still there or not.
    #[test]
    fn each_key_keeps_its_limit(uses in key_uses()) {
        const KEYS: [&str; 3] = ["a", "", "b/ä"];
        const BURST: u64 = 4;
        let cluster = Cluster::new(2);
        let sessions = [0, 1].map(|node| cluster.node(node).session());
        let limiters = sessions.each_ref().map(|session| keyed(session, 2).with_burst(4).unwrap());
        let mut used: [Vec<(u64, u64)>; 3] = Default::default();
        for (passes, instance, key, permits) in uses {
            cluster.advance(Duration::from_millis(passes));
            let at = log_time(&sessions[0]);
            let rested = used[key].last().is_none_or(|(last, _)| at - last > 5_000);
            let got = limiters[instance].try_acquire(KEYS[key], permits).wait().unwrap();
            prop_assert!(got || !rested, "{permits} of {BURST} are there");
            if got {
                used[key].push((at, u64::from(permits)));
            }
        }
        for used in used {
            for (first, (from, _)) in used.iter().enumerate() {
                let mut sum = 0;
                for (at, permits) in &used[first..] {
                    sum += permits;
                    let most = BURST + (at - from + 2_000) * 2 / 1000 + 1;
                    prop_assert!(sum <= most, "{sum} in {} ms, not {most}", at - from);
                }
            }
        }
    }
}
