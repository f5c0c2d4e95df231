//! The library's `src/sync`, run through every order in which its threads can take their turns.
//!
//! The files are the library's own, built over models of what they are made of (`sync::prim`).
//! [loom](https://docs.rs/loom) runs each test once for every schedule of its threads, and for every
//! value that an atomic may show under the memory model of C11; a thread that is never woken is a
//! deadlock, which it reports. Threads are preempted [`PREEMPTIONS`] times at most in a run: with 3
//! that takes two seconds, and with 5, which passes as well, a minute.
//!
//! `./mutants` plants faults in copies of the files and expects each to be found.
//!
//! Caveats. The model of a channel is a queue under a lock, so it orders the memory of its two ends
//! a little more than crossbeam's promises to: that a look at its length and `Published::announce`
//! are sequentially consistent is not seen here. That of `ArcSwap` orders no more than a release
//! store and an acquire load.

#![cfg(test)]

mod sync;
mod types;

mod gap;
mod published;
mod slot;
mod states;
mod wakers;

const PREEMPTIONS: usize = 3;

/// Runs a test in every schedule.
fn every_schedule(test: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(test);
}
