//! What an instance's former run has left in the tree, on an in-memory cluster.

use std::ops::ControlFlow::Continue;
use std::time::Duration;

use crossbeam_channel::unbounded;
use quorate::recipes::{Group, Instance, PersistentEphemeral, Registry};
use quorate::testing::Cluster;
use quorate::{Error, EventKind, Session, Watch, WatchMode};

use super::LONG;

const ID: &str = "/services/web/zero";

fn registry(session: &Session) -> Registry {
    Registry::new(session, "/services").unwrap()
}

fn group(session: &Session) -> Group {
    Group::new(session, "/workers").unwrap()
}

/// Stops a node as a kill does, and starts it again.
fn kill(cluster: &Cluster, node: usize) {
    cluster.stop(node);
    cluster.restart(node);
}

/// Fails unless the watch saw the znode replaced by one write.
fn was_replaced(watch: &Watch) {
    let next = || watch.events().recv_timeout(LONG).expect("an event in time");
    let (gone, back) = (next(), next());
    assert_eq!((gone.kind, back.kind), (EventKind::Deleted, EventKind::Created));
    assert_eq!(gone.zxid, back.zxid, "it was missing for a while");
}

/// An instance that was killed and started again stayed out of the registry for the rest of its former
/// session: `register` failed with `NodeExists`, and `supervise` doubled its pause after each failure.
#[test]
fn a_restarted_instance_takes_its_registration_over_in_one_write() {
    let cluster = Cluster::new(3);
    let here = Instance::new("zero", "10.0.0.7", 80);
    let former = registry(&cluster.node(0).session()).register("web", &here).wait().unwrap();
    let watch = cluster.node(1).session().watch(ID, WatchMode::Persistent).wait().unwrap();

    kill(&cluster, 0);
    let (report, registered) = unbounded();
    let again = Instance::new("zero", "10.0.0.7", 81);
    let supervised = cluster.node(0).supervise(move |session| {
        let registration = registry(&session).register("web", &again).wait()?;
        report.send(registration.is_held()).unwrap();
        registration.wait_lost().wait().unwrap();
        Ok(Continue(()))
    });
    // The clock stands still, so the former session has not expired.
    assert!(registered.recv_timeout(LONG).expect("it is registered in its first run"));
    was_replaced(&watch);
    // The handle of the former run does not delete the znode of the next one.
    drop(former);
    let observer = cluster.node(0).session();
    observer.sync().wait().unwrap();
    assert!(observer.exists(ID).wait().unwrap().is_some());
    drop(supervised);
}

#[test]
fn a_restarted_member_of_a_group_joins_at_once() {
    let cluster = Cluster::new(3);
    let _former = group(&cluster.node(0).session()).join("zero", b"1").wait().unwrap();
    let watch =
        cluster.node(1).session().watch("/workers/zero", WatchMode::Persistent).wait().unwrap();
    kill(&cluster, 0);
    let again = group(&cluster.node(0).session()).join("zero", b"2").timeout(Duration::MAX).wait();
    let again = again.expect("it has joined");
    assert!(again.is_held());
    was_replaced(&watch);

    kill(&cluster, 0);
    let again = group(&cluster.node(0).session()).try_join("zero", b"3").wait().unwrap();
    assert!(again.is_some_and(|member| member.is_held()));
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a thread that ends with its instance")]
fn a_restarted_instance_has_its_persistent_ephemeral_at_once() {
    let cluster = Cluster::new(3);
    let run = |data: &str| {
        let here = PersistentEphemeral::new(&cluster.node(0).session(), "/up/zero", data).unwrap();
        let run = here.run();
        std::thread::spawn(move || run.wait());
        assert!(here.wait_present().timeout(Duration::from_secs(10)).wait() == Ok(true));
    };
    run("1");
    let watch = cluster.node(1).session().watch("/up/zero", WatchMode::Persistent).wait().unwrap();
    kill(&cluster, 0);
    run("2");
    was_replaced(&watch);
    assert_eq!(&cluster.node(0).session().get("/up/zero").wait().unwrap().0[..], b"2");
}

/// A session that is over for its handles may be alive in the cluster for a while: the next one did not
/// get its id.
#[test]
fn an_instance_takes_over_from_a_session_of_its_own_that_nobody_holds() {
    let cluster = Cluster::new(3);
    let here = Instance::new("zero", "10.0.0.7", 80);
    let first = cluster.node(0).open_session().unwrap();
    let _lost = registry(&first).register("web", &here).wait().unwrap();
    first.detach().wait().unwrap();
    let second = registry(&cluster.node(0).session()).register("web", &here).wait().unwrap();
    assert!(second.is_held());
}

/// Two processes with one id, by mistake: the second one is refused, and does not disturb the first.
#[test]
fn an_id_of_a_living_instance_is_refused_wherever_it_runs() {
    let cluster = Cluster::new(3);
    let here = Instance::new("zero", "10.0.0.7", 80);
    let first = registry(&cluster.node(0).session()).register("web", &here).wait().unwrap();
    let member = group(&cluster.node(0).session()).join("zero", b"").wait().unwrap();
    let client = cluster.add_client();
    // Another session of the same instance, another instance, a client, and that instance once it was restarted.
    let check = |session: &Session| {
        let refused = registry(session).register("web", &here).wait();
        assert!(matches!(refused, Err(Error::NodeExists { .. })), "{refused:?}");
        assert!(group(session).try_join("zero", b"").wait().unwrap().is_none());
    };
    check(&cluster.node(0).open_session().unwrap());
    check(&cluster.node(1).session());
    check(&cluster.node(client).session());
    kill(&cluster, 1);
    check(&cluster.node(1).session());
    assert!(first.is_held() && member.is_held());
}

/// An instance that resumes its session after a restart holds it again.
#[test]
fn what_a_resumed_session_has_is_not_taken_over() {
    let cluster = Cluster::new(3);
    let here = Instance::new("zero", "10.0.0.7", 80);
    let session = cluster.node(0).session();
    let _kept = registry(&session).register("web", &here).wait().unwrap();
    let kept = cluster.node(0).close_keeping_sessions().wait().unwrap();
    cluster.restart(0);
    let (id, password) = kept.into_iter().find(|(id, _)| *id == session.id()).unwrap();
    let resumed = cluster.node(0).resume(id, password).wait().unwrap();
    let refused = registry(&cluster.node(0).session()).register("web", &here).wait();
    assert!(matches!(refused, Err(Error::NodeExists { .. })), "{refused:?}");
    assert_eq!(resumed.ephemerals().wait().unwrap(), [ID]);
}
