//! Any bytes: the scanner neither panics nor hangs, gives the same with two sizes of buffer, and reads as
//! many events as `serde_json` does of all that is JSON.

#![no_main]

use gpuflame::import::json::{Reading, read};
use gpuflame::import::{Event, Sink};

#[derive(Default, PartialEq)]
struct Lines(Vec<String>);

impl Sink for Lines {
    fn event(&mut self, event: &Event<'_>) {
        self.0.push(format!("{event:?}"));
    }
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let scan = |buffer| {
        let mut lines = Lines::default();
        let seen = read(bytes, Reading { buffer, accept_cut: false }, &mut lines);
        (seen.map_err(|error| error.to_string()), lines)
    };
    let (small, large) = (scan(64), scan(1 << 16));
    assert!(small == large);
    let Ok(value) = serde_json::from_slice::<serde_json::Value>(bytes) else { return };
    let events = value.as_array().or_else(|| value["traceEvents"].as_array());
    if let Some(events) = events.filter(|events| events.iter().all(|event| event.is_object() || event.is_null())) {
        // Two arrays of that name are read both, of which serde keeps the last.
        assert!(small.0.is_ok_and(|seen| seen.events >= events.len() as u64));
    }
});
