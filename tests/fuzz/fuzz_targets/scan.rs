//! Checks `property.rs` with inputs that libFuzzer finds.

#![no_main]

#[path = "../property.rs"]
mod property;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    property::check(bytes);
});
