//! Accounts between which clients move money, each time in one transaction: there is always as much
//! as there was.

use crate::error::{Error, Result};
use crate::simulation::checks::{Violation, require};
use crate::simulation::client::Client;
use crate::snapshot::Snapshot;
use crate::znode::CreateMode;

const ACCOUNTS: u64 = 4;
/// What each has at first.
const BALANCE: u64 = 100;

pub(crate) async fn run(client: Client) {
    while !client.kernel.is_stopping() {
        client.think().await;
        let Ok((handle, _opened)) = client.open(None) else { return };
        let session = handle.session();
        while !client.kernel.is_stopping() && !handle.is_over() {
            client.think().await;
            let moved = session
                .transact_async(|txn| {
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
        }
    }
}

/// Nothing but what befalls any write.
fn is_expected(moved: &Result<u64>) -> std::result::Result<(), Violation> {
    let expected = match moved {
        Ok(_) => true,
        Err(error) => {
            error.is_session_lost()
                || error.is_outcome_unknown()
                || matches!(error, Error::Busy { .. } | Error::Conflict { .. })
        }
    };
    require(expected, "I8 transactions", || format!("one came to {moved:?}"))
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
