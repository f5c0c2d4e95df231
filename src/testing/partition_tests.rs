//! What others do for a member that hangs. Worlds of the simulator seldom let one hang for that long, or go on just when
//! another one ends its claims.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::Cluster;
use crate::Coordinator;
use crate::recipes::{Partition, Partitions, Share};

const SECOND: Duration = Duration::from_secs(1);

/// Goes on with a share.
fn turn(share: &mut Share, owned: &mut Vec<Partition>) {
    loop {
        let taking = pin!(share.take());
        match taking.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(taken) => owned.push(taken.unwrap()),
            Poll::Pending => return,
        }
    }
}

type Member = (Share, Vec<Partition>);

fn join(cluster: &Cluster, node: usize, name: &str) -> Member {
    let of = Partitions::new(&cluster.node(node).session(), "/p", 2).unwrap();
    let of = of.with_max_silence(None).with_drain_limit(10 * SECOND);
    (of.join(name).wait().unwrap(), Vec::new())
}

fn go_on(cluster: &Cluster, member: &mut Member, seconds: u32) {
    for _ in 0..seconds * 10 {
        turn(&mut member.0, &mut member.1);
        cluster.advance(SECOND / 10);
    }
}

/// A member gets all that the oldest one does not work on.
#[test]
fn a_member_that_hangs_is_not_waited_for() {
    let cluster = Cluster::with_settings(2, Coordinator::builder().session_timeout(60 * SECOND));
    let mut hung = join(&cluster, 0, "hung");
    go_on(&cluster, &mut hung, 1);
    let mut next = join(&cluster, 1, "next");
    go_on(&cluster, &mut next, 60);
    assert_eq!(next.1.len(), 2);
}

/// A member keeps what another one, which has hung, has handed over to it, although a third one ends the claims of that
/// one by what it had seen before.
#[test]
fn claims_that_others_have_now_are_not_ended() {
    let settings = Coordinator::builder().session_timeout(60 * SECOND);
    let cluster = Cluster::with_settings(3, settings);
    let join = |node, name| join(&cluster, node, name);
    let go_on = |member: &mut Member, seconds| go_on(&cluster, member, seconds);
    let mut hung = join(0, "hung");
    go_on(&mut hung, 1);
    let (mut next, mut stale) = (join(1, "next"), join(2, "stale"));
    go_on(&mut hung, 1);
    let asked = hung.1.iter().position(Partition::is_asked).unwrap();
    // Two members are older: it would end the claims 25 s after its first look, at 5 s.
    go_on(&mut stale, 25);
    cluster.isolate(2);
    cluster.advance(5 * SECOND);
    hung.1.swap_remove(asked).hand_over("").wait().unwrap();
    go_on(&mut next, 1);
    go_on(&mut stale, 10);
    cluster.heal();
    go_on(&mut stale, 10);
    cluster.node(1).session().sync().wait().unwrap();
    assert_eq!((hung.1.len(), next.1.len()), (1, 1));
    assert!(hung.1[0].is_held() && next.1[0].is_held());
}
