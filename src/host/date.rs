//! Times as people write them.

use libc::time_t;

/// Seconds since 1970 in ISO 8601, in UTC: `2026-11-23T02:45:09Z`.
pub fn iso_8601(seconds: u64) -> String {
    let Ok(seconds) = time_t::try_from(seconds) else { return String::new() };
    // SAFETY: all-zero is a valid `tm`.
    let mut parts: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both are there; it writes to the second.
    if unsafe { libc::gmtime_r(&seconds, &mut parts) }.is_null() {
        return String::new();
    }
    let (year, month) = (i64::from(parts.tm_year) + 1900, parts.tm_mon + 1);
    let (day, hour, minute, second) = (parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_a_date_in_utc() {
        assert_eq!(iso_8601(0), "1970-01-01T00:00:00Z");
        // The last second of a leap day: date -u -d @951868799 +%FT%TZ
        assert_eq!(iso_8601(951_868_799), "2000-02-29T23:59:59Z");
        assert_eq!(iso_8601(u64::MAX), "");
    }
}
