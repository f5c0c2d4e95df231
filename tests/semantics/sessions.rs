//! Sessions: their timeouts, their states, and their holders.

use std::collections::BTreeSet;
use std::time::Duration;

use quorate::session::SessionId;
use quorate::testing::Cluster;
use quorate::{CreateMode, Error, Session, SessionState};

use crate::{P, SECOND, make, open};

const E: CreateMode = CreateMode::Ephemeral;

/// How long a session's ephemeral outlives the stop of its node.
fn outlives(cluster: &Cluster, observer: &Session, path: &str) -> Duration {
    let step = SECOND / 4;
    let mut waited = Duration::ZERO;
    while observer.exists(path).wait().unwrap().is_some() {
        assert!(waited < SECOND * 120, "{path} stays");
        cluster.advance(step);
        waited += step;
    }
    waited
}

/// Between its timeout and a little more; at most one of ZooKeeper's ticks more.
#[test]
fn a_session_whose_node_is_gone_ends_at_its_timeout_and_not_before() {
    let cluster = Cluster::new(3);
    let leader = cluster.leader().unwrap();
    let (gone, there) = ((leader + 1) % 3, (leader + 2) % 3);
    let observer = open(&cluster, there);
    let sessions: Vec<(u64, Session)> = [1, 4, 7, 12, 3600]
        .into_iter()
        .map(|asked| (asked, cluster.node(gone).open_session_with(SECOND * asked as u32).unwrap()))
        .collect();
    for (asked, session) in &sessions {
        session.create(&format!("/{asked}"), b"", E).wait().unwrap();
    }
    observer.sync().wait().unwrap();
    cluster.stop(gone);
    let mut waited = Duration::ZERO;
    for ((asked, session), given) in sessions.iter().zip([4, 4, 7, 12, 40]) {
        assert_eq!(session.timeout(), SECOND * given);
        waited += outlives(&cluster, &observer, &format!("/{asked}"));
        // A session is renewed from time to time, not at the moment at which its node stops.
        let (least, most) = (SECOND * given - SECOND, SECOND * (given + 2));
        assert!(waited >= least && waited <= most, "{asked} s, given {given}: {waited:?}");
    }
}

#[test]
fn a_new_leader_gives_every_session_its_full_timeout() {
    let cluster = Cluster::new(3);
    let leader = cluster.leader().unwrap();
    let (gone, there) = ((leader + 1) % 3, (leader + 2) % 3);
    let owner = open(&cluster, gone);
    owner.create("/e", b"", E).wait().unwrap();
    let observer = open(&cluster, there);
    cluster.stop(gone);
    cluster.advance(SECOND * 7);
    assert!(observer.exists("/e").wait().unwrap().is_some());
    // Whichever member leads, it starts a new term.
    cluster.restart(leader);
    while cluster.leader().is_none() {
        cluster.advance(SECOND / 20);
    }
    cluster.advance(SECOND * 9);
    assert!(observer.exists("/e").wait().unwrap().is_some(), "16 seconds, with a timeout of 10");
    let waited = outlives(&cluster, &observer, "/e");
    assert!(waited < SECOND * 6, "{waited:?}");
}

/// Without a quorum the cluster ends no session, since it could not decide so.
#[test]
fn without_a_quorum_no_session_ends_but_for_its_own_holder() {
    let cluster = Cluster::new(3);
    let leader = cluster.leader().unwrap();
    let owner = open(&cluster, leader);
    owner.create("/e", b"", E).wait().unwrap();
    let node = cluster.node((leader + 1) % 3);
    let observer = open(&cluster, (leader + 1) % 3);
    cluster.stop((leader + 2) % 3);
    cluster.isolate(leader);
    cluster.advance(SECOND * 60);
    assert_eq!([owner.state(), observer.state()], [SessionState::Expired; 2]);
    // The replica shows the last state, and the sessions of that time.
    assert_eq!(node.status().sessions, Some(2));
    assert!(matches!(owner.get("/e").wait(), Err(Error::SessionExpired { .. })));
    cluster.heal();
    cluster.advance(SECOND * 30);
    let back = open(&cluster, leader);
    assert_eq!(back.exists("/e").wait().unwrap(), None);
}

#[test]
fn the_states_of_a_session_in_their_order() {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).open_session().unwrap();
    let states = session.states();
    session.sync().wait().unwrap();
    cluster.isolate(0);
    cluster.advance(SECOND * 5);
    cluster.heal();
    cluster.advance(SECOND * 3);
    session.set("/", b"").wait().unwrap();
    let late = session.states();
    session.close().wait().unwrap();
    let mut seen: Vec<SessionState> = states.events().iter().collect();
    // It may have been open before the state was read.
    seen.retain(|state| *state != SessionState::Connecting);
    use SessionState::{Closed, Connected, Suspended};
    assert_eq!(seen, [Connected, Suspended, Connected, Closed]);
    assert_eq!(late.events().iter().collect::<Vec<_>>(), [Connected, Closed]);
    assert!(Closed.is_final() && !Suspended.is_final());
    assert_eq!(session.states().events().iter().collect::<Vec<_>>(), [Closed]);
}

/// ZooKeeper's ids count up from the server's number and the time, and the password is derived from the id.
#[test]
fn ids_and_passwords_are_random_and_independent() {
    let cluster = Cluster::new(1);
    let sessions: Vec<Session> = (0..100).map(|_| open(&cluster, 0)).collect();
    let ids: BTreeSet<SessionId> = sessions.iter().map(Session::id).collect();
    let passwords: BTreeSet<[u8; 16]> = sessions.iter().map(Session::password).collect();
    assert_eq!((ids.len(), passwords.len()), (100, 100));
    // Each bit of both is set about half the time: of 100 sessions with 192 bits, no bit has the same value
    // in 95 (the odds are below 10^-20).
    for bit in 0..64 {
        let ones = ids.iter().filter(|id| id.number() >> bit & 1 == 1).count();
        assert!((5..=95).contains(&ones), "bit {bit} of the ids: {ones}");
    }
    for bit in 0..128 {
        let ones = passwords.iter().filter(|word| word[bit / 8] >> (bit % 8) & 1 == 1).count();
        assert!((5..=95).contains(&ones), "bit {bit} of the passwords: {ones}");
    }
    let mut guess = sessions[0].password();
    guess[15] ^= 1;
    let refused = cluster.node(0).resume(sessions[0].id(), guess).wait();
    assert!(matches!(refused, Err(Error::WrongPassword { .. })), "{refused:?}");
    let unknown = SessionId::from_number(sessions[0].id().number() ^ 1);
    let refused = cluster.node(0).resume(unknown, sessions[0].password()).wait();
    assert_eq!(refused.map(drop), Err(Error::SessionExpired { session: unknown }));
}

#[test]
fn a_session_resumed_elsewhere_goes_on_there_and_reads_nothing_older() {
    let cluster = Cluster::new(3);
    let mut holder = open(&cluster, 0);
    make(&holder, &["/n"]);
    holder.create("/mine", b"", E).wait().unwrap();
    for round in 1..=12 {
        let version = holder.set("/n", b"").wait().unwrap().version;
        let node = round % 3;
        let next = cluster.node(node).resume(holder.id(), holder.password()).wait().unwrap();
        // No sync: the resumption itself comes after all that the session has seen.
        assert!(next.get("/n").wait().unwrap().1.version >= version, "round {round}");
        let moved = Error::SessionMoved { session: holder.id() };
        assert_eq!(holder.set("/n", b"").wait().map(drop), Err(moved));
        assert_eq!(holder.close().wait(), Ok(()), "which closes nothing");
        holder = next;
    }
    assert_eq!(holder.ephemerals().wait().unwrap(), ["/mine"]);
    holder.close().wait().unwrap();
    let gone = cluster.node(0).resume(holder.id(), holder.password()).wait();
    assert_eq!(gone.map(drop), Err(Error::SessionExpired { session: holder.id() }));
}

/// The timeout of the new holder applies from then on, under every leader.
#[test]
fn a_resumed_session_has_the_timeout_of_its_new_holder_after_a_change_of_leader_too() {
    let cluster = Cluster::new(3);
    let leader = cluster.leader().unwrap();
    let (gone, there) = ((leader + 1) % 3, (leader + 2) % 3);
    let old = cluster.node(there).open_session_with(SECOND * 40).unwrap();
    old.create("/e", b"", E).wait().unwrap();
    let new = cluster.node(gone).resume_with(old.id(), old.password(), SECOND * 10).wait().unwrap();
    assert_eq!((old.timeout(), new.timeout()), (SECOND * 40, SECOND * 10));
    let observer = open(&cluster, there);
    cluster.stop(gone);
    cluster.restart(leader);
    while cluster.leader().is_none() {
        cluster.advance(SECOND / 20);
    }
    let waited = outlives(&cluster, &observer, "/e");
    assert!(waited >= SECOND * 8 && waited < SECOND * 16, "{waited:?}");
}

/// ZooKeeper's client fails all requests in flight with `ConnectionLoss` when it loses its server, and their
/// outcome is unknown. Here they wait, and are done once.
#[test]
fn requests_in_flight_when_the_quorum_is_lost_are_done_once_it_is_back() {
    let cluster = Cluster::new(3);
    let leader = cluster.leader().unwrap();
    let session = open(&cluster, leader);
    make(&session, &["/q"]);
    cluster.isolate(leader);
    let calls = &session.in_turn();
    let creates: Vec<_> =
        (0..10).map(|_| calls.create("/q/n", b"", CreateMode::PersistentSequential)).collect();
    let read = calls.children("/q");
    cluster.advance(SECOND * 5);
    assert_eq!(session.state(), SessionState::Suspended);
    cluster.heal();
    cluster.advance(SECOND * 3);
    for (n, create) in creates.into_iter().enumerate() {
        assert_eq!(create.wait().unwrap().path, format!("/q/n{n:010}"));
    }
    assert_eq!(read.wait().unwrap().len(), 10);
    assert_eq!(session.state(), SessionState::Connected);
    assert_eq!(session.children("/q").wait().unwrap().len(), 10);
}

/// A session that is over stays over, even when its node is back.
#[test]
fn a_final_session_state_stays() {
    let cluster = Cluster::new(3);
    let session = open(&cluster, 0);
    session.create("/e", b"", E).wait().unwrap();
    cluster.isolate(0);
    cluster.advance(SECOND * 20);
    assert_eq!(session.state(), SessionState::Expired);
    cluster.heal();
    cluster.advance(SECOND * 5);
    assert_eq!(session.state(), SessionState::Expired);
    assert!(matches!(session.create("/f", b"", P).wait(), Err(Error::SessionExpired { .. })));
    assert!(!session.is_alive());
    let other = cluster.node(0).session();
    other.sync().wait().unwrap();
    assert_eq!(other.exists("/e").wait().unwrap(), None);
    assert_ne!(other.id(), session.id());
}
