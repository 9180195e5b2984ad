//! Writes the operations in a time range as a table, sorted by start time.

use std::io::Write;
use std::str::FromStr;

use super::ops::{Ops, TracedOp};
use crate::import::json_micros;
use gpuflame_model::error::{Error, ErrorKind, Result};

/// A time range in ns on the clock of the trace. Both ends belong to the time range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeRange {
    /// First nanosecond that belongs to the range.
    pub first: i64,
    /// Last nanosecond that belongs to the range.
    pub last: i64,
}

impl FromStr for TimeRange {
    type Err = Error;

    /// Parses `START,END`. START and END are in microseconds, with any number of digits. START or END may be omitted,
    /// infinite, or beyond all possible times; the range then has no limit at that end.
    fn from_str(text: &str) -> Result<Self> {
        let invalid = |what: &str| {
            let message =
                format!("Invalid time range format. Expected: start,end (microseconds); `{text}` {what}");
            Error::new(ErrorKind::Setting, message)
        };
        let parts: Vec<&str> = text.split(',').map(str::trim).collect();
        let [first, last] = parts[..] else {
            return Err(invalid("is not two numbers separated by a comma"));
        };
        let number = |text: &str, open: i64| {
            let number =
                if text.is_empty() { Some(open) } else { json_micros(text).or_else(|| saturate(text)) };
            number.ok_or_else(|| invalid(&format!("has `{text}`, which is not a number")))
        };
        let range = Self { first: number(first, i64::MIN)?, last: number(last, i64::MAX)? };
        if range.first > range.last { Err(invalid("ends before it starts")) } else { Ok(range) }
    }
}

/// A number beyond all possible times is converted to the first or last possible time.
fn saturate(text: &str) -> Option<i64> {
    let number: f64 = text.parse().ok()?;
    match number {
        _ if number * 1000.0 >= i64::MAX as f64 => Some(i64::MAX),
        _ if number * 1000.0 <= i64::MIN as f64 => Some(i64::MIN),
        _ => None,
    }
}

/// A table of the operations in a time range.
#[derive(Clone, Debug)]
pub struct Extract {
    ops: Ops,
}

impl Extract {
    /// Creates the table from the operations in a time range. The operations are sorted by start time. Operations that
    /// start at the same time stay in file order.
    pub fn new(mut ops: Ops) -> Self {
        ops.ops.sort_by_key(|op| op.start);
        Self { ops }
    }

    /// Returns the operations, sorted by start time.
    pub fn ops(&self) -> &[TracedOp] {
        &self.ops.ops
    }

    /// Returns the name of an operation.
    pub fn name(&self, op: &TracedOp) -> &str {
        self.ops.names.text(op.name)
    }

    /// Writes the table as CSV. `name` converts the name of an operation to the name that the table shows. If `compat`
    /// is true, each duration is computed as the difference of two `f64` numbers, whose last digits are inexact.
    ///
    /// # Errors
    /// Returns any error from writing to `out`.
    pub fn write(&self, compat: bool, name: impl Fn(&str) -> String, out: &mut impl Write) -> Result<()> {
        writeln!(out, "kernel_name,start_time_us,end_time_us,duration_us")?;
        if compat { self.write_floats(name, out) } else { self.write_exact(name, out) }
    }

    fn write_exact(&self, name: impl Fn(&str) -> String, out: &mut impl Write) -> Result<()> {
        let json_string: Vec<Vec<u8>> = (0..self.ops.names.len() as u32)
            .map(|number| super::json_string(&name(self.ops.names.text(number))))
            .collect::<Result<_>>()?;
        let mut line = Vec::new();
        for op in self.ops() {
            line.clear();
            line.extend_from_slice(&json_string[op.name as usize]);
            push_micros(op.start, &mut line);
            push_micros(op.end, &mut line);
            push_micros(op.end.saturating_sub(op.start), &mut line);
            line.push(b'\n');
            out.write_all(&line)?;
        }
        Ok(())
    }

    fn write_floats(&self, name: impl Fn(&str) -> String, out: &mut impl Write) -> Result<()> {
        let mut out = csv::Writer::from_writer(out);
        for op in self.ops() {
            let [start, end] = [op.start, op.end].map(|nanos| nanos as f64 / 1000.0);
            out.serialize((name(self.name(op)), start, end, end - start))
                .map_err(|error| Error::new(ErrorKind::Io, error.to_string()))?;
        }
        Ok(out.flush()?)
    }
}

/// Appends the text that [`super::micros`] would return. This function allocates no string, because there may be
/// millions of operations.
fn push_micros(nanos: i64, line: &mut Vec<u8>) {
    let mut digits = *b"00000000000000000000.000";
    let (mut whole, fraction) = (nanos.unsigned_abs() / 1000, (nanos.unsigned_abs() % 1000) as u16);
    for (place, value) in [(21, fraction / 100), (22, fraction / 10 % 10), (23, fraction % 10)] {
        digits[place] += value as u8;
    }
    let mut first = 20;
    while first == 20 || whole > 0 {
        first -= 1;
        digits[first] = b'0' + (whole % 10) as u8;
        whole /= 10;
    }
    let zeros = digits[22..].iter().rev().take_while(|&&digit| digit == b'0').count();
    line.extend_from_slice(if nanos < 0 { b",-" } else { b"," });
    line.extend_from_slice(&digits[first..24 - zeros]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn push_micros_writes_the_same_text_as_micros() {
        for nanos in [0, 1, 10, 100, 1000, 12_345, 120_300, -1, -1_500, i64::MAX, i64::MIN] {
            let mut line = Vec::new();
            push_micros(nanos, &mut line);
            assert_eq!(String::from_utf8(line).unwrap(), format!(",{}", crate::steps::micros(nanos)));
        }
    }

    #[test]
    fn a_time_range_is_two_numbers_of_microseconds() {
        assert_eq!("1,2".parse::<TimeRange>().unwrap(), TimeRange { first: 1000, last: 2000 });
        let range = "2684054.000, 2687705.2505".parse::<TimeRange>().unwrap();
        assert_eq!(range, TimeRange { first: 2_684_054_000, last: 2_687_705_251 });
        for (text, first, last) in [
            ("0,99999999999999999999", 0, i64::MAX),
            ("0,9223372036854775.807", 0, i64::MAX),
            ("0,9223372036854775807", 0, i64::MAX),
            ("1,1e300", 1000, i64::MAX),
            ("1,inf", 1000, i64::MAX),
            ("1,", 1000, i64::MAX),
            (",2", i64::MIN, 2000),
            ("-1e30,2", i64::MIN, 2000),
        ] {
            assert_eq!(text.parse::<TimeRange>().unwrap(), TimeRange { first, last }, "{text}");
        }
        for (text, what) in
            [("1", "comma"), ("1,2,3", "comma"), ("1,x", "`x`"), ("1,NaN", "`NaN`"), ("3,2", "ends before")]
        {
            let message = text.parse::<TimeRange>().unwrap_err().to_string();
            assert!(message.starts_with("Invalid time range format. Expected: start,end"), "{message}");
            assert!(message.contains(what), "{message}");
        }
    }
}
