//! libFuzzer's entry to the target of this name.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _outcome = uext4_hostile::nbd_client::run(input);
});
