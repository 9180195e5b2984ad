//! Parses times on the command line, such as `10ms`. All verbs parse times with this module, so all verbs accept the
//! same units.

use super::console::usage_error;
use gpuflame_model::error::Result;

/// Units of time, each with its length in nanoseconds. A unit such as `ms` is listed before `s`, because `ms` ends in
/// `s`, so `s` would match too.
const UNITS: [(&str, i64); 7] = [
    ("ns", 1),
    ("us", MICRO),
    ("µs", MICRO),
    ("ms", MILLI),
    ("min", 60 * SECOND),
    ("s", SECOND),
    ("h", 3600 * SECOND),
];
const MICRO: i64 = 1_000;
const MILLI: i64 = 1_000_000;
/// Number of nanoseconds in a second.
pub(super) const SECOND: i64 = 1_000_000_000;

/// Parses a time of 0 or more. A number without a unit is in microseconds. Returns nanoseconds.
pub(super) fn parse_micros(text: &str) -> Result<i64> {
    parse_time(text, MICRO, false)
}

/// Parses a time of 0 or more. A number without a unit is in milliseconds. Returns nanoseconds.
pub(super) fn parse_millis(text: &str) -> Result<i64> {
    parse_time(text, MILLI, false)
}

/// Parses a time of 0 or more. A number without a unit is in seconds. Returns nanoseconds.
pub(super) fn parse_seconds(text: &str) -> Result<i64> {
    parse_time(text, SECOND, false)
}

/// Parses a time that may be negative. A number without a unit is in microseconds. Returns nanoseconds.
pub(super) fn parse_offset(text: &str) -> Result<i64> {
    parse_time(text, MICRO, true)
}

/// Parses a time with a unit. Returns the time as a decimal number of seconds, because `libgpuflame.so` reads times in
/// this form. If the text has no unit, it is returned unchanged.
///
/// # Errors
/// Returns `Setting` if a text with a unit is not a valid time.
pub(super) fn to_seconds(text: &str) -> Result<String> {
    if split_unit(text.trim()).1.is_none() {
        return Ok(text.to_owned());
    }
    let nanos = parse_time(text, SECOND, false)?;
    let seconds = format!("{}.{:09}", nanos / SECOND, nanos % SECOND);
    Ok(seconds.trim_end_matches('0').trim_end_matches('.').to_owned())
}

/// Splits a text into a number and a unit. Returns the number, and the unit's length in nanoseconds; `None` if there is
/// no unit.
fn split_unit(text: &str) -> (&str, Option<i64>) {
    let split = UNITS.iter().find_map(|(unit, nanos)| {
        let number = text.strip_suffix(unit)?.trim_end();
        number.ends_with(|last: char| last.is_ascii_digit() || last == '.').then_some((number, Some(*nanos)))
    });
    split.unwrap_or((text, None))
}

/// Parses a time and returns it in ns. A number without a unit is multiplied by `unitless` nanoseconds.
fn parse_time(text: &str, unitless: i64, may_be_negative: bool) -> Result<i64> {
    let (number, unit) = split_unit(text.trim());
    let nanos = parse_decimal(number, unit.unwrap_or(unitless));
    nanos.filter(|nanos| may_be_negative || *nanos >= 0).ok_or_else(|| {
        usage_error(format!(
            "expected a time such as 10ms, 1.5s or 200us (ns, us, ms, s, min, h), not `{text}`"
        ))
    })
}

/// Multiplies a decimal number by `unit`, and rounds the product to an integer. For numbers without an exponent, the
/// product is exact before rounding. Numbers with an exponent have the precision of `f64`.
fn parse_decimal(number: &str, unit: i64) -> Option<i64> {
    let unsigned = number.strip_prefix(['-', '+']).unwrap_or(number);
    let is_plain = unsigned.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if !is_plain {
        let value = number.parse::<f64>().ok()? * unit as f64;
        return (value.abs() < i64::MAX as f64).then(|| value.round() as i64);
    }
    let (whole, fraction) = unsigned.split_once('.').unwrap_or((unsigned, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let whole: i64 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    // Decimals after the thirteenth can be ignored, because in the largest unit, an hour, even the twelfth decimal is
    // less than a nanosecond.
    let (mut part, mut scale) = (0_i128, 1_i128);
    for digit in fraction.bytes().take(13) {
        part = part * 10 + i128::from(digit - b'0');
        scale *= 10;
    }
    let unit = i128::from(unit);
    let nanos = i128::from(whole) * unit + (part * unit * 2 + scale) / (scale * 2);
    let nanos = i64::try_from(nanos).ok()?;
    Some(if number.starts_with('-') { -nanos } else { nanos })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_a_unit_or_the_unit_of_its_option() {
        for (text, micros, millis) in [
            ("10ms", 10_000_000, 10_000_000),
            ("1.5s", 1_500_000_000, 1_500_000_000),
            ("200us", 200_000, 200_000),
            ("200 µs", 200_000, 200_000),
            ("7ns", 7, 7),
            ("2min", 120_000_000_000, 120_000_000_000),
            ("0.5h", 1_800_000_000_000, 1_800_000_000_000),
            ("50", 50_000, 50_000_000),
            ("0.001", 1, 1_000),
            (".5", 500, 500_000),
            ("1e3", 1_000_000, 1_000_000_000),
            ("0.0006", 1, 600),
        ] {
            let found = (parse_micros(text).unwrap(), parse_millis(text).unwrap());
            assert_eq!(found, (micros, millis), "{text}");
        }
        // An `f64` could not represent all digits of this number.
        assert_eq!(parse_micros("1712345678901234.567").unwrap(), 1_712_345_678_901_234_567);
        for text in [
            "",
            ".",
            "ms",
            "1 2ms",
            "1.2.3",
            "nan",
            "inf",
            "infs",
            "-1ms",
            "9e99",
            "99999999999999999999",
            "5x",
        ] {
            let why = parse_millis(text).unwrap_err().to_string();
            assert!(why.contains("10ms, 1.5s or 200us") && why.contains(&format!("`{text}`")), "{why}");
        }
        assert_eq!(parse_offset("-1.5ms").unwrap(), -1_500_000);
        assert_eq!(parse_offset("-2").unwrap(), -2_000);
    }

    #[test]
    fn the_library_gets_seconds() {
        for (text, seconds) in [
            ("500ms", "0.5"),
            ("2min", "120"),
            ("3s", "3"),
            ("1us", "0.000001"),
            ("0s", "0"),
            ("5", "5"),
            ("soon", "soon"),
        ] {
            assert_eq!(to_seconds(text).unwrap(), seconds);
        }
        assert!(to_seconds("-5ms").is_err());
    }
}
