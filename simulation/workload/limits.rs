//! A limit that clients share, and one with keys, which the clients at every second place share.

use std::time::Duration;

use crate::recipes::{KeyedRateLimiter, RateLimiter};
use crate::simulation::checks::limits::{BURST, INTERVAL};
use crate::simulation::checks::require;
use crate::simulation::client::Client;
use crate::simulation::clock::SECOND;
use crate::simulation::executor::first;
use crate::types::error::Error;

const KEYS: [&str; 2] = ["a", "b/"];

enum Limiter {
    Plain(RateLimiter),
    Keyed(KeyedRateLimiter),
}

pub(crate) async fn run(client: Client) {
    while !client.kernel.is_stopping() {
        client.think().await;
        let Ok((handle, _opened)) = client.open(None) else { return };
        let session = handle.session();
        let interval = Duration::from_nanos(INTERVAL);
        let limiter = match client.place % 2 {
            0 => RateLimiter::new(session, "/limits/shared", 1, interval)
                .and_then(|limiter| limiter.with_burst(BURST))
                .map(Limiter::Plain),
            _ => RateLimiter::keyed(session, "/limits/keys", 1, interval)
                .and_then(|limiter| limiter.with_burst(BURST))
                .map(Limiter::Keyed),
        };
        let limiter = limiter.expect("a rate and a path");
        let mut turns = KEYS.into_iter().cycle();
        while !client.kernel.is_stopping() && !handle.is_over() {
            // Mostly more than the rate, so that blocks, reservations and refusals come.
            let callers = 1 + client.random.index(3);
            for caller in 0..callers {
                if caller == 0 {
                    client.think().await;
                }
                if let Err(error) = acquire(&client, &limiter, turns.next()).await {
                    let expected = error.is_session_lost()
                        || error.is_outcome_unknown()
                        || matches!(error, Error::Busy { .. } | Error::DiskLow { .. });
                    client.kernel.check(require(expected, "no wonder", || {
                        format!("a limiter came to {error}")
                    }));
                    break;
                }
            }
        }
    }
}

async fn acquire(
    client: &Client,
    limiter: &Limiter,
    key: Option<&'static str>,
) -> Result<(), Error> {
    let kernel = &client.kernel;
    let permits = 1 + client.random.index(3) as u32;
    let key = key.filter(|_| matches!(limiter, Limiter::Keyed(_)));
    let taking = |by| async move {
        match limiter {
            Limiter::Plain(limiter) => limiter.take(permits, by).await,
            Limiter::Keyed(limiter) => limiter.take(key.unwrap_or_default(), permits, by).await,
        }
    };
    let now = match limiter {
        Limiter::Plain(limiter) => limiter.session(),
        Limiter::Keyed(limiter) => limiter.session(),
    };
    let now = now.shared().clock.now();
    let by = match client.random.below(3) {
        0 => Some(now),
        1 => Some(now + Duration::from_nanos(client.random.below(4 * SECOND))),
        _ => None,
    };
    let waits = kernel.wait("permits", client.place);
    // Some callers give up.
    let patience = match client.random.percent(80) {
        true => u64::MAX / 2,
        false => client.random.around(kernel.plan.think),
    };
    let taken = first(taking(by), kernel.sleep(patience)).await;
    drop(waits);
    let now = kernel.now();
    let mut checks = kernel.checks.borrow_mut();
    let log_time = checks.oracle.log_time();
    checks.limits.sees(log_time.saturating_mul(1_000_000), now);
    let Ok(taken) = taken else { return Ok(()) };
    if let Some(grant) = taken? {
        kernel.count("permits used");
        let now = if planted!(PermitsKept) { now + 60 * SECOND } else { now };
        let mut checked = checks.limits.used(key, (grant.at, permits), now);
        if planted!(PermitTwice) && checked.is_ok() {
            checked = checks.limits.used(key, (grant.at, permits), now);
        }
        drop(checks);
        kernel.check(checked);
    }
    Ok(())
}
