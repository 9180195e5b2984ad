//! Values as people write them: `1`, `yes`, `On`; lists of which one word is misspelt.

use std::str::FromStr;
use std::time::Duration;

use crate::error::Error;

/// What of a value cannot be used, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// All of it: the default stands.
    All(String),
    /// Some items of a list: the others are used.
    Some(String),
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self::All(error.to_string())
    }
}

/// What a switch may be set to.
pub(super) const SWITCH: &str = "0, 1";

/// `1`, `true`, `yes` and `on`, or the opposite, in any case.
pub(super) fn switch(value: &str) -> Result<bool, Refused> {
    let is = |words: [&str; 4]| words.iter().any(|word| value.eq_ignore_ascii_case(word));
    if is(["1", "true", "yes", "on"]) {
        Ok(true)
    } else if is(["0", "false", "no", "off"]) {
        Ok(false)
    } else {
        Err(Refused::All(format!("expected 0 or 1, not `{value}`")))
    }
}

/// A number of bytes: `64M`, `1G`, `500000k`, or a bare number.
pub(super) fn bytes(value: &str) -> Result<usize, Refused> {
    let (digits, unit) = match value.char_indices().last() {
        Some((at, 'k' | 'K')) => (&value[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&value[..at], 1 << 20),
        Some((at, 'g' | 'G')) => (&value[..at], 1 << 30),
        _ => (value, 1),
    };
    let number = digits.parse::<usize>().ok().and_then(|number| number.checked_mul(unit));
    number.ok_or_else(|| Refused::All(format!("expected a number of bytes such as 64M, not `{value}`")))
}

/// A number of seconds above 0, whole or not, up to a day.
pub(super) fn seconds(value: &str) -> Result<Duration, Refused> {
    let seconds = value.parse::<f64>().ok().filter(|seconds| *seconds > 0.0 && *seconds <= 86_400.0);
    let refused = || Refused::All(format!("expected a number of seconds above 0, not `{value}`"));
    seconds.map(Duration::from_secs_f64).ok_or_else(refused)
}

/// One of a few words.
pub(super) fn word<T: FromStr<Err = Error>>(value: &str) -> Result<T, Refused> {
    Ok(value.parse()?)
}

/// The items of a comma-separated list for which `understand` has something, each once, in their order; and what
/// is wrong with the others, which must be `wanted`.
pub(super) fn list<T: PartialEq>(
    value: &str,
    wanted: &str,
    understand: impl Fn(&str) -> Option<T>,
) -> (Vec<T>, Option<Refused>) {
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
        [one] => format!("{one} is none of {wanted}"),
        [first @ .., last] => format!("{} and {last} are none of {wanted}", first.join(", ")),
    };
    let refused = if items.is_empty() { Refused::All(why) } else { Refused::Some(why) };
    (items, Some(refused))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_may_have_a_unit() {
        for (text, expected) in [("24M", 24 << 20), ("1g", 1 << 30), ("7K", 7168), ("99", 99)] {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
        for text in ["", "M", "-1", "1T", "99999999999999999999G"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }
}
