#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| quorate::fuzzing::zookeeper_conversations(bytes));
