//! A rate that all instances share.

use std::time::Duration;

use quorate::quota::Quota;
use quorate::recipes::RateLimiter;
use quorate::testing::Cluster;
use quorate::{CreateMode, Error, Session};

const SECOND: Duration = Duration::from_secs(1);

/// The log's time, in milliseconds.
fn log_time(session: &Session) -> u64 {
    session.create_or_set("/now", b"", CreateMode::Persistent).unwrap().stat.mtime
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
            while limiter.try_acquire(1).unwrap() {
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
        assert!(limiter.try_acquire(1).unwrap());
    }
    let writes = session.exists("/limit").unwrap().unwrap().version;
    assert!(writes <= 100, "{writes} writes for 10,000 permits");
}

#[test]
fn permits_that_come_too_late_are_refused_at_once_and_cost_nothing() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let limiter = RateLimiter::new(&session, "/limit", 1, 10 * SECOND).unwrap();
    assert_eq!(limiter.acquire_timeout(1, SECOND), Ok(true));
    let before = session.get("/limit").unwrap();
    for _ in 0..3 {
        assert_eq!(limiter.acquire_timeout(1, SECOND), Ok(false));
        assert_eq!(limiter.try_acquire(1), Ok(false));
    }
    assert_eq!(session.get("/limit").unwrap(), before, "nothing was taken");
    cluster.advance(10 * SECOND);
    assert_eq!(limiter.try_acquire(1), Ok(true), "one in ten seconds");
    assert_eq!(limiter.try_acquire(1), Ok(false));
}

#[test]
fn whoever_waits_has_the_next_permits() {
    let cluster = Cluster::new(3);
    let limiter = |node: usize| {
        let limiter = RateLimiter::new(&cluster.node(node).session(), "/limit", 1, 2 * SECOND);
        limiter.unwrap()
    };
    let (first, second) = (limiter(0), limiter(1));
    assert_eq!(first.try_acquire(1), Ok(true));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| first.acquire_timeout(1, 60 * SECOND));
        let session = cluster.node(1).session();
        // It has reserved the next permit.
        while session.sync().is_err() || session.get("/limit").unwrap().1.version < 2 {
            std::thread::yield_now();
        }
        assert_eq!(second.try_acquire(1), Ok(false));
        cluster.advance(2 * SECOND);
        assert_eq!(second.try_acquire(1), Ok(false), "the next one is another's");
        cluster.advance(SECOND);
        assert_eq!(waiting.join().unwrap(), Ok(true));
        cluster.advance(2 * SECOND);
        assert_eq!(second.try_acquire(1), Ok(true));
    });
}

#[test]
fn clones_share_their_permits_and_a_lost_session_gets_no_more() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let limiter = RateLimiter::new(&session, "/limit", 2, SECOND).unwrap();
    let other = limiter.clone();
    assert!(limiter.try_acquire(1).unwrap() && other.try_acquire(1).unwrap());
    assert_eq!(limiter.try_acquire(1), Ok(false));
    session.close().unwrap();
    cluster.advance(10 * SECOND);
    assert!(matches!(other.try_acquire(1), Err(error) if error.is_session_lost()));
    let strange = RateLimiter::new(&cluster.node(0).session(), "limit", 2, SECOND);
    assert!(matches!(strange, Err(Error::InvalidPath { .. })));
}

#[test]
fn a_byte_quota_is_an_error_and_no_reason_to_wait() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    session.create("/limits", b"", CreateMode::Persistent).unwrap();
    session.set_quota("/limits", &Quota::new().bytes_hard(4)).unwrap();
    let limiter = RateLimiter::new(&session, "/limits/mails", 5, SECOND).unwrap();
    for _ in 0..2 {
        let refused = limiter.acquire(1);
        assert!(
            matches!(refused, Err(Error::QuotaExceeded { resource: "bytes", .. })),
            "{refused:?}"
        );
    }
}
