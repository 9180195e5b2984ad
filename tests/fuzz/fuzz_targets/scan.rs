//! `property.rs`, of whatever libFuzzer finds new ways with.

#![no_main]

#[path = "../property.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    property::check(bytes);
});
