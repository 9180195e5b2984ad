//! Analyses the steps in other tools' traces: when each operation ran, and when the GPU was idle between operations.
//! Each of the analyses reads a trace only once.
//!
//! There are three analyses: the operations in a time range ([`Extract`]), the average step of an inference server with
//! its bubbles ([`Stats`]), and the latency of steps ([`DecodeSteps`]). All computations use times that are integers.
//! Only averages may have fractions of a nanosecond.

mod average;
mod decode_steps;
mod extract;
mod ops;

pub use average::{Average, Bubbles, Stats, StatsOptions, StatsReport};
pub use decode_steps::{DecodeSteps, Framework, Latencies};
pub use extract::{Extract, TimeRange};
pub use ops::{Ops, TracedOp, TracedStep};

/// Formats `text` as a field of a CSV table, in quotes if necessary.
fn json_string(text: &str) -> gpuflame_model::error::Result<Vec<u8>> {
    if text.is_empty() {
        // The CSV writer would write `""` for a line that consists of one empty field.
        return Ok(Vec::new());
    }
    let mut out = csv::WriterBuilder::new().terminator(csv::Terminator::Any(b',')).from_writer(Vec::new());
    let failed =
        |error: String| gpuflame_model::error::Error::new(gpuflame_model::error::ErrorKind::Io, error);
    out.write_record([text]).map_err(|error| failed(error.to_string()))?;
    let mut field = out.into_inner().map_err(|error| failed(error.to_string()))?;
    field.pop();
    Ok(field)
}

/// Formats a number of nanoseconds as microseconds. The text is exact, and it is the shortest form that has a decimal
/// point: `12.345`, `7.0`.
pub fn micros(nanos: i64) -> String {
    let (whole, fraction) = (nanos.unsigned_abs() / 1000, nanos.unsigned_abs() % 1000);
    let digits = format!("{fraction:03}");
    let digits = digits.trim_end_matches('0');
    let sign = if nanos < 0 { "-" } else { "" };
    format!("{sign}{whole}.{}", if digits.is_empty() { "0" } else { digits })
}

#[cfg(test)]
mod tests {
    #[test]
    fn microseconds_are_exact_and_short() {
        for (nanos, text) in [
            (0, "0.0"),
            (7_000, "7.0"),
            (12_345, "12.345"),
            (12_300, "12.3"),
            (1, "0.001"),
            (-1_500, "-1.5"),
            (1_712_195_495_505_583_173, "1712195495505583.173"),
            (i64::MIN, "-9223372036854775.808"),
        ] {
            assert_eq!(super::micros(nanos), text);
        }
    }
}
