//! The workloads of the clients, one file for each area.
//!
//! To add one, write an `async fn` over [`Client`] that runs until [`Kernel::is_stopping`], and add
//! an arm to [`start`].

mod accounts;
mod consumers;
mod election;
mod fleet;
mod foreign;
mod large;
mod limits;
mod lock_family;
mod locks;
mod partitions;
mod queues;
mod registers;
mod sessions;
mod state;
pub(crate) mod steady;
mod timers;
mod watches;
mod writers;
mod znodes;

use std::rc::Rc;

use super::client::Client;
use super::kernel::Kernel;
use super::random::Random;
use crate::api::coordinator::Coordinator;

/// Starts the clients of a process that has just started.
pub(crate) fn start(kernel: &Rc<Kernel>, place: usize, coordinator: &Coordinator) {
    if let Some(load) = &kernel.plan.load {
        return writers::start(&new_client(kernel, place, coordinator), load);
    }
    let (random, tasks) = match kernel.plan.is_client(place) {
        true => (&kernel.client_instance_random, kernel.plan.client_instance_tasks),
        false => (&kernel.random, kernel.plan.clients),
    };
    for _ in 0..tasks {
        let client = new_client(kernel, place, coordinator);
        if kernel.plan.fleet {
            kernel.executor.spawn(place, fleet::run(client));
            continue;
        }
        match random.below(13) {
            0..3 => kernel.executor.spawn(place, znodes::run(client)),
            3..5 => kernel.executor.spawn(place, watches::run(client)),
            5..7 => kernel.executor.spawn(place, registers::run(client)),
            7..9 => kernel.executor.spawn(place, locks::run(client)),
            9 => kernel.executor.spawn(place, accounts::run(client)),
            10 => kernel.executor.spawn(place, sessions::run(client)),
            11 => kernel.executor.spawn(place, state::run(client)),
            _ => kernel.executor.spawn(place, election::run(client)),
        }
    }
    if let Some(seed) = kernel.plan.consumers
        && !kernel.plan.is_client(place)
    {
        // A random source of its own, so that the choices of the other clients stay the same.
        let random = Rc::new(Random::new(seed ^ kernel.now()).fork(place as u64));
        let (kernel, coordinator) = (Rc::clone(kernel), coordinator.clone());
        let client = Client { kernel, place, coordinator, random };
        client.kernel.executor.spawn(place, consumers::run(client.clone()));
    }
    if kernel.plan.rolls.is_some_and(|rolls| rolls.is_planned()) && !kernel.plan.is_client(place) {
        kernel.executor.spawn(place, steady::run(new_client(kernel, place, coordinator)));
    }
    if kernel.plan.queues {
        let client = new_client(kernel, place, coordinator);
        kernel.executor.spawn(place, queues::run(client));
    }
    // One member, and one client without a replica, whose results go through another message.
    if kernel.plan.large && (place == 0 || place == kernel.plan.places) {
        kernel.executor.spawn(place, large::run(new_client(kernel, place, coordinator)));
    }
    if kernel.plan.takers {
        let client = new_client(kernel, place, coordinator);
        kernel.executor.spawn(place, lock_family::run_taken(client));
    }
    if kernel.plan.foreign {
        for _ in 0..2 {
            kernel.executor.spawn(place, foreign::run(new_client(kernel, place, coordinator)));
        }
    }
    if kernel.plan.limits {
        for _ in 0..2 {
            kernel.executor.spawn(place, limits::run(new_client(kernel, place, coordinator)));
        }
    }
    if kernel.plan.timers {
        for _ in 0..2 {
            kernel.executor.spawn(place, timers::run(new_client(kernel, place, coordinator)));
        }
    }
    if kernel.plan.partitions {
        for _ in 0..2 {
            kernel.executor.spawn(place, partitions::run(new_client(kernel, place, coordinator)));
        }
    }
    if kernel.plan.candidates {
        for _ in 0..2 {
            let client = new_client(kernel, place, coordinator);
            kernel.executor.spawn(place, election::run_candidates(client));
        }
    }
    if kernel.plan.usage {
        let client = new_client(kernel, place, coordinator);
        kernel.executor.spawn(place, accounts::run_counted(client));
    }
}

pub(crate) fn new_client(kernel: &Rc<Kernel>, place: usize, coordinator: &Coordinator) -> Client {
    let is_client = kernel.plan.is_client(place);
    let random = if is_client { &kernel.client_instance_random } else { &kernel.random };
    Client {
        kernel: Rc::clone(kernel),
        place,
        coordinator: coordinator.clone(),
        random: Rc::new(random.fork(place as u64)),
    }
}

/// One of the paths that clients share.
fn shared_path(kernel: &Kernel, random: &Random) -> String {
    let number = random.index(kernel.plan.paths);
    // A few directories with a few znodes each.
    match number % 4 {
        0 => format!("/d{}", number / 4),
        below => format!("/d{}/{below}", number / 4),
    }
}
