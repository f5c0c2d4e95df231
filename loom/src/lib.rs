//! The library's `src/sync`, run through every interleaving of its threads.
//!
//! The files are the library's own, built over models of their primitives (`sync::prim`).
//! [loom](https://docs.rs/loom) runs each test once for every schedule of its threads, and for every
//! value that an atomic may show under the memory model of C11. It reports a thread that is never
//! woken as a deadlock. Threads are preempted at most [`PREEMPTIONS`] times in a run: with 3 the
//! tests take two seconds, and with 5, which passes as well, a minute.
//!
//! `./mutants` plants faults in copies of the files, and expects the tests to find each.
//!
//! Caveats. The model of a channel is a queue under a lock, so it orders the memory of its two ends
//! a little more than crossbeam promises. The tests therefore do not check that reading a channel's
//! length and `Published::announce` must be sequentially consistent. The model of `ArcSwap` orders no
//! more than a release store and an acquire load.

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
