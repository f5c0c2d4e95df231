//! Locks that several clients acquire and hold for a while.

use std::rc::Rc;

use crate::simulation::checks::require;
use crate::simulation::client::Client;
use crate::simulation::clock::Nanos;
use crate::simulation::executor::first;
use crate::simulation::kernel::Phase;

const LOCKS: u64 = 2;

pub(crate) async fn run(client: Client) {
    if client.random.percent(50) {
        return super::lock_family::run(client).await;
    }
    let kernel = &client.kernel;
    client
        .in_sessions(async |handle| {
            let path = format!("/locks/{}", client.random.below(LOCKS));
            let Ok(lock) = handle.session().lock(&path) else { return };
            // Some give up after a while. The others must acquire it in the end.
            let patience = match client.random.below(2) {
                0 => client.random.around(kernel.plan.think * 20),
                _ => Nanos::MAX / 2,
            };
            let waits = kernel.wait("lock", client.place);
            let acquired = first(lock.acquire(), kernel.sleep(patience)).await;
            drop(waits);
            kernel.count("lock");
            let Ok(Ok(guard)) = acquired else { return };
            let guard = Rc::new(guard);
            let session = handle.session().id();
            let held = guard.is_held();
            kernel.trace.note([10, session.number(), guard.fencing_token()]);
            kernel.trace.log(format_args!(
                "node {}: session {session} has {path}, token {}, held: {held}",
                client.place,
                guard.fencing_token()
            ));
            kernel.check(kernel.checks.borrow_mut().acquired(&path, &guard, session, client.place));
            kernel.check(require(held || kernel.phase.get() != Phase::Calm, "I22 held", || {
                format!("nothing is wrong, and a guard of {path} is not held from the start")
            }));
            let mut lost = !held;
            for _ in 0..client.random.within(1..4) {
                client.think().await;
                let held = guard.is_held();
                kernel.check(require(!held || !lost, "I22 lost stays lost", || {
                    format!("a guard of {path} is held again")
                }));
                lost |= !held;
            }
            kernel.trace.log(format_args!("node {}: lets go of {path}", client.place));
        })
        .await;
}
