//! Properties that must hold for any bytes. The scanner neither panics nor hangs, and returns the same result with two
//! buffer sizes. From every input that is valid JSON, the scanner reads at least as many trace events as `serde_json`.

use gpuflame_traces::import::json::{JsonOptions, read};
use gpuflame_traces::import::{Event, Sink};
use serde_json::Value;

#[derive(Default, PartialEq)]
struct Lines(Vec<String>);

impl Sink for Lines {
    fn event(&mut self, event: &Event<'_>) {
        self.0.push(format!("{event:?}"));
    }
}

/// Checks the properties. Returns whether `serde_json` accepted the bytes as a trace.
pub(crate) fn check(bytes: &[u8]) -> bool {
    let scan = |buffer| {
        let mut lines = Lines::default();
        let seen = read(bytes, JsonOptions { buffer, accept_cut: false }, &mut lines);
        (seen.map_err(|error| error.to_string()), lines)
    };
    let shown = || String::from_utf8_lossy(bytes).into_owned();
    let (small, large) = (scan(64), scan(1 << 16));
    assert_eq!(small.0, large.0, "{}", shown());
    assert!(small.1 == large.1, "{}", shown());
    let Ok(value) = serde_json::from_slice::<Value>(bytes) else { return false };
    let events = value.as_array().or_else(|| value["traceEvents"].as_array());
    let is_event = |event: &Value| event.is_object() || event.is_null();
    let Some(events) = events.filter(|events| events.iter().all(is_event)) else { return false };
    // If a trace contains two `traceEvents` arrays, the scanner reads both arrays, but serde keeps only the last one.
    let seen = small.0.unwrap_or_else(|error| panic!("{error}: {}", shown()));
    assert!(seen.events >= events.len() as u64, "{}", shown());
    true
}
