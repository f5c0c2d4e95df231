//! Partitions: work that is shared out over the live members.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use quorate::recipes::{Lost, Partition, PartitionMember, Partitions, Share};
use quorate::testing::Cluster;
use quorate::{Coordinator, CreateMode, Error, Session, SessionState};

pub(crate) const STEP: Duration = Duration::from_millis(10);
pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const PATH: &str = "/deep/shards";

/// A member, and the partitions that it owns.
pub(crate) struct Worker {
    pub(crate) share: Share,
    pub(crate) owned: BTreeMap<usize, Partition>,
    /// Whether it hands over when it is asked.
    pub(crate) obeys: bool,
    error: Option<Error>,
}

impl Worker {
    pub(crate) fn join(partitions: &Partitions, member: impl Into<PartitionMember>) -> Worker {
        let share = partitions.join(member).wait().unwrap();
        Worker { share, owned: BTreeMap::new(), obeys: true, error: None }
    }

    /// Takes all that is there now. Each future is dropped after one poll, which loses nothing.
    pub(crate) fn turn(&mut self) {
        loop {
            let polled = {
                let taking = pin!(self.share.take());
                taking.poll(&mut Context::from_waker(Waker::noop()))
            };
            match polled {
                Poll::Ready(Ok(partition)) => {
                    let former = self.owned.insert(partition.number(), partition);
                    assert!(former.is_none_or(|former| !former.is_held()), "it came twice");
                }
                Poll::Ready(Err(error)) => {
                    self.error = Some(error);
                    return;
                }
                Poll::Pending => break,
            }
        }
        if self.obeys {
            let asked: Vec<usize> =
                self.owned.values().filter(|it| it.is_asked()).map(|it| it.number()).collect();
            for number in asked {
                let partition = self.owned.remove(&number).unwrap();
                let position = format!("{} had {number}", self.share.member());
                let mut handing = Box::pin(partition.hand_over(position));
                let _ = handing.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            }
        }
    }

    pub(crate) fn numbers(&self) -> Vec<usize> {
        let held = self.owned.iter().filter(|(_, partition)| partition.is_held());
        held.map(|(number, _)| *number).collect()
    }
}

/// Lets all go on until nothing has changed for a while. Nobody ever owns what another one owns.
pub(crate) fn settle(cluster: &Cluster, workers: &mut [&mut Worker]) {
    let (mut before, mut same) = (Vec::new(), 0);
    for _ in 0..1000 {
        workers.iter_mut().for_each(|worker| worker.turn());
        let now: Vec<Vec<usize>> = workers.iter().map(|worker| worker.numbers()).collect();
        let all: Vec<usize> = now.iter().flatten().copied().collect();
        assert_eq!(all.len(), all.iter().collect::<BTreeSet<_>>().len(), "two own one: {now:?}");
        same = if now == before { same + 1 } else { 0 };
        if same == 20 {
            return;
        }
        before = now;
        cluster.advance(STEP);
    }
    panic!("it does not come to rest");
}

pub(crate) fn partitions(session: &Session, number: usize) -> Partitions {
    Partitions::new(session, PATH, number).unwrap()
}

pub(crate) fn own_session(cluster: &Cluster, node: usize) -> Session {
    cluster.node(node).open_session().unwrap()
}

fn counts(workers: &[&mut Worker]) -> Vec<usize> {
    workers.iter().map(|worker| worker.numbers().len()).collect()
}

#[test]
fn whoever_joins_gets_an_equal_share_with_its_positions() {
    let cluster = Cluster::new(3);
    let of = |node| partitions(&own_session(&cluster, node), 12);
    let mut first = Worker::join(&of(0), "first");
    settle(&cluster, &mut [&mut first]);
    assert_eq!(first.numbers(), (0..12).collect::<Vec<_>>());
    assert!(first.owned.values().all(|partition| partition.position().is_none()));
    let (mut second, mut third) = (Worker::join(&of(1), "second"), Worker::join(&of(2), "third"));
    let all = &mut [&mut first, &mut second, &mut third];
    settle(&cluster, all);
    assert_eq!(counts(all), [4, 4, 4]);
    for worker in &all[1..] {
        for (number, partition) in &worker.owned {
            let position = String::from_utf8(partition.position().unwrap().to_vec()).unwrap();
            assert!(position.ends_with(&format!(" had {number}")), "{position}");
        }
    }
    // Every instance knows the owner of every key.
    for node in 0..3 {
        let of = of(node);
        of.plan().wait().unwrap();
        for key in ["a", "b", "c", "d", "e"] {
            let number = of.number_of(key).unwrap();
            let owner = all.iter().find(|worker| worker.owned.contains_key(&number)).unwrap();
            assert_eq!(of.owner_of(key).wait().unwrap().as_deref(), Some(owner.share.member()));
        }
    }
    let tokens: BTreeSet<u64> = all[0].owned.values().map(|it| it.fencing_token()).collect();
    assert_eq!(tokens.len(), 1, "one write for the first ones");
}

#[test]
fn whoever_leaves_hands_over_and_waits_for_the_successors() {
    let cluster = Cluster::new(3);
    let of = |node| partitions(&own_session(&cluster, node), 6);
    // The oldest one, which makes the plans, leaves.
    let mut first = Worker::join(&of(0), "first");
    settle(&cluster, &mut [&mut first]);
    let mut second = Worker::join(&of(1), "second");
    settle(&cluster, &mut [&mut first, &mut second]);
    let Worker { share, owned, .. } = first;
    let mut leaving = Box::pin(share.leave());
    let mut task = Context::from_waker(Waker::noop());
    let mut owned: Vec<Partition> = owned.into_values().collect();
    let mut left = false;
    for _ in 0..200 {
        left |= !left && leaving.as_mut().poll(&mut task).is_ready();
        if let Some(at) = owned.iter().position(Partition::is_asked) {
            assert!(!left, "it waits for the hand-over");
            owned.swap_remove(at).hand_over("so far").wait().unwrap();
        }
        second.turn();
        cluster.advance(STEP);
    }
    assert!(left && owned.is_empty());
    assert_eq!(second.numbers(), (0..6).collect::<Vec<_>>());
    let with = second.owned.values().filter(|it| it.position() == Some(b"so far"));
    assert_eq!(with.count(), 3);
    assert_eq!(of(2).members().wait().unwrap(), [PartitionMember::new("second")]);
    // The last one leaves nobody behind, and waits for nobody.
    let Worker { share, owned, .. } = second;
    drop(owned);
    share.leave().wait().unwrap();
    assert_eq!(of(2).members().wait().unwrap(), []);
    assert_eq!(of(2).owner_of("a").wait().unwrap(), None);
}

#[test]
fn the_partitions_of_a_lost_member_are_taken_at_once_with_what_it_has_committed() {
    let cluster = Cluster::with_settings(3, Coordinator::builder().session_timeout(4 * SECOND));
    let session = own_session(&cluster, 0);
    let mut lost = Worker::join(&partitions(&session, 6), "lost");
    settle(&cluster, &mut [&mut lost]);
    let mut other = Worker::join(&partitions(&own_session(&cluster, 1), 6), "other");
    settle(&cluster, &mut [&mut lost, &mut other]);
    for partition in lost.owned.values() {
        partition.commit(b"1").wait().unwrap();
        partition.commit(format!("at {}", partition.number())).wait().unwrap();
    }
    let had = lost.numbers();
    cluster.isolate(0);
    cluster.advance(5 * SECOND);
    assert_eq!(lost.numbers(), [] as [usize; 0], "it knows that before another one has them");
    settle(&cluster, &mut [&mut other]);
    assert_eq!(other.numbers(), (0..6).collect::<Vec<_>>());
    for number in had {
        let expected = format!("at {number}");
        assert_eq!(other.owned[&number].position(), Some(expected.as_bytes()));
    }
    cluster.heal();
    cluster.advance(5 * SECOND);
    let (number, partition) = lost.owned.pop_first().unwrap();
    assert_eq!(partition.wait_lost().wait().unwrap(), Lost::SessionOver);
    assert!(partition.commit("too late").wait().is_err());
    assert!(partition.hand_over("too late").wait().is_err());
    lost.turn();
    assert!(lost.error.is_some_and(|error| error.is_session_lost()));
    let stored =
        own_session(&cluster, 2).get(&format!("{PATH}/positions/{number}")).wait().unwrap().0;
    assert_eq!(*stored, *format!("at {number}").as_bytes());
}

#[test]
fn partitions_wait_for_a_member_that_is_started_again_within_the_grace() {
    let cluster = Cluster::with_settings(3, Coordinator::builder().session_timeout(4 * SECOND));
    let of = |session: &Session| partitions(session, 9).with_grace(20 * SECOND);
    let session = own_session(&cluster, 2);
    let mut one = Worker::join(&of(&own_session(&cluster, 0)), "one");
    let mut other = Worker::join(&of(&own_session(&cluster, 1)), "other");
    let mut again = Worker::join(&of(&session), "again");
    settle(&cluster, &mut [&mut one, &mut other, &mut again]);
    let had = again.numbers();
    again.owned.values().for_each(|partition| partition.commit("so far").wait().unwrap());
    // The others are called all the time. Each time that they come to rest takes a fraction of a second.
    let wait = |one: &mut Worker, other: &mut Worker, seconds: u32| {
        for _ in 0..seconds {
            cluster.advance(SECOND / 2);
            settle(&cluster, &mut [one, other]);
        }
    };
    cluster.expire(&session);
    wait(&mut one, &mut other, 15);
    assert_eq!(counts(&[&mut one, &mut other]), [3, 3], "they wait");
    let session = own_session(&cluster, 2);
    let mut again = Worker::join(&of(&session), "again");
    settle(&cluster, &mut [&mut one, &mut other, &mut again]);
    assert_eq!(again.numbers(), had);
    assert!(again.owned.values().all(|partition| partition.position() == Some(b"so far")));
    // It does not come back. Until that is known, whoever joins gets its part of the rest.
    drop(again);
    let mut new = Worker::join(&of(&own_session(&cluster, 2)), "new");
    settle(&cluster, &mut [&mut one, &mut other, &mut new]);
    assert_eq!(counts(&[&mut one, &mut other, &mut new]), [2, 2, 2]);
    cluster.advance(20 * SECOND);
    settle(&cluster, &mut [&mut one, &mut other, &mut new]);
    assert_eq!(counts(&[&mut one, &mut other, &mut new]), [3, 3, 3]);
}

#[test]
fn no_more_partitions_move_at_a_time_than_may() {
    let cluster = Cluster::new(3);
    let of = |node| partitions(&own_session(&cluster, node), 20).with_moves_max(3).unwrap();
    let mut first = Worker::join(&of(0), "first");
    first.obeys = false;
    settle(&cluster, &mut [&mut first]);
    assert_eq!(first.numbers().len(), 20, "the partitions of nobody are no moves");
    let mut second = Worker::join(&of(1), "second");
    for handed in 0..10 {
        settle(&cluster, &mut [&mut first, &mut second]);
        let asked = |worker: &Worker| worker.owned.values().filter(|it| it.is_asked()).count();
        assert!((1..=3).contains(&asked(&first)), "{} are asked", asked(&first));
        assert_eq!(second.numbers().len(), handed);
        let next = first.owned.values().find(|it| it.is_asked()).unwrap().number();
        first.owned.remove(&next).unwrap().hand_over("").wait().unwrap();
    }
    settle(&cluster, &mut [&mut first, &mut second]);
    assert_eq!(counts(&[&mut first, &mut second]), [10, 10]);
    assert!(first.owned.values().all(|it| !it.is_asked()));
}

#[test]
fn who_does_not_hand_over_in_time_loses_the_partition() {
    let cluster = Cluster::new(3);
    let of = |node| partitions(&own_session(&cluster, node), 2).with_drain_limit(5 * SECOND);
    let mut slow = Worker::join(&of(0), "slow");
    slow.obeys = false;
    settle(&cluster, &mut [&mut slow]);
    let mut second = Worker::join(&of(1), "second");
    settle(&cluster, &mut [&mut slow, &mut second]);
    let asked: Vec<usize> =
        slow.owned.values().filter(|it| it.is_asked()).map(|it| it.number()).collect();
    assert_eq!((asked.len(), slow.numbers().len(), second.numbers().len()), (1, 2, 0));
    slow.owned[&asked[0]].commit("a part of it").wait().unwrap();
    cluster.advance(6 * SECOND);
    settle(&cluster, &mut [&mut slow, &mut second]);
    assert_eq!((slow.numbers().len(), second.numbers()), (1, asked.clone()));
    assert_eq!(second.owned[&asked[0]].position(), Some(&b"a part of it"[..]));
    let late = slow.owned.remove(&asked[0]).unwrap();
    assert!(matches!(late.commit("more").wait(), Err(Error::NoNode { .. })));
    assert!(matches!(late.hand_over("more").wait(), Err(Error::NoNode { .. })));
}

#[test]
fn a_partition_that_is_given_up_without_need_comes_again() {
    let cluster = Cluster::new(1);
    let partitions = partitions(&cluster.node(0).session(), 1);
    let mut share = partitions.join("me").wait().unwrap();
    let partition = share.take().wait().unwrap();
    let first = partition.fencing_token();
    assert!(matches!(share.take().timeout(STEP).wait(), Err(Error::NotInTime { .. })));
    drop(partition);
    let partition = share.take().wait().unwrap();
    assert!(partition.fencing_token() > first);
    partition.release().wait().unwrap();
    let partition = share.take().wait().unwrap();
    // Somebody takes it away by hand.
    cluster.node(0).session().delete(partition.path()).wait().unwrap();
    assert!(!partition.is_held());
    assert_eq!(partition.wait_asked().wait(), Ok(()));
    assert!(matches!(partition.hand_over("x").wait(), Err(Error::NoNode { .. })));
    assert_eq!(share.take().wait().unwrap().position(), None);
}

#[test]
fn a_position_that_is_too_large_is_refused_alone() {
    let cluster = Cluster::new(1);
    let mut share = partitions(&cluster.node(0).session(), 3).join("me").wait().unwrap();
    let owned: Vec<Partition> = (0..3).map(|_| share.take().wait().unwrap()).collect();
    let large = vec![0; 2 << 20];
    std::thread::scope(|scope| {
        let committing: Vec<_> = owned
            .iter()
            .map(|partition| {
                let position = if partition.number() == 1 { &large[..] } else { b"fine" };
                scope.spawn(move || partition.commit(position).wait())
            })
            .collect();
        let results = committing.into_iter().map(|thread| thread.join().unwrap().is_ok());
        assert_eq!(results.collect::<Vec<_>>(), [true, false, true]);
    });
    let [_, partition, _] = <[Partition; 3]>::try_from(owned).unwrap();
    assert!(matches!(partition.hand_over(&large).wait(), Err(Error::TooLarge { .. })));
    let again = std::iter::repeat_with(|| share.take().wait().unwrap()).find(|it| it.number() == 1);
    assert_eq!(again.unwrap().position(), None);
}

#[test]
fn weights_and_zones_count() {
    let cluster = Cluster::new(3);
    let join = |node, name: &str, weight, zone| {
        let partitions = partitions(&own_session(&cluster, node), 10);
        Worker::join(&partitions, PartitionMember::new(name).weight(weight).zone(zone))
    };
    let mut standby = join(0, "standby", 0, "eu");
    let (mut large, mut small) = (join(1, "large", 4, "eu"), join(2, "small", 1, "us"));
    settle(&cluster, &mut [&mut standby, &mut large, &mut small]);
    let all = &mut [&mut standby, &mut large, &mut small];
    assert_eq!(counts(all), [0, 8, 2]);
    let of_small = small.numbers();
    let mut other = join(0, "other", 4, "us");
    settle(&cluster, &mut [&mut standby, &mut large, &mut small, &mut other]);
    assert_eq!(counts(&[&mut large, &mut small, &mut other]), [5, 1, 4]);
    // It was of zone us, and stays there.
    let stays = of_small.iter().filter(|number| !small.numbers().contains(number));
    assert!(stays.into_iter().all(|number| other.numbers().contains(number)));
}

#[test]
fn named_partitions_are_owned_by_their_names() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let tenants = Partitions::named(&session, "/tenants", ["c", "a", "b", "a"]).unwrap();
    let mut share = tenants.join("me").wait().unwrap();
    let owned: Vec<Partition> = (0..3).map(|_| share.take().wait().unwrap()).collect();
    let names: BTreeSet<&str> = owned.iter().map(Partition::name).collect();
    assert_eq!(names, BTreeSet::from(["a", "b", "c"]));
    assert_eq!(tenants.owner_of("a").wait().unwrap().as_deref(), Some("me"));
    assert_eq!(tenants.owner_of("unknown").wait().unwrap(), None);
    assert!(session.exists("/tenants/owners/a").wait().unwrap().is_some());
}

#[test]
fn who_comes_with_other_settings_is_refused() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let _share = partitions(&session, 4).join("me").wait().unwrap();
    let others = [
        partitions(&session, 5),
        partitions(&session, 4).with_moves_max(7).unwrap(),
        Partitions::named(&session, PATH, ["a"]).unwrap(),
    ];
    for other in others {
        let Err(Error::InvalidSetting { setting, reason }) = other.join("other").wait() else {
            panic!("{other:?} was let in")
        };
        assert_eq!(setting, "partitions");
        assert!(reason.contains("\"moves 100, partitions 4\""), "{reason}");
    }
    assert!(partitions(&session, 4).with_moves_max(0).is_err());
    // A znode that is there already gets the settings; other data stay as they are.
    session.create("/empty", b"", CreateMode::Persistent).wait().unwrap();
    session.create("/full", b"else", CreateMode::Persistent).wait().unwrap();
    assert!(Partitions::new(&session, "/empty", 4).unwrap().join("me").wait().is_ok());
    let full = Partitions::new(&session, "/full", 4).unwrap().join("me").wait();
    assert!(matches!(full, Err(Error::InvalidSetting { .. })));
    assert_eq!(&session.get("/full").wait().unwrap().0[..], b"else");
}

#[test]
fn a_damaged_plan_is_reported_and_a_share_goes_on_once_it_is_repaired() {
    let cluster = Cluster::new(1);
    let session = cluster.node(0).session();
    let partitions = partitions(&session, 2);
    let mut share = partitions.join("me").wait().unwrap();
    let _owned = [share.take().wait().unwrap(), share.take().wait().unwrap()];
    let plan = format!("{PATH}/plan");
    let whole = session.get(&plan).wait().unwrap().0;
    session.set(&plan, b"abc").wait().unwrap();
    assert!(matches!(share.take().wait(), Err(Error::InvalidData { .. })));
    assert!(matches!(partitions.plan().wait(), Err(Error::InvalidData { .. })));
    session.set(&plan, whole).wait().unwrap();
    assert!(share.take().timeout(STEP).wait().is_err());
    // A share whose member's znode was deleted ends.
    session.delete(&format!("{PATH}/members/me")).wait().unwrap();
    assert!(matches!(share.take().wait(), Err(Error::NoNode { .. })));
}

/// Writes are what a change of the members costs. There are as many zxids as writes.
#[test]
fn a_change_of_the_members_costs_few_writes() {
    const PARTITIONS: usize = 1000;
    const MEMBERS: usize = 20;
    let cluster = Cluster::new(3);
    let join = |number: usize| {
        let partitions = partitions(&own_session(&cluster, number % 3), PARTITIONS);
        Worker::join(&partitions, format!("member-{number}"))
    };
    let session = own_session(&cluster, 0);
    let mut workers: Vec<Worker> = (0..MEMBERS).map(join).collect();
    let settled = |workers: &mut Vec<Worker>| {
        let before = session.sync().wait().unwrap();
        settle(&cluster, &mut workers.iter_mut().collect::<Vec<_>>());
        session.sync().wait().unwrap() - before
    };
    let (plans, claims) = (MEMBERS as u64, MEMBERS as u64);
    let start = settled(&mut workers);
    assert!(start <= plans + 4 * claims, "{start} writes to start");

    // A join: a member, a plan, a hand-over of each of the others (of two partitions at most together), and its claims.
    let before = session.sync().wait().unwrap();
    workers.push(join(MEMBERS));
    let joined = session.sync().wait().unwrap() - before + settled(&mut workers);
    assert!(joined <= 2 + 3 * MEMBERS as u64 + 30, "{joined} writes to join");

    // A loss: the end of the session, a plan, and a claim of each of the others.
    let before = session.sync().wait().unwrap();
    drop(workers.pop());
    cluster.advance(STEP);
    let lost = session.sync().wait().unwrap() - before + settled(&mut workers);
    assert!(lost <= 2 * MEMBERS as u64 + 10, "{lost} writes for a loss");
    println!("start {start}, join {joined}, loss {lost}");
    assert!(workers.iter().all(|worker| worker.numbers().len() == PARTITIONS / MEMBERS));
}

fn poll<T>(future: &mut Pin<Box<impl Future<Output = T>>>) -> Poll<T> {
    future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

/// When the node stopped, each batch of those that waited was refused within the call of the one before, which filled
/// the stack.
#[test]
fn many_waiting_positions_fail_when_the_session_ends_or_the_node_stops() {
    const WAITING: usize = 200_000;
    for ends in [false, true] {
        let cluster = Cluster::new(3);
        let session = own_session(&cluster, 0);
        let mut share = partitions(&session, 1).join("me").wait().unwrap();
        let partition = share.take().wait().unwrap();
        cluster.isolate(0);
        let commit = |number: usize| Box::pin(partition.commit(number.to_string()));
        let mut commits: Vec<_> = (0..WAITING).map(commit).collect();
        assert!(commits.iter_mut().all(|commit| poll(commit).is_pending()));
        if ends {
            cluster.advance(60 * SECOND);
            assert_eq!(session.state(), SessionState::Expired);
            commits.push(commit(WAITING));
        }
        let before_stop: Vec<_> = commits.iter_mut().map(poll).collect();
        cluster.stop(0);
        for (place, (commit, before)) in commits.iter_mut().zip(before_stop).enumerate() {
            // The first one was sent, and may be stored. The others never will be.
            if ends && place > 0 {
                assert!(
                    matches!(before, Poll::Ready(Err(Error::SessionExpired { .. }))),
                    "{before:?}"
                );
            } else {
                assert!(before.is_pending());
                let after = poll(commit);
                assert!(matches!(after, Poll::Ready(Err(_))), "{after:?}");
            }
        }
    }
}
