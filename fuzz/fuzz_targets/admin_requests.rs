#![no_main]

libfuzzer_sys::fuzz_target!(
    init: quorate::fuzzing::write_seeds(),
    |bytes: &[u8]| quorate::fuzzing::admin_requests(bytes)
);
