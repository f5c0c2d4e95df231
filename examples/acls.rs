//! Two teams on one cluster: each can read the other's configuration and cannot change it.

use quorate::acl::{Acl, Id, Permissions};
use quorate::testing::Cluster;
use quorate::{CreateMode, Error, Result, Session};

/// Creates a team's own subtree, which others may read.
fn claim(session: &Session, team: &str, password: &str) -> Result<()> {
    session.add_auth("argon2", format!("{team}:{password}")).wait()?;
    let acl = [Acl::new(Permissions::ALL, Id::auth()), Acl::new(Permissions::READ, Id::anyone())];
    let path = format!("/{team}");
    session.create_with_acl(&path, b"", CreateMode::Persistent, &acl).wait()?;
    // Access lists are not inherited.
    session
        .create_with_acl(&format!("{path}/limit"), b"10", CreateMode::Persistent, &acl)
        .wait()?;
    Ok(())
}

fn main() -> Result<()> {
    let cluster = Cluster::new(3);
    let (billing, search) = (cluster.node(0).session(), cluster.node(1).session());
    claim(&billing, "billing", "swordfish")?;
    claim(&search, "search", "marlin")?;

    search.sync().wait()?;
    let (limit, _) = search.get("/billing/limit").wait()?;
    println!("search reads billing's limit: {}", String::from_utf8_lossy(&limit));

    let refused = search.set("/billing/limit", b"1000").wait().unwrap_err();
    println!("search sets it: {refused}");
    let permission = Permissions::WRITE;
    assert_eq!(refused, Error::NoAuth { path: "/billing/limit".into(), permission });
    let refused = search.delete_recursive("/billing").wait().unwrap_err();
    println!("search deletes it all: {refused}");
    let permission = Permissions::DELETE;
    assert_eq!(refused, Error::NoAuth { path: "/billing".into(), permission });

    // Only users who may set an access list see the password hash in it.
    for entry in search.acl("/billing").wait()?.0 {
        println!("/billing: {} {}", entry.id, entry.permissions);
    }
    Ok(())
}
