//! Finds causes that the simulator's log leaves out. If several causes end at the same time, the log names only one of
//! them.

use std::collections::BTreeSet;

use serde_json::Value;

use super::random_program::number;

/// Id of the legacy default stream, which is the same on each GPU.
pub(super) const DEFAULT_STREAM: u64 = 7;

/// Returns pairs of an operation and the work that waits for it because of the rules for default streams. If a default
/// stream waits for an event, it first waits for all blocking streams of its context, and they then wait for the
/// default stream. If several of these operations end at the same time, the log names only one of them as the cause of
/// the work after this wait.
pub(super) fn ties_of_default_stream(schedule: &[Value], ops: &[&Value]) -> Vec<(u64, u64)> {
    let rows = |what: &'static str| schedule.iter().filter(move |row| row["what"] == what);
    let place = |row: &Value| (number(row, "context"), number(row, "stream"));
    let blocking: BTreeSet<(u64, u64)> =
        rows("stream").filter(|row| row["blocking"] == true).map(place).collect();
    let held: Vec<&Value> =
        rows("wait").filter(|row| row["kind"] == "stream_wait" && row["stream"] == DEFAULT_STREAM).collect();
    let mut ties = Vec::new();
    for op in ops {
        let mut waits = op["waits"].as_array().unwrap().iter();
        if !waits.any(|wait| wait["why"] == "default_stream" && wait["until"] == op["begin"]) {
            continue;
        }
        let before = held.iter().filter(|wait| wait["stream_context"] == op["context"]);
        let before = before.map(|wait| number(wait, "corr")).filter(|id| *id < number(op, "corr"));
        let Some(last) = before.max() else { continue };
        let is_tied = |other: &&&Value| {
            other["context"] == op["context"]
                && other["end"] == op["begin"]
                && number(other, "corr") < last
                && blocking.contains(&place(other))
        };
        ties.extend(ops.iter().filter(is_tied).map(|other| (number(other, "op"), number(op, "op"))));
    }
    ties
}
