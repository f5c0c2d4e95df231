//! A cluster is backed up while it runs, and then lost. A new cluster starts from the backup. Then only the
//! data directory of that cluster is left, and another one starts from it.

use std::net::TcpListener;
use std::path::Path;
use std::time::Duration;

use quorate::recovery::{Founded, Recovery};
use quorate::testing::Cluster;
use quorate::{Coordinator, CreateMode, Result};

fn main() -> Result<()> {
    let directory = std::env::temp_dir().join(format!("quorate-recovery-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("temporary files can be written");
    let outcome = recover(&directory);
    let _ = std::fs::remove_dir_all(&directory);
    outcome
}

fn recover(directory: &Path) -> Result<()> {
    let (file, dir) = (directory.join("backup"), directory.join("data"));
    let lost = Cluster::new(3);
    let session = lost.node(0).session();
    session.create("/orders", b"17", CreateMode::Persistent).wait()?;
    session.sync().wait()?;
    println!("backup:    {}", lost.node(0).backup(&file).wait()?);
    session.set("/orders", b"18").wait()?;
    drop((session, lost));

    println!("verified:  {}", Recovery::new().verify(&file)?);
    let founded = Recovery::new().restore(&file, &dir, &free_address())?;
    println!("restored:  {founded}");
    let member = start(&founded)?;
    let (orders, _) = member.session().get("/orders").wait()?;
    assert_eq!(&orders[..], b"17", "what was written after the backup is not in it");
    member.session().set("/orders", b"19").wait()?;
    member.close().wait()?;

    // The log is recovered too, with all writes since the restore.
    let plan = Recovery::new().recover([&dir])?;
    println!("plan:      {plan}");
    let founded = plan.found_anew(None)?;
    println!("recovered: {founded}");
    let member = start(&founded)?;
    let (orders, _) = member.session().get("/orders").wait()?;
    assert_eq!(&orders[..], b"19");
    member.close().wait()?;
    Ok(())
}

/// Starts the new cluster's only member; others join it later.
fn start(founded: &Founded) -> Result<Coordinator> {
    let builder = Coordinator::builder().advertise(&*founded.address).data_dir(&founded.dir);
    let member = builder.join([&founded.address]).wait()?;
    member.wait_ready(Duration::from_secs(30)).wait()?;
    Ok(member)
}

fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("this host has a loopback address");
    listener.local_addr().expect("a bound listener has an address").to_string()
}
