#![no_main]

use std::alloc::System;

use cap::Cap;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

// An allocation above the limit fails, which ends the process: a client's request must cost no more
// memory than a small multiple of its length. (The target reads the request twice and holds both.)
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let limit = 64 * bytes.len() + 4096;
    ALLOCATOR.set_limit(ALLOCATOR.allocated() + limit).expect("the limit is above what is in use");
    quorate::fuzzing::zookeeper_requests(bytes);
    ALLOCATOR.set_limit(usize::MAX).expect("no limit");
});
