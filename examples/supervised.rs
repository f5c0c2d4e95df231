//! An instance is cut off for so long that its session expires. Its registration and its candidacy come back
//! by themselves.

use std::ops::ControlFlow;
use std::time::Duration;

use quorate::recipes::{Instance, LeaderLatch, LeaderSelector, Registry};
use quorate::session::Supervised;
use quorate::testing::Cluster;
use quorate::{Coordinator, Result};

/// What each instance runs for as long as it exists.
fn serve(coordinator: &Coordinator, name: &'static str) -> Result<[Supervised; 2]> {
    let registration = coordinator.supervise(move |session| {
        let here = Instance::new(name, "10.0.0.7", 8080);
        Registry::new(&session, "/services")?.register("web", &here).wait()?.wait_lost().wait()?;
        Ok(ControlFlow::Continue(()))
    })?;
    let election = coordinator.supervise(move |session| {
        LeaderSelector::new(&session, "/leader", name)?
            .run(|leadership| async move {
                println!("{name} leads with token {}", leadership.fencing_token());
                // When the lead is lost, this ends here.
                std::future::pending().await
            })
            .wait()
    })?;
    Ok([registration, election])
}

fn main() -> Result<()> {
    let cluster = Cluster::new(3);
    let observer = cluster.node(2).session();
    let mut instances = Registry::new(&observer, "/services")?.watch("web")?;
    let mut leaders = LeaderLatch::new(&observer, "/leader", "observer")?.watch();
    let mut registered = |count| -> Result<()> {
        while instances.recv().wait()?.len() != count {}
        println!("{count} registered");
        Ok(())
    };

    let zero = serve(&cluster.node(0), "zero")?;
    while leaders.recv().wait()?.is_none_or(|leader| leader.name() != "zero") {}
    let one = serve(&cluster.node(1), "one")?;
    registered(2)?;

    println!("zero is cut off for a minute");
    cluster.isolate(0);
    cluster.advance(Duration::from_secs(60));
    registered(1)?;
    while leaders.recv().wait()?.is_none_or(|leader| leader.name() != "one") {}

    println!("zero is connected again");
    cluster.heal();
    registered(2)?;

    // It leads again once the other instance does not.
    drop(one);
    while leaders.recv().wait()?.is_none_or(|leader| leader.name() != "zero") {}
    drop(zero);
    Ok(())
}
