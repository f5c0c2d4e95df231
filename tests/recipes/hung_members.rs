//! Partitions with members that live and are not in a call of their shares.

use quorate::operate::partitions_status;
use quorate::recipes::{Lost, Partition, Partitions};
use quorate::testing::Cluster;
use quorate::{Coordinator, Error, Session};

use crate::partitions::{PATH, SECOND, Worker, own_session, partitions, settle};

fn cluster() -> Cluster {
    Cluster::with_settings(3, Coordinator::builder().session_timeout(4 * SECOND))
}

/// Without a bound for silence, so that only other members end a claim.
fn unbounded(session: &Session, number: usize) -> Partitions {
    partitions(session, number).with_max_silence(None)
}

/// How many seconds pass until these own so many partitions together.
fn seconds_until(cluster: &Cluster, all: usize, workers: &mut [&mut Worker]) -> u32 {
    for seconds in 0..1000 {
        settle(cluster, workers);
        if workers.iter().map(|worker| worker.numbers().len()).sum::<usize>() == all {
            return seconds;
        }
        cluster.advance(SECOND);
    }
    panic!("they never have all");
}

fn three_with_three_each(cluster: &Cluster, of: fn(&Session, usize) -> Partitions) -> [Worker; 3] {
    let join = |node, name| Worker::join(&of(&own_session(cluster, node), 9), name);
    let mut workers = [join(0, "oldest"), join(1, "one"), join(2, "two")];
    settle(cluster, &mut workers.each_mut());
    assert!(workers.iter().all(|worker| worker.numbers().len() == 3));
    workers
}

/// Only the oldest member made plans. When it was in no call, the partitions of members that had died were nobody's, for
/// ever.
#[test]
fn others_plan_when_the_oldest_member_hangs() {
    let cluster = cluster();
    let [oldest, mut one, two] = three_with_three_each(&cluster, unbounded);
    drop(two.share);
    // It plans three of them for the oldest one or for itself, and ends the claims of the oldest if that is needed.
    assert!(seconds_until(&cluster, 9, &mut [&mut one]) <= 25);
    // It has lost them, and knows.
    cluster.node(0).session().sync().wait().unwrap();
    let (_, late) = oldest.owned.into_iter().next().unwrap();
    let next = &one.owned[&late.number()];
    assert!(!late.is_held() && late.wait_lost().wait().unwrap() == Lost::Deleted);
    assert!(next.fencing_token() > late.fencing_token());
    assert!(matches!(late.commit("late").wait(), Err(Error::NoNode { .. })));
    assert!(matches!(late.hand_over("late").wait(), Err(Error::NoNode { .. })));
}

/// Whoever joined while the oldest member was in no call got nothing.
#[test]
fn whoever_joins_gets_an_equal_share_when_the_oldest_member_hangs() {
    for (of, limit) in [(unbounded as fn(&Session, usize) -> Partitions, 50), (partitions, 35)] {
        let cluster = cluster();
        let mut oldest = Worker::join(&of(&own_session(&cluster, 0), 9), "oldest");
        settle(&cluster, &mut [&mut oldest]);
        let join = |node, name| Worker::join(&of(&own_session(&cluster, node), 9), name);
        let (mut one, mut two) = (join(1, "one"), join(2, "two"));
        let seconds = seconds_until(&cluster, 9, &mut [&mut one, &mut two]);
        assert!(seconds <= limit, "{seconds} s");
        assert!(one.numbers().len().abs_diff(two.numbers().len()) <= 1);
    }
}

#[test]
fn a_member_that_is_silent_for_too_long_owns_nothing_until_it_goes_on() {
    let cluster = cluster();
    let [mut silent, mut one, mut two] = three_with_three_each(&cluster, partitions);
    silent.owned.values().for_each(|partition| partition.commit("so far").wait().unwrap());
    let had = silent.numbers();
    cluster.advance(25 * SECOND);
    settle(&cluster, &mut [&mut one, &mut two]);
    assert_eq!(silent.numbers(), had, "not yet");
    cluster.advance(5 * SECOND);
    assert_eq!(silent.numbers(), [] as [usize; 0], "it knows that before another one has them");
    settle(&cluster, &mut [&mut one, &mut two]);
    assert_eq!(one.numbers().len() + two.numbers().len(), 9);
    for number in had {
        let next = one.owned.get(&number).or(two.owned.get(&number)).unwrap();
        assert_eq!(next.position(), Some(&b"so far"[..]));
    }
    let status = partitions_status(&cluster.node(1).session(), PATH).wait().unwrap();
    let silent_ones = status.members.iter().filter(|member| member.silent_since.is_some());
    assert_eq!(silent_ones.map(|member| &*member.name).collect::<Vec<_>>(), ["oldest"]);
    assert!(status.partitions.iter().all(|it| it.owner == it.planned && it.owner.is_some()));
    // It goes on, and is one of three again.
    settle(&cluster, &mut [&mut silent, &mut one, &mut two]);
    assert!([&silent, &one, &two].iter().all(|worker| worker.numbers().len() == 3));
    let status = partitions_status(&cluster.node(1).session(), PATH).wait().unwrap();
    assert!(status.members.iter().all(|member| member.silent_since.is_none()));
}

#[test]
fn a_share_that_waits_in_a_call_is_not_silent() {
    let cluster = cluster();
    let mut share = partitions(&own_session(&cluster, 0), 1).join("me").wait().unwrap();
    let partition = share.take().wait().unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| share.take().timeout(200 * SECOND).wait());
        // In steps, so that the thread has its turns.
        while !waits.is_finished() {
            cluster.advance(SECOND);
            assert!(partition.is_held());
        }
        assert!(waits.join().unwrap().is_err());
    });
}

/// The drain limit is that of the owner, and nobody else kept it.
#[test]
fn others_enforce_the_drain_limit() {
    let cluster = cluster();
    let of = |node| unbounded(&own_session(&cluster, node), 2).with_drain_limit(10 * SECOND);
    let mut hung = Worker::join(&of(0), "hung");
    settle(&cluster, &mut [&mut hung]);
    let mut second = Worker::join(&of(1), "second");
    hung.obeys = false;
    settle(&cluster, &mut [&mut hung, &mut second]);
    let has = |worker: &Worker| worker.owned.values().filter(|it| it.is_asked()).count();
    assert_eq!((has(&hung), second.numbers().len()), (1, 0));
    let seconds = seconds_until(&cluster, 2, &mut [&mut second]);
    assert!((10..=25).contains(&seconds), "{seconds} s");
}

/// Many partitions are given up in several writes.
#[test]
fn a_silent_member_gives_up_many_partitions_and_the_bound_of_moves_holds() {
    let cluster = cluster();
    let of = |node| partitions(&own_session(&cluster, node), 300).with_moves_max(1).unwrap();
    let mut silent = Worker::join(&of(0), "silent");
    settle(&cluster, &mut [&mut silent]);
    let mut second = Worker::join(&of(1), "second");
    cluster.advance(30 * SECOND);
    settle(&cluster, &mut [&mut second]);
    assert_eq!(second.numbers().len(), 300);
    let former: Vec<&Partition> = silent.owned.values().collect();
    assert!(former.iter().all(|partition| !partition.is_held()));
}
