//! Several instances move money between accounts concurrently, and an auditor finds the right sum in every
//! snapshot.

use std::thread;

use quorate::testing::Cluster;
use quorate::{CreateMode, Result, Session};

const ACCOUNTS: usize = 5;
const EACH: i64 = 100;

fn account(number: usize) -> String {
    format!("/accounts/{number}")
}

fn amount(data: &[u8]) -> i64 {
    String::from_utf8_lossy(data).parse().expect("accounts hold numbers")
}

/// Moves an amount if the account has enough. Returns whether it did.
fn transfer(session: &Session, from: usize, to: usize, sum: i64) -> Result<bool> {
    let moved = session
        .transact(|transaction| {
            let (here, there) = (
                amount(&transaction.get(&account(from))?.0),
                amount(&transaction.get(&account(to))?.0),
            );
            if here < sum {
                return Ok(false);
            }
            transaction.set(&account(from), (here - sum).to_string());
            transaction.set(&account(to), (there + sum).to_string());
            Ok(true)
        })
        .wait()?;
    Ok(moved.value)
}

fn main() -> Result<()> {
    let cluster = Cluster::new(3);
    let session = cluster.node(0).session();
    session.create("/accounts", b"", CreateMode::Persistent).wait()?;
    for number in 0..ACCOUNTS {
        session.create(&account(number), EACH.to_string(), CreateMode::Persistent).wait()?;
    }

    thread::scope(|scope| {
        let workers: Vec<_> = (0..3)
            .map(|node| {
                let session = cluster.node(node).session();
                scope.spawn(move || -> Result<usize> {
                    let mut moved = 0;
                    for turn in 0..60 {
                        let (from, to) = (turn % ACCOUNTS, (turn + node + 1) % ACCOUNTS);
                        if from != to && transfer(&session, from, to, 7)? {
                            moved += 1;
                        }
                    }
                    Ok(moved)
                })
            })
            .collect();
        // At any time and on any instance, the sum is the same.
        let mut audits = 0;
        while workers.iter().any(|worker| !worker.is_finished()) || audits == 0 {
            let snapshot = cluster.node(audits % 3).session().snapshot().wait()?;
            let accounts = match snapshot.children("/accounts") {
                Ok(accounts) if accounts.len() == ACCOUNTS => accounts,
                // This replica does not have all of the transfers yet.
                _ => continue,
            };
            let mut sum = 0;
            for name in &accounts {
                sum += amount(&snapshot.get(&format!("/accounts/{name}"))?.0);
            }
            assert_eq!(sum, EACH * ACCOUNTS as i64, "as of write {}", snapshot.zxid());
            audits += 1;
        }
        for (node, worker) in workers.into_iter().enumerate() {
            println!("instance {node} moved money {} times", worker.join().expect("no panic")?);
        }
        println!(
            "{audits} audits, each of one moment: the sum was always {}",
            EACH * ACCOUNTS as i64
        );
        Ok(())
    })
}
