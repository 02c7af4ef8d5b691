//! libFuzzer's entry to the target of this name.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| uext4_hostile::targets::Target::Operate.fuzz(input));
