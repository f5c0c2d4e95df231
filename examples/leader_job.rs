//! A job that one instance at a time may run: three instances in one process, on an in-memory
//! cluster, want to run it and take over from each other.

use std::time::Duration;

use quorate::testing::Cluster;
use quorate::{Result, Session};

/// Runs while this instance leads; returns when it has lost leadership.
fn lead(session: &Session, name: &str) -> Result<()> {
    let leadership = session.lock("/leader")?.acquire().wait()?;
    println!("{name} leads, with fencing token {}", leadership.fencing_token());
    for step in 1..=3 {
        // Checked before each step: false from the moment at which the cluster may have elected another
        // leader.
        if !leadership.is_held() {
            println!("{name} has lost the lead");
            return Ok(());
        }
        println!("{name} does step {step}");
    }
    leadership.release().wait()
}

fn main() -> Result<()> {
    let cluster = Cluster::new(3);
    std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..3)
            .map(|place| {
                let session = cluster.node(place).session();
                scope.spawn(move || lead(&session, &format!("instance {place}")))
            })
            .collect();
        jobs.into_iter().try_for_each(|job| job.join().expect("an instance panicked"))
    })?;

    // An isolated leader knows of its loss before another instance can lead.
    let old = cluster.node(0).session().lock("/leader")?.acquire().wait()?;
    cluster.isolate(0);
    cluster.advance(Duration::from_secs(30));
    assert!(!old.is_held());
    let new = cluster.node(1).session().lock("/leader")?.acquire().wait()?;
    assert!(new.fencing_token() > old.fencing_token());
    println!("instance 1 leads after instance 0 was cut off, token {}", new.fencing_token());
    Ok(())
}
