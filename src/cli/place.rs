//! Places in a topic, as they are written on the command line.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::base::Millis;
use crate::client::ResetTo;

/// What [`place`] reads, for help texts.
pub(super) const PLACES: &str = "earliest|latest|TIME|OFFSET";
/// What [`start`] reads.
pub(super) const STARTS: &str = "earliest|latest|TIME";

const DAY: u64 = 24 * 60 * 60 * 1000;

/// `earliest`, `latest`, an offset, or a time as [`time`] reads it.
pub(super) fn place(text: &str) -> Result<ResetTo, String> {
    if let Ok(offset) = text.parse() {
        return Ok(ResetTo::Offset(offset));
    }
    start(text).map_err(|_| {
        format!(
            "{text:?} is no place; write earliest, latest, an offset such as 1200, or a time: 10m for \
             ten minutes ago, 2026-11-30T18:00:00Z, or @ and milliseconds since 1970"
        )
    })
}

/// `earliest`, `latest`, or a time.
pub(super) fn start(text: &str) -> Result<ResetTo, String> {
    match text {
        "earliest" => Ok(ResetTo::Earliest),
        "latest" => Ok(ResetTo::Latest),
        _ => time(text, now()).map(ResetTo::Time),
    }
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// `@` and milliseconds since 1970, an instant such as `2026-11-30T18:00:00Z`, or how long ago, such as
/// `10m`.
fn time(text: &str, now: u64) -> Result<u64, String> {
    let at = text.strip_prefix('@').and_then(|millis| millis.parse().ok());
    let unit = text.ends_with(|last: char| last.is_ascii_lowercase());
    let ago = text.parse::<Millis>().ok().filter(|_| unit);
    let ago = ago.map(|ago| now.saturating_sub(ago.get()));
    at.or(ago).or_else(|| instant(text)).ok_or_else(|| {
        format!(
            "{text:?} is no time; write 10m for ten minutes ago, 2026-11-30T18:00:00Z, or @ and \
             milliseconds since 1970"
        )
    })
}

/// An instant of RFC 3339 in UTC, to the second or with a fraction.
fn instant(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let [year, month, day] = numbers(date, '-')?;
    let [hour, minute, second] = numbers(time, ':')?;
    let in_range = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=days_of(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second < 60;
    let digits = !fraction.is_empty() && fraction.bytes().all(|digit| digit.is_ascii_digit());
    let millis: u64 = format!("{fraction:0<3}").get(..3)?.parse().ok()?;
    let days = (1970..year).map(days_in).sum::<u64>()
        + (1..month).map(|month| days_of(year, month)).sum::<u64>()
        + day.saturating_sub(1);
    let seconds = (hour * 60 + minute) * 60 + second;
    (in_range && digits).then_some(days * DAY + seconds * 1000 + millis)
}

fn numbers(text: &str, between: char) -> Option<[u64; 3]> {
    let all: Option<Vec<u64>> = text
        .split(between)
        .map(|part| part.bytes().all(|digit| digit.is_ascii_digit()).then(|| part.parse().ok())?)
        .collect();
    let all = all?;
    all.iter().all(|number| *number <= 9999).then(|| all.try_into().ok())?
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_in(year: u64) -> u64 {
    if is_leap(year) { 366 } else { 365 }
}

fn days_of(year: u64, month: u64) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_word_an_offset_or_a_time() {
        assert_eq!(place("earliest"), Ok(ResetTo::Earliest));
        assert_eq!(place("latest"), Ok(ResetTo::Latest));
        assert_eq!(place("1200"), Ok(ResetTo::Offset(1200)));
        assert_eq!(place("@1700000000000"), Ok(ResetTo::Time(1_700_000_000_000)));
        assert!(matches!(place("10m"), Ok(ResetTo::Time(_))));
        for odd in ["", "first", "-1", "@", "@x", "2026-13-01T00:00:00Z"] {
            assert!(place(odd).unwrap_err().contains("write earliest"), "{odd}");
        }
        assert!(start("1200").is_err(), "a group begins at no offset");
    }

    #[test]
    fn a_time_is_an_instant_or_so_long_ago() {
        let read = |text| time(text, 1_000_000);
        assert_eq!(read("10s"), Ok(990_000));
        assert_eq!(read("1d"), Ok(0), "there is nothing before 1970");
        assert_eq!(read("1970-01-01T00:00:00Z"), Ok(0));
        assert_eq!(read("2023-11-14T22:13:20Z"), Ok(1_700_000_000_000));
        assert_eq!(read("2024-02-29T00:00:00.25Z"), Ok(1_709_164_800_250));
        for odd in [
            "2023-02-29T00:00:00Z",
            "2023-11-14T24:00:00Z",
            "2023-11-14T22:13:20",
            "2023-11-14 22:13:20Z",
            "2023-11-14T22:13:20.Z",
            "99999999999999999999-01-01T00:00:00Z",
        ] {
            assert!(read(odd).is_err(), "{odd}");
        }
    }
}
