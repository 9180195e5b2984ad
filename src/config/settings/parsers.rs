//! Parses the text values of settings. Users may write the same value in several ways, such as `1`, `yes` or `On`.
//! Users may also misspell items of a list.

use std::ops::Range;
use std::str::FromStr;
use std::time::Duration;

use gpuflame_model::error::Error;

/// The part of a setting's value that is invalid, and the reason why it is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InvalidValue {
    /// The entire value is invalid, so the default applies. The text of this variant states the reason.
    All(String),
    /// Some items of a list are invalid; the other items apply. The text of this variant states the reason.
    Some(String),
}

impl From<Error> for InvalidValue {
    fn from(error: Error) -> Self {
        Self::All(error.to_string())
    }
}

/// Valid values of a switch, as shown to users.
pub(super) const SWITCH_VALUES: &str = "0, 1";

/// Parses a switch, case-insensitively. `1`, `true`, `yes` and `on` are true; `0`, `false`, `no` and `off` are false.
pub(super) fn parse_switch(value: &str) -> Result<bool, InvalidValue> {
    let is = |words: [&str; 4]| words.iter().any(|word| value.eq_ignore_ascii_case(word));
    if is(["1", "true", "yes", "on"]) {
        Ok(true)
    } else if is(["0", "false", "no", "off"]) {
        Ok(false)
    } else {
        Err(InvalidValue::All(format!("expected 0 or 1, not `{value}`")))
    }
}

/// Parses a number of bytes, with or without a unit, such as `64M`, `1G`, `500000k` or `4096`.
pub(super) fn parse_bytes(value: &str) -> Result<usize, InvalidValue> {
    let (digits, unit) = match value.char_indices().last() {
        Some((at, 'k' | 'K')) => (&value[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&value[..at], 1 << 20),
        Some((at, 'g' | 'G')) => (&value[..at], 1 << 30),
        _ => (value, 1),
    };
    let number = digits.parse::<usize>().ok().and_then(|number| number.checked_mul(unit));
    number.ok_or_else(|| InvalidValue::All(format!("expected a number of bytes such as 64M, not `{value}`")))
}

/// Parses a number of seconds greater than 0. The number may be fractional.
pub(super) fn parse_seconds(value: &str) -> Result<Duration, InvalidValue> {
    let found = duration(value).filter(|duration| !duration.is_zero());
    found.ok_or_else(|| invalid_seconds("above 0", value))
}

/// Parses a number of seconds, which may be fractional or 0.
pub(super) fn parse_seconds_or_zero(value: &str) -> Result<Duration, InvalidValue> {
    duration(value).ok_or_else(|| invalid_seconds("of 0 or more", value))
}

/// Maximum duration in seconds: a year, because servers run for weeks.
const MAX_DURATION_SECONDS: f64 = 366.0 * 86_400.0;

fn duration(value: &str) -> Option<Duration> {
    let seconds = value.parse::<f64>().ok().filter(|seconds| (0.0..=MAX_DURATION_SECONDS).contains(seconds));
    seconds.map(Duration::from_secs_f64)
}

fn invalid_seconds(min: &str, value: &str) -> InvalidValue {
    InvalidValue::All(format!("expected a number of seconds {min}, a year at most, not `{value}`"))
}

/// Parses an integer of at least `min`.
pub(super) fn parse_number(value: &str, min: u64) -> Result<u64, InvalidValue> {
    let number = value.parse().ok().filter(|number| *number >= min);
    number.ok_or_else(|| InvalidValue::All(format!("expected a whole number, {min} or more, not `{value}`")))
}

/// Parses `FROM..TO`. The parsed range excludes `TO`. `FROM` and `TO` may each be omitted.
pub(super) fn parse_range(value: &str) -> Result<Range<u64>, InvalidValue> {
    let number = |text: &str, otherwise| if text.is_empty() { Some(otherwise) } else { text.parse().ok() };
    let range = value.split_once("..").and_then(|(from, to)| Some(number(from, 0)?..number(to, u64::MAX)?));
    let refused =
        || InvalidValue::All(format!("expected FROM..TO with FROM below TO, such as 10..12, not `{value}`"));
    range.filter(|range| !range.is_empty()).ok_or_else(refused)
}

/// Parses file permissions. Permissions are valid if the owner may read and write, and no user may execute the file.
pub(super) fn parse_mode(value: &str) -> Result<u32, InvalidValue> {
    let mode = u32::from_str_radix(value, 8).ok().filter(|mode| mode & 0o600 == 0o600 && mode & !0o666 == 0);
    mode.ok_or_else(|| {
        InvalidValue::All(format!("expected permissions from 600 to 666, as for chmod, not `{value}`"))
    })
}

/// Parses the name of a signal that is reserved for users: SIGUSR1 or SIGUSR2. The prefix `SIG` may be omitted.
pub(super) fn parse_signal(value: &str) -> Result<i32, InvalidValue> {
    let value = value.to_ascii_uppercase();
    match value.strip_prefix("SIG").unwrap_or(&value) {
        "USR1" => Ok(libc::SIGUSR1),
        "USR2" => Ok(libc::SIGUSR2),
        _ => Err(InvalidValue::All(format!("`{value}` is neither USR1 nor USR2"))),
    }
}

/// Parses a word that denotes a value of the type `T`.
pub(super) fn parse_word<T: FromStr<Err = Error>>(value: &str) -> Result<T, InvalidValue> {
    Ok(value.parse()?)
}

/// Parses a comma-separated list. Returns the items that `understand` accepts, in order and without duplicates. Also
/// returns the reason why the other items are invalid. The reason contains `wanted`, a list of the valid items.
pub(super) fn parse_list<T: PartialEq>(
    value: &str,
    wanted: &str,
    understand: impl Fn(&str) -> Option<T>,
) -> (Vec<T>, Option<InvalidValue>) {
    let (mut items, mut strange) = (Vec::new(), Vec::new());
    for text in value.split(',').map(str::trim).filter(|text| !text.is_empty()) {
        match understand(text) {
            Some(item) if items.contains(&item) => {}
            Some(item) => items.push(item),
            None => strange.push(format!("`{text}`")),
        }
    }
    let why = match &strange[..] {
        [] => return (items, None),
        [one] => format!("{one} is not one of {wanted}"),
        [first @ .., last] => format!("{} and {last} are not among {wanted}", first.join(", ")),
    };
    let refused = if items.is_empty() { InvalidValue::All(why) } else { InvalidValue::Some(why) };
    (items, Some(refused))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_in_seconds_may_be_fractional_and_span_weeks() {
        let two_weeks = Duration::from_secs(14 * 86_400);
        for (text, expected) in [("0.5", Duration::from_millis(500)), ("1209600", two_weeks)] {
            assert_eq!(
                [parse_seconds(text), parse_seconds_or_zero(text)],
                [Ok(expected), Ok(expected)],
                "{text}"
            );
        }
        for text in ["0", "0.0", "-0"] {
            assert!(parse_seconds(text).is_err(), "{text}");
            assert_eq!(parse_seconds_or_zero(text), Ok(Duration::ZERO), "{text}");
        }
        for text in ["", "-1", "nan", "inf", "1e9", "soon"] {
            assert!(parse_seconds(text).is_err() && parse_seconds_or_zero(text).is_err(), "{text}");
        }
    }

    #[test]
    fn two_numbers_form_a_nonempty_range() {
        for (text, expected) in [("10..12", 10..12), ("..3", 0..3), ("7..", 7..u64::MAX), ("..", 0..u64::MAX)]
        {
            assert_eq!(parse_range(text), Ok(expected), "{text}");
        }
        for text in ["", "5", "5..5", "6..5", "a..b", "1...2", "-1..2"] {
            assert!(parse_range(text).is_err(), "{text}");
        }
    }

    #[test]
    fn bytes_may_have_a_unit() {
        for (text, expected) in [("24M", 24 << 20), ("1g", 1 << 30), ("7K", 7168), ("99", 99)] {
            assert_eq!(parse_bytes(text), Ok(expected), "{text}");
        }
        for text in ["", "M", "-1", "1T", "99999999999999999999G"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }
}
