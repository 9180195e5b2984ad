//! Formats times as text. This module does not use the C library's functions, because they take a lock that a stopped
//! thread may hold.

const DAY_SECONDS: u64 = 86_400;
/// Number of days in 400 years, including 97 leap days.
const ERA_DAYS: u64 = 146_097;
/// Number of days from March 1 of the year 0 (the start of a period of 400 years) to January 1, 1970.
const DAYS_TO_1970: u64 = 719_468;

/// Formats a time in seconds since 1970 as ISO 8601 in UTC, for example `2026-11-23T02:45:09Z`. Returns an empty text
/// for times after the year 9999.
pub fn iso_8601(seconds: u64) -> String {
    let (days, second) = (seconds / DAY_SECONDS, seconds % DAY_SECONDS);
    // Years are counted from March, so that the leap day is the last day of a year.
    let of_era = (days + DAYS_TO_1970) % ERA_DAYS;
    let years = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * years + years / 4 - years / 100);
    // The five months from March to July have 31, 30, 31, 30 and 31 days (153 in total). The five months from August to
    // December also have 31, 30, 31, 30 and 31 days.
    let months = (5 * of_year + 2) / 153;
    let day = of_year - (153 * months + 2) / 5 + 1;
    let month = if months < 10 { months + 3 } else { months - 9 };
    let year = 400 * ((days + DAYS_TO_1970) / ERA_DAYS) + years + u64::from(month <= 2);
    if year > 9999 {
        return String::new();
    }
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_formatted_as_a_utc_date() {
        assert_eq!(iso_8601(0), "1970-01-01T00:00:00Z");
        // 951868799 is the last second of February 29, 2000. The command `date -u -d @951868799 +%FT%TZ` prints the
        // expected text.
        assert_eq!(iso_8601(951_868_799), "2000-02-29T23:59:59Z");
        // Three more times: the last second of a year, March 1 of the year 2100 (which has no leap day), and the last
        // second with a four-digit year.
        assert_eq!(iso_8601(1_798_761_599), "2026-12-31T23:59:59Z");
        assert_eq!(iso_8601(4_107_542_400), "2100-03-01T00:00:00Z");
        assert_eq!(iso_8601(253_402_300_799), "9999-12-31T23:59:59Z");
        assert_eq!(["", ""], [253_402_300_800, u64::MAX].map(iso_8601).each_ref().map(String::as_str));
    }

    #[test]
    fn dates_agree_with_the_c_library_over_four_centuries() {
        for day in 0..ERA_DAYS {
            let seconds = DAY_SECONDS * day + day % DAY_SECONDS;
            // SAFETY: all-zero is a valid `tm`.
            let mut parts: libc::tm = unsafe { std::mem::zeroed() };
            // SAFETY: both arguments are live; the call writes to the second argument.
            unsafe { libc::gmtime_r(&(seconds as i64), &mut parts) };
            let date = (parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday);
            let time = (parts.tm_hour, parts.tm_min, parts.tm_sec);
            let ((year, month, day), (hour, minute, second)) = (date, time);
            let theirs = format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z");
            assert_eq!(iso_8601(seconds), theirs);
        }
    }
}
