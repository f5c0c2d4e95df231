//! Transfers between accounts. Each transfer is one transaction, so the sum of all balances never
//! changes.
//!
//! A second workload keeps a set of znodes below a maximum: the transaction that creates one first
//! reads the usage that a quota shows.

use std::fmt::Debug;

use crate::api::snapshot::Snapshot;
use crate::api::transaction::Transaction;
use crate::simulation::checks::{Violation, require};
use crate::simulation::client::Client;
use crate::types::error::{Error, Result};
use crate::types::quota::{Quota, Usage};
use crate::types::znode::CreateMode;

const ACCOUNTS: u64 = 4;
/// The balance of each account at the start.
const BALANCE: u64 = 100;

pub(crate) async fn run(client: Client) {
    client
        .in_sessions(async |handle| {
            let session = handle.session();
            let moved = session
                .transact_below("/", |txn| {
                    let account = |number: u64| format!("/account-{number}");
                    if txn.exists(&account(0))?.is_none() {
                        for number in 0..ACCOUNTS {
                            let data = BALANCE.to_be_bytes();
                            txn.create(&account(number), data, CreateMode::Persistent);
                        }
                        return Ok(0);
                    }
                    client.kernel.check(check_sum(txn.snapshot()));
                    let (from, to) = (client.random.below(ACCOUNTS), client.random.below(ACCOUNTS));
                    let (from, to) = (account(from), account(to));
                    let has = balance(&txn.get(&from)?.0);
                    let sum = client.random.below(has + 1);
                    if from != to {
                        txn.set(&from, (has - sum).to_be_bytes());
                        let has = balance(&txn.get(&to)?.0);
                        txn.set(&to, (has + sum).to_be_bytes());
                    }
                    Ok(sum)
                })
                .await;
            client.kernel.count("transact");
            client.kernel.check(is_expected(&moved));
        })
        .await;
}

const COUNTED: &str = "/counted";
/// The maximum number of children of [`COUNTED`], beside the znode itself.
const COUNTED_MAX: u64 = 2;
/// Transactions that a client makes without a pause, so that some conflict.
const BURST: u64 = 4;

pub(crate) async fn run_counted(client: Client) {
    client
        .in_sessions(async |handle| {
            let session = handle.session();
            for _ in 0..client.random.within(1..BURST) {
                let counted = session.transact_below("/", |txn| count(&client, txn)).await;
                client.kernel.count("transact by use");
                match counted {
                    // The znode to delete was an ephemeral whose session ended, and another one
                    // exists now.
                    Err(Error::Multi { error, .. }) if matches!(*error, Error::NoNode { .. }) => {}
                    counted => client.kernel.check(is_expected(&counted)),
                }
            }
        })
        .await;
}

/// Creates a znode if the quota's usage is below the maximum, and deletes one otherwise.
fn count(client: &Client, txn: &mut Transaction<'_>) -> Result<()> {
    let (limits, stats) = (Quota::limits_path(COUNTED), Quota::stats_path(COUNTED));
    client.kernel.check(check_counted(txn.snapshot()));
    if txn.exists(&stats)?.is_none() {
        let mode = CreateMode::Persistent;
        txn.create(COUNTED, b"", mode);
        txn.create(&Quota::base_path(COUNTED), b"", mode);
        txn.create(&limits, Quota::new().to_string(), mode);
        txn.create(&stats, b"", mode);
        return Ok(());
    }
    // The decision depends on this read alone.
    let (used, _) = txn.get(&stats)?;
    if Usage::parse(&used).znodes <= COUNTED_MAX {
        let mode = CreateMode::EphemeralSequential;
        txn.create(&format!("{COUNTED}/n-"), b"", mode);
    } else if let Some(name) = txn.snapshot().children(COUNTED)?.first() {
        txn.delete(&format!("{COUNTED}/{name}"));
    }
    Ok(())
}

fn check_counted(snapshot: &Snapshot) -> std::result::Result<(), Violation> {
    let znodes = snapshot.children(COUNTED).map_or(0, |names| names.len() as u64);
    require(znodes <= COUNTED_MAX, "I8 transactions", || {
        format!("at zxid {} there are {znodes} of at most {COUNTED_MAX}", snapshot.zxid())
    })
}

/// Fails on any error that a write cannot always get.
fn is_expected<T: Debug>(done: &Result<T>) -> std::result::Result<(), Violation> {
    let expected = match done {
        Ok(_) => true,
        Err(error) => {
            error.is_session_lost()
                || error.is_outcome_unknown()
                || matches!(
                    error,
                    Error::Busy { .. } | Error::Conflict { .. } | Error::DiskLow { .. }
                )
        }
    };
    require(expected, "I8 transactions", || format!("one came to {done:?}"))
}

fn balance(data: &[u8]) -> u64 {
    data.try_into().map_or(u64::MAX / 8, u64::from_be_bytes)
}

fn check_sum(snapshot: &Snapshot) -> std::result::Result<(), Violation> {
    let has = |number| snapshot.get(&format!("/account-{number}"));
    let sum: u64 =
        (0..ACCOUNTS).filter_map(|number| has(number).ok()).map(|(data, _)| balance(&data)).sum();
    require(sum == ACCOUNTS * BALANCE, "I8 transactions", || {
        format!("at zxid {} the accounts hold {sum}", snapshot.zxid())
    })
}
