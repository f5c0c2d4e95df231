//! Seeds that have found something. What a seed does changes with the simulator,
//! so these are no tests of the faults they found; they are good places to look.

/// Seeds, each with what it once found.
pub const FOUND: &[(u64, &str)] = &[
    (99, "a write done in what a snapshot stands for was answered as never done"),
    (104, "a lease that had run out was renewed: a lock was held again"),
    (135, "the same"),
    (188, "the same"),
];
