//! Looking up the name of a peer on a thread of its own.

use std::sync::Arc;
use std::sync::atomic::Ordering::AcqRel;

use mio::Token;

use super::context::{HelperResult, NetworkContext, Target};
use super::failure::Failure;
use crate::addressing::names;

/// The most addresses tried for one name.
const ADDRESSES_MAX: usize = 8;

/// The most names looked up at a time.
const LOOK_UPS_MAX: usize = 128;

/// Starts to look up `address` for this attempt. The result is a [`HelperResult::Resolved`].
pub(super) fn look_up(
    context: &NetworkContext,
    target: Target,
    attempt: Token,
    address: &str,
) -> Result<(), Failure> {
    let answer_tx = context.results_tx.clone();
    let shared = Arc::clone(&context.shared);
    let (resolver, name) = (context.options.resolver.clone(), address.to_owned());
    let run = move || {
        let answer = resolver.look_up(&name);
        shared.look_ups.fetch_sub(1, AcqRel);
        let addresses = answer.map(|found| found.into_iter().take(ADDRESSES_MAX).collect());
        if answer_tx.send(HelperResult::Resolved { target, attempt, addresses }).is_ok() {
            shared.wake();
        }
    };
    let look_ups = &context.shared.look_ups;
    if look_ups.fetch_add(1, AcqRel) >= LOOK_UPS_MAX {
        look_ups.fetch_sub(1, AcqRel);
        return Err(Failure::passing("too many names are being looked up already"));
    }
    names::spawn(run).map_err(|error| {
        look_ups.fetch_sub(1, AcqRel);
        Failure::passing(format!("cannot start a thread to look up names: {error}"))
    })
}
