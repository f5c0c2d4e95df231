//! Three instances in one process, on an in-memory cluster: each announces itself, all see the others, and
//! one of them leads until it is isolated.

use std::time::Duration;

use quorate::recipes::{Group, LeaderLatch, PersistentEphemeral};
use quorate::testing::Cluster;
use quorate::{CreateMode, Error, Result};

const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> Result<()> {
    let cluster = Cluster::new(3);
    cluster.node(0).session().create("/plan", b"", CreateMode::Persistent).wait()?;

    // Exists as long as the process: it is created again after a lost session. Observers see it as a member
    // of the group at its parent's path.
    let mut instances = Vec::new();
    for place in 0..3 {
        let path = format!("/instances/host-{place}");
        let here = PersistentEphemeral::new(&cluster.node(place).session(), &path, "up")?;
        let run = here.run();
        let thread = std::thread::Builder::new().name(path);
        let running = thread.spawn(move || run.wait()).expect("a thread can be had");
        instances.push((here.clone(), running));
        assert!(here.wait_present().timeout(PATIENCE).wait() == Ok(true));
    }
    let session = cluster.node(2).session();
    let group = Group::new(&session, "/instances")?;
    let mut members = group.watch();
    session.sync().wait()?;
    println!("there are {:?}", members.recv().wait()?.keys());

    // One of them leads; instance 2 only observes.
    let latch = |place: usize| {
        LeaderLatch::new(&cluster.node(place).session(), "/leader", format!("host-{place}"))
    };
    let mut leaders = latch(2)?.watch();
    let old = latch(0)?.campaign().wait()?;
    old.fenced().set("/plan", "by host-0").commit().wait()?;
    let mut leader = leaders.recv().wait()?;
    while leader.is_none() {
        leader = leaders.recv().wait()?;
    }
    println!("{} leads", leader.expect("there is one").name());

    // An isolated leader knows that it leads no longer before the next one leads.
    cluster.isolate(0);
    cluster.advance(PATIENCE);
    let new = latch(1)?.campaign().wait()?;
    assert!(!old.is_held() && new.fencing_token() > old.fencing_token());
    new.fenced().set("/plan", "by host-1").commit().wait()?;
    session.sync().wait()?;
    println!("{} leads", latch(2)?.leader().wait()?.expect("there is one").name());
    println!("there are {:?}", members.recv().wait()?.keys());

    // It comes back: as a member by itself, but no longer as the leader.
    cluster.heal();
    assert!(instances[0].0.wait_present().timeout(PATIENCE).wait() == Ok(true));
    session.sync().wait()?;
    while members.recv().wait()?.len() < 3 {}
    println!("there are {:?}", group.members().wait()?.keys());
    let refused = old.fenced().set("/plan", "by host-0, again").commit();
    assert!(refused.wait().is_err_and(|error| error.is_session_lost() || is_fenced(&error)));
    assert_eq!(&session.get("/plan").wait()?.0[..], b"by host-1");

    for (here, running) in instances {
        here.close().wait()?;
        running.join().expect("an instance panicked")?;
    }
    Ok(())
}

/// Whether a write was refused because its writer no longer leads.
fn is_fenced(error: &Error) -> bool {
    matches!(error, Error::Multi { index: 0, .. })
}
