//! Membership changes that have failed in other systems.

use std::time::Duration;

use quorate::testing::Cluster;
use quorate::{Coordinator, CreateMode, Pending, Session, Stat};

const SECOND: Duration = Duration::from_secs(1);

fn voters(cluster: &Cluster, node: usize) -> Vec<String> {
    let members = cluster.node(node).status().members.into_iter();
    members.filter(|member| member.votes).map(|member| member.address).collect()
}

/// Checks that everything acknowledged is there, at this node too.
fn has_all(session: &Session, written: &[String]) {
    session.sync().wait().unwrap();
    for path in written {
        assert!(session.exists(path).wait().unwrap().is_some(), "{path} is lost");
    }
}

/// A voter's disk is wiped: while others write, while the cluster is idle, and as a learner. An idle cluster
/// must admit the member again without a write.
#[test]
fn a_disk_is_wiped_under_load_and_idle_and_as_a_learner() {
    let cluster = Cluster::with_settings(3, Coordinator::builder().max_voters(3));
    let learner = cluster.add_node();
    cluster.advance(5 * SECOND);
    let mut written = Vec::new();
    for (round, writes) in [(0, true), (1, false), (2, true), (3, false)] {
        let victim = if round < 2 { (cluster.leader().unwrap() + 1) % 3 } else { learner };
        let writer = cluster.node((victim + 1) % 3).session();
        cluster.wipe(victim);
        cluster.restart(victim);
        for n in 0..100 {
            if writes {
                let path = format!("/r{round}-{n}");
                writer.create(&path, b"", CreateMode::Persistent).wait().unwrap();
                written.push(path);
            }
            cluster.advance(SECOND / 10);
        }
        has_all(&cluster.node(victim).session(), &written);
        assert_eq!(voters(&cluster, victim).len(), 3, "round {round}");
        let other = voters(&cluster, (victim + 1) % 3);
        assert_eq!(voters(&cluster, victim), other, "round {round}");
        // The member's former ids are removed from the membership.
        assert_eq!(cluster.node(victim).status().members.len(), 4, "round {round}");
    }
}

/// The disks of all three are wiped, one after the other: none of the first members is left, and no data was
/// lost.
#[test]
fn every_disk_is_wiped_one_after_the_other() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    session.create("/a", b"1", CreateMode::Persistent).wait().unwrap();
    for node in [0, 1, 2, 0, 1, 2] {
        cluster.advance(2 * SECOND);
        assert!(cluster.node(node).safe_to_stop(), "{node}");
        cluster.wipe(node);
        cluster.restart(node);
        cluster.advance(10 * SECOND);
        assert_eq!(&cluster.node(node).session().get("/a").wait().unwrap().0[..], b"1");
    }
    assert_eq!(voters(&cluster, 0).len(), 3);
}

/// A hundred clean restarts in turn: a lock stays with its session, which moves before its instance stops.
/// There is one election for each restarted leader.
#[test]
fn a_hundred_rolling_restarts_with_a_lock_held_throughout() {
    let cluster = Cluster::new(3);
    let mut session = cluster.node(0).open_session_with(30 * SECOND).unwrap();
    session.create("/lock", b"", CreateMode::Ephemeral).wait().unwrap();
    let token = session.exists("/lock").wait().unwrap().unwrap().czxid;
    let mut elections = 0;
    let mut term = cluster.node(0).status().term.unwrap();
    for round in 0..100 {
        let turn = round % 3;
        // The lock's session is on another instance while this one restarts.
        let host = (turn + 1) % 3;
        session = cluster.node(host).resume(session.id(), session.password()).wait().unwrap();
        let led = cluster.leader() == Some(turn);
        let others = cluster.node(turn);
        std::thread::scope(|scope| {
            let closing = scope.spawn(|| others.close().wait());
            while !closing.is_finished() {
                cluster.advance(SECOND / 10);
            }
        });
        cluster.advance(2 * SECOND);
        cluster.restart(turn);
        cluster.advance(2 * SECOND);
        let now = cluster.node(turn).status().term.unwrap();
        let grown = now - term;
        assert!(grown <= u64::from(led), "round {round}: {grown} terms, though it led: {led}");
        elections += grown;
        term = now;
        assert_eq!(session.exists("/lock").wait().unwrap().unwrap().czxid, token, "round {round}");
    }
    assert!(elections >= 30, "every third restart was that of a leader: {elections}");
}

/// A client that writes one value after the other, with the longest time that a write took, in heartbeats.
struct Writer {
    session: Session,
    pending: Pending<'static, Stat>,
    silent: u32,
    longest: u32,
    written: u64,
}

impl Writer {
    fn new(session: Session) -> Writer {
        session.create_or_set("/written", b"", CreateMode::Persistent).wait().unwrap();
        let pending = session.set("/written", b"");
        Writer { session, pending, silent: 0, longest: 0, written: 0 }
    }

    /// Lets one heartbeat pass.
    fn tick(&mut self, cluster: &Cluster) {
        cluster.advance(SECOND / 10);
        match self.pending.try_take() {
            Some(done) => {
                done.unwrap();
                (self.silent, self.written) = (0, self.written + 1);
                self.pending = self.session.set("/written", b"");
            }
            None => self.silent += 1,
        }
        self.longest = self.longest.max(self.silent);
    }
}

/// Five members are restarted and then replaced by five others, one after the other, while a client writes:
/// no write ever takes longer than an election (10 heartbeats until the leader is missed, and as many for one
/// split vote).
#[test]
fn a_fleet_is_rolled_and_replaced_and_never_stops_for_longer_than_an_election() {
    const ELECTION: u32 = 20;
    let cluster = Cluster::new(5);
    let mut instances: Vec<usize> = (0..5).collect();
    for turn in 0..10 {
        let (old, replace) = (instances[turn % 5], turn >= 5);
        if replace {
            instances[turn % 5] = cluster.add_node();
        }
        let mut writer = Writer::new(cluster.node(instances[(turn + 1) % 5]).session());
        for _ in 0..100 {
            writer.tick(&cluster);
        }
        assert!(cluster.node(old).safe_to_stop(), "turn {turn}");
        let stopping = cluster.node(old);
        std::thread::scope(|scope| {
            let stopping = scope.spawn(move || {
                if replace {
                    stopping.leave(60 * SECOND).wait().unwrap();
                } else {
                    stopping.close().wait().unwrap();
                }
            });
            while !stopping.is_finished() {
                writer.tick(&cluster);
            }
        });
        if !replace {
            cluster.restart(old);
        }
        for _ in 0..100 {
            writer.tick(&cluster);
        }
        assert!(writer.longest <= ELECTION, "turn {turn}: {} heartbeats", writer.longest);
        assert!(writer.written > 100, "turn {turn}: {} writes", writer.written);
    }
    let last: Vec<String> = (5..10).map(|node| format!("node-{node}")).collect();
    assert_eq!(voters(&cluster, 9), last);
}

/// All members are killed at once, and start again in every order.
#[test]
fn all_are_killed_at_once_and_start_in_every_order() {
    let cluster = Cluster::new(3);
    let mut written = Vec::new();
    for (round, order) in
        [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]].iter().enumerate()
    {
        let path = format!("/n{round}");
        cluster.node(0).session().create(&path, b"", CreateMode::Persistent).wait().unwrap();
        written.push(path);
        for node in 0..3 {
            cluster.stop(node);
        }
        for node in order {
            cluster.restart(*node);
            cluster.advance(3 * SECOND);
        }
        has_all(&cluster.node(order[2]).session(), &written);
    }
}
