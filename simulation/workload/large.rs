//! Multis that take several large items of a queue, so that their results are as long as results may be.

use std::rc::Rc;

use crate::machine::DATA_BYTES_MAX;
use crate::recipes::Queue;
use crate::simulation::checks::require;
use crate::simulation::client::{Client, Handle};
use crate::types::error::{Error, Result};
use crate::types::znode::OpResult;

const QUEUE: &str = "/large";
/// The most items in the queue: so many are more than any message could carry.
const MAX: usize = 6;
/// How many times as long as other clients this one waits between two operations: each takes long.
const RARER: u64 = 5;

pub(crate) async fn run(client: Client) {
    let kernel = &client.kernel;
    client
        .in_sessions(async |handle| {
            kernel.sleep(client.random.around(kernel.plan.think * RARER)).await;
            let done = use_queue(&client, handle).await;
            let expected = match &done {
                Ok(()) => true,
                Err(error) => {
                    let passes = matches!(error, Error::Busy { .. } | Error::DiskLow { .. });
                    error.is_session_lost() || error.is_outcome_unknown() || passes
                }
            };
            kernel.check(require(expected, "recipes fail as writes do", || {
                format!("one of large items came to {done:?}")
            }));
        })
        .await;
}

/// Puts some items, and takes some in one write.
async fn use_queue(client: &Client, handle: &Rc<Handle>) -> Result<()> {
    let kernel = &client.kernel;
    let (session, random) = (handle.session(), &client.random);
    let queue = Queue::new(session, QUEUE)?.max(MAX);
    queue.prepare().await?;
    for _ in 0..random.within(1..MAX as u64) {
        let data = vec![random.next() as u8; DATA_BYTES_MAX - random.index(1 << 18)];
        match session.multi().with(&queue.put_part(data)).commit().await {
            Ok(_) => kernel.count("put a large item"),
            // It is full.
            Err(Error::Multi { .. }) => break,
            Err(error) => return Err(error),
        }
    }
    let count = random.within(1..MAX as u64 + 1);
    let multi = (0..count).fold(session.multi(), |multi, _| multi.with(&queue.pop_part()));
    let results = match multi.commit().await {
        Ok(results) => results,
        Err(Error::Multi { error, .. }) => {
            let is_right = match *error {
                // Others may have taken the items meanwhile.
                Error::NoNode { .. } => true,
                Error::TooLarge { .. } => count > 2,
                _ => false,
            };
            kernel.count_event("large items not taken");
            kernel.check(require(is_right, "recipes fail as writes do", || {
                format!("{count} large items could not be taken: {error}")
            }));
            return Ok(());
        }
        Err(error) => return Err(error),
    };
    kernel.count("take large items");
    let is_taken = |result: &OpResult| matches!(result, OpResult::Taken { claim: None, .. });
    let is_right = results.len() as u64 == count && results.iter().all(is_taken);
    kernel.check(require(is_right, "recipes fail as writes do", || {
        format!("{count} large items came to {} results", results.len())
    }));
    Ok(())
}
