//! Instants as people write them: milliseconds since 1970, RFC 3339, or a length of time ago.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::base::Millis;

const DAY: i64 = 86_400_000;

/// A point of time, as it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Instant {
    At(u64),
    Ago(Millis),
}

impl Instant {
    /// In milliseconds since 1970; what is some time ago counts from now.
    pub(super) fn millis(self) -> u64 {
        match self {
            Self::At(millis) => millis,
            Self::Ago(length) => {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
                now.saturating_sub(length.get())
            }
        }
    }
}

pub(super) fn parse(text: &str) -> Result<Instant, String> {
    if let Ok(millis) = text.parse() {
        return Ok(Instant::At(millis));
    }
    if let Ok(length) = text.strip_suffix("ago").unwrap_or(text).trim().parse() {
        return Ok(Instant::Ago(length));
    }
    rfc3339(text).map(Instant::At).ok_or_else(|| {
        format!(
            "{text:?} is no time; write milliseconds since 1970, 2026-11-30T18:00:00Z, or how long \
             ago it was, such as 10m"
        )
    })
}

/// `2026-11-30T18:00:00.5+01:00` in milliseconds since 1970; `None` for anything else, and for what
/// lies before.
fn rfc3339(text: &str) -> Option<u64> {
    if !text.is_ascii() || text.len() < 20 {
        return None;
    }
    let (date, rest) = text.split_at(10);
    let (clock, rest) = rest.strip_prefix(['T', 't', ' '])?.split_at_checked(8)?;
    let (year, month, day) = three(date, b'-')?;
    let (hour, minute, second) = three(clock, b':')?;
    if !(1..=12).contains(&month) || day < 1 || day > days_of(year, month) {
        return None;
    }
    if hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let zone_at = rest.find(['Z', 'z', '+', '-'])?;
    let (fraction, zone) = rest.split_at(zone_at);
    let millis = fraction_millis(fraction)?;
    let of_day = ((hour * 60 + minute) * 60 + second) * 1000 + millis;
    let utc = days_since_1970(year, month, day) * DAY + of_day - zone_minutes(zone)? * 60_000;
    u64::try_from(utc).ok()
}

fn number(text: &str) -> Option<i64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

fn three(text: &str, between: u8) -> Option<(i64, i64, i64)> {
    let mut parts = text.split(char::from(between)).map(number);
    let three = (parts.next()??, parts.next()??, parts.next()??);
    parts.next().is_none().then_some(three)
}

/// Finer than a millisecond is cut off.
fn fraction_millis(text: &str) -> Option<i64> {
    if text.is_empty() {
        return Some(0);
    }
    let digits = text.strip_prefix('.')?;
    number(digits)?;
    let padded = format!("{digits:0<3}");
    number(&padded[..3])
}

fn zone_minutes(text: &str) -> Option<i64> {
    if text.eq_ignore_ascii_case("z") {
        return Some(0);
    }
    let (sign, rest) = text.split_at(1);
    let (hours, minutes) = rest.split_once(':')?;
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    if hours > 23 || minutes > 59 {
        return None;
    }
    let minutes = hours * 60 + minutes;
    Some(if sign == "-" { -minutes } else { minutes })
}

fn days_of(year: i64, month: i64) -> i64 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 if leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from civil (Howard Hinnant): years begin in March, so that the leap day is the last one.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// As RFC 3339 writes it, in UTC.
pub(super) fn text(millis: u64) -> String {
    let Ok(millis) = i64::try_from(millis) else { return millis.to_string() };
    let (days, of_day) = (millis / DAY + 719_468, millis % DAY);
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = (month_from_march + 2) % 12 + 1;
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    let (seconds, fraction) = (of_day / 1000, of_day % 1000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction:03}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_is_a_number_a_date_or_a_length_ago() {
        assert_eq!(parse("1234"), Ok(Instant::At(1234)));
        assert_eq!(parse("10m"), Ok(Instant::Ago(Millis::from_secs(600))));
        assert_eq!(parse("2 h ago"), Ok(Instant::Ago(Millis::from_secs(7200))));
        assert_eq!(parse("1970-01-01T00:00:01Z"), Ok(Instant::At(1000)));
        assert_eq!(parse("2001-09-09T01:46:40.25Z"), Ok(Instant::At(1_000_000_000_250)));
        assert_eq!(parse("2001-09-09T03:46:40+02:00"), Ok(Instant::At(1_000_000_000_000)));
        assert_eq!(parse("2024-02-29 12:00:00-00:30"), Ok(Instant::At(1_709_209_800_000)));
        for odd in [
            "",
            "soon",
            "-5",
            "2023-02-29T00:00:00Z",
            "2023-13-01T00:00:00Z",
            "2023-01-01T24:00:00Z",
            "2023-01-01T00:00:00",
            "2023-01-01T00:00:00.Z",
            "1969-12-31T23:59:59Z",
            "2023-01-01T00:00:00+2",
        ] {
            assert!(parse(odd).is_err(), "{odd}");
        }
    }

    #[test]
    fn what_is_printed_is_read_again() {
        assert_eq!(text(1_709_209_800_001), "2024-02-29T12:30:00.001Z");
        for millis in [0, 951_782_400_000, 1_700_000_000_123, 4_102_444_799_999] {
            assert_eq!(parse(&text(millis)), Ok(Instant::At(millis)), "{}", text(millis));
        }
    }
}
