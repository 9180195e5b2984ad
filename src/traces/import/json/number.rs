//! Parses decimal numbers into integers. A time is never converted to a floating-point number, because times are around
//! 1.7e15 microseconds, where neighbouring `f64` values are 250 ns apart.

/// Largest whole number of microseconds that, with any fraction added, fits into an `i64` of nanoseconds.
const MAX_MICROS: i64 = i64::MAX / 1000 - 1;

/// Parses a decimal number of microseconds into nanoseconds, rounded half away from zero. The flag in the result is
/// true if the number has digits after the decimal point. Returns `None` if the text is not a number, or if the number
/// is too large.
#[inline]
pub(crate) fn parse_micros(text: &[u8]) -> Option<(i64, bool)> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let whole = count_digits(digits);
    let mut value = if whole <= 16 { parse_digits(&digits[..whole]) as i64 } else { i64::MAX };
    if whole == 0 || value > MAX_MICROS {
        return parse_general(text, 3).map(|nanos| (nanos, digits.get(whole) == Some(&b'.')));
    }
    let rest = &digits[whole..];
    let fraction = match rest {
        [] => false,
        [b'.', fraction @ ..] => {
            let mut behind = [0_i64; 4];
            for (at, &byte) in fraction.iter().enumerate() {
                let digit = byte.wrapping_sub(b'0');
                if digit > 9 {
                    return parse_general(text, 3).map(|nanos| (nanos, true));
                }
                if at < 4 {
                    behind[at] = i64::from(digit);
                }
            }
            if fraction.is_empty() {
                return None;
            }
            let [a, b, c, d] = behind;
            value = value * 1000 + a * 100 + b * 10 + c + i64::from(d >= 5);
            true
        }
        _ => return parse_general(text, 3).map(|nanos| (nanos, false)),
    };
    if !fraction {
        value *= 1000;
    }
    Some((if negative { -value } else { value }, fraction))
}

/// Parses a whole number. A fraction that consists only of zeros (as in `7.0`) is accepted, because some writers append
/// such a fraction.
#[inline]
pub(crate) fn parse_integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    if digits.is_empty() || digits.len() > 18 || count_digits(digits) < digits.len() {
        return parse_general(text, 0).filter(|_| has_zero_fraction(text));
    }
    let value = parse_digits(digits) as i64;
    Some(if negative { -value } else { value })
}

/// Parses a whole number that is not negative.
#[inline]
pub(crate) fn parse_unsigned(text: &[u8]) -> Option<u64> {
    parse_integer(text).and_then(|value| u64::try_from(value).ok())
}

/// Returns the number of digits at the beginning of `text`.
#[inline]
fn count_digits(text: &[u8]) -> usize {
    let mut count = 0;
    while let Some(eight) = text[count..].first_chunk()
        && are_digits(*eight)
    {
        count += 8;
    }
    count + text[count..].iter().take_while(|byte| byte.is_ascii_digit()).count()
}

/// Returns the value of a number with at most 19 digits. The digits are converted in groups of eight. If the digits
/// were converted one after another, each digit would have to wait for the product of the digits before it.
#[inline]
fn parse_digits(mut digits: &[u8]) -> u64 {
    let mut value = 0;
    while let Some((eight, rest)) = digits.split_first_chunk() {
        value = value * 100_000_000 + parse_eight_digits(*eight);
        digits = rest;
    }
    digits.iter().fold(value, |value, digit| value * 10 + u64::from(digit - b'0'))
}

/// Returns the value of a number with eight digits. The digits are combined in pairs to two-digit numbers, then to
/// four-digit numbers, and finally to one number.
#[inline]
fn parse_eight_digits(digits: [u8; 8]) -> u64 {
    let ones = u64::from_le_bytes(digits) & 0x0f0f_0f0f_0f0f_0f0f;
    let twos = (ones.wrapping_mul(10 << 8 | 1) >> 8) & 0x00ff_00ff_00ff_00ff;
    let fours = (twos.wrapping_mul(100 << 16 | 1) >> 16) & 0x0000_ffff_0000_ffff;
    fours.wrapping_mul(10_000 << 32 | 1) >> 32
}

/// Whether all eight bytes are digits.
#[inline(always)]
pub(super) fn are_digits(bytes: [u8; 8]) -> bool {
    let bytes = u64::from_le_bytes(bytes);
    let high = bytes & 0xf0f0_f0f0_f0f0_f0f0;
    // A byte is a digit if its value is from 0x30 to 0x39. Adding 6 to a digit does not change the upper half of the
    // byte.
    let low = bytes.wrapping_add(0x0606_0606_0606_0606) & 0xf0f0_f0f0_f0f0_f0f0;
    high == 0x3030_3030_3030_3030 && low == high
}

fn has_zero_fraction(text: &[u8]) -> bool {
    let fraction = text.split(|&byte| byte == b'.').nth(1).unwrap_or_default();
    fraction.iter().all(|&byte| byte == b'0')
}

/// Parses any JSON number. The number is multiplied by 10^`shift` and rounded half away from zero.
#[cold]
fn parse_general(text: &[u8], shift: i32) -> Option<i64> {
    let (negative, text) = match text {
        [b'-', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let at = text.iter().position(|byte| matches!(byte, b'e' | b'E')).unwrap_or(text.len());
    let (mantissa, exponent) = text.split_at(at);
    let exponent = match exponent {
        [] => 0,
        [_, rest @ ..] => std::str::from_utf8(rest).ok()?.parse::<i32>().ok()?,
    };
    let point = mantissa.iter().position(|&byte| byte == b'.').unwrap_or(mantissa.len());
    let (whole, fraction) = mantissa.split_at(point);
    let fraction = fraction.get(1..).unwrap_or_default();
    if whole.is_empty() || (point < mantissa.len() && fraction.is_empty()) {
        return None;
    }
    let digits = whole.iter().chain(fraction);
    // The code below treats the number as 0.DIGITS times 10^places.
    let mut places = i64::from(exponent) + i64::from(shift) + whole.len() as i64;
    let mut value = 0_i128;
    let mut round_up = false;
    for &digit in digits {
        let digit = digit.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        if places > 0 {
            value = value.checked_mul(10)?.checked_add(i128::from(digit))?;
        } else if places == 0 {
            round_up = digit >= 5;
        }
        places -= 1;
    }
    while places > 0 && value != 0 {
        value = value.checked_mul(10)?;
        places -= 1;
    }
    let value = value + i128::from(round_up);
    i64::try_from(if negative { -value } else { value }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn microseconds_are_converted_to_nanoseconds_without_rounding_errors() {
        for (text, nanos, fraction) in [
            ("0", 0, false),
            ("1689180448563241", 1_689_180_448_563_241_000, false),
            ("1712195495505583.173", 1_712_195_495_505_583_173, true),
            ("88511388202.765", 88_511_388_202_765, true),
            ("5.4", 5_400, true),
            ("5.0004", 5_000, true),
            ("5.0005", 5_001, true),
            ("5.00049999999", 5_000, true),
            ("-5.0005", -5_001, true),
            ("-12", -12_000, false),
            ("1.5e3", 1_500_000, true),
            ("1E-3", 1, false),
            ("4e-4", 0, false),
            ("5e-4", 1, false),
            ("123456789012345678", 0, false),
        ] {
            let expected = (nanos != 0 || text.len() < 5).then_some((nanos, fraction));
            assert_eq!(parse_micros(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn non_numbers_and_numbers_out_of_range_are_rejected() {
        for text in
            ["", "-", ".5", "5.", "NaN", "Infinity", "null", "1e", "1e400", "12x", "1.2.3", "0x10", "1 2"]
        {
            assert_eq!(parse_micros(text.as_bytes()), None, "{text}");
            assert_eq!(parse_integer(text.as_bytes()), None, "{text}");
        }
        assert_eq!(parse_micros(b"9223372036854775"), Some((9_223_372_036_854_775_000, false)));
        assert_eq!(parse_micros(b"9223372036854776"), None);
        assert_eq!(parse_micros(b"9223372036854775.808"), None);
    }

    #[test]
    fn whole_numbers_may_have_a_fraction_of_zeros() {
        for (text, value) in
            [("7", 7), ("-1", -1), ("7.0", 7), ("1e3", 1000), ("9223372036854775807", i64::MAX)]
        {
            assert_eq!(parse_integer(text.as_bytes()), Some(value), "{text}");
        }
        assert_eq!(parse_integer(b"7.5"), None);
        assert_eq!(parse_integer(b"9223372036854775808"), None);
        assert_eq!(parse_unsigned(b"-1"), None);
    }
}
