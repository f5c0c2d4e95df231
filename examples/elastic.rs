//! Instances come and go: one founds a cluster, two join it by its address, one loses its disk and comes
//! back, one leaves for good. (Here all are in one process; in a deployment each has its own.)

use std::net::TcpListener;
use std::time::Duration;

use quorate::{Coordinator, CreateMode, Error};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> Outcome<()> {
    let dir = tempfile::tempdir()?;
    let listeners: Vec<TcpListener> =
        (0..3).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
    let addresses: Vec<String> = listeners
        .iter()
        .map(|listener| listener.local_addr().map(|address| address.to_string()))
        .collect::<Result<_, _>>()?;
    drop(listeners);
    // Where to find the cluster: one address is enough.
    let join = |place: usize| -> Result<Coordinator, Error> {
        Coordinator::builder()
            .advertise(&addresses[place])
            .data_dir(dir.path().join(place.to_string()))
            .join([&addresses[0]])
            .wait()
    };

    let first = join(0)?;
    first.wait_ready(PATIENCE).wait()?;
    first.session().create("/work", b"1", CreateMode::Persistent).wait()?;
    println!("one instance: {}", first.availability());

    let second = join(1)?;
    let third = join(2)?;
    third.wait_ready(PATIENCE).wait()?;
    voters(&first, 3);
    println!("three instances: {}", first.availability());

    // The second instance's machine is replaced: same address, empty disk. No operator command is needed.
    second.close().wait()?;
    std::fs::remove_dir_all(dir.path().join("1"))?;
    let second = join(1)?;
    second.wait_ready(PATIENCE).wait()?;
    voters(&first, 3);
    second.session().sync().wait()?;
    let (work, _) = second.session().get("/work").wait()?;
    println!("with an empty disk it has everything again: {}", String::from_utf8_lossy(&work));

    // The first instance is no longer needed. It hands over its vote before it leaves.
    first.leave(PATIENCE).wait()?;
    voters(&third, 2);
    third.session().set("/work", b"2").wait()?;
    println!("after it left: {}", third.status());
    Ok(())
}

/// Waits for this number of voters, and until the cluster tolerates the loss of one.
fn voters(coordinator: &Coordinator, wanted: usize) {
    loop {
        let members = coordinator.status().members;
        let voters = members.iter().filter(|member| member.votes).count();
        if voters == wanted && members.len() == wanted && coordinator.is_ready() {
            return;
        }
        std::thread::yield_now();
    }
}
