//! Numbers as conditions compare them.

use std::cmp::Ordering;
use std::fmt;

/// A finite number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Whole(i64),
    Fraction(f64),
}

/// 2^63, which is the first number above every `i64`.
const WHOLE_END: f64 = 9_223_372_036_854_775_808.0;

impl Number {
    /// Reads decimal digits with an optional sign, fraction and exponent; `None` for everything
    /// else, and for what is too large.
    pub(super) fn read(text: &str) -> Option<Self> {
        if let Ok(whole) = text.parse() {
            return Some(Self::Whole(whole));
        }
        let digit =
            |byte: u8| byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.' | b'e' | b'E');
        // The standard library also reads words such as "inf" and "nan".
        let number: f64 = text.bytes().all(digit).then(|| text.parse().ok()).flatten()?;
        number.is_finite().then_some(Self::Fraction(number))
    }

    pub(super) fn compare(self, other: Self) -> Ordering {
        match (self, other) {
            (Self::Whole(one), Self::Whole(other)) => one.cmp(&other),
            (Self::Fraction(one), Self::Fraction(other)) => order(one, other),
            (Self::Whole(one), Self::Fraction(other)) => compare_mixed(one, other),
            (Self::Fraction(one), Self::Whole(other)) => compare_mixed(other, one).reverse(),
        }
    }
}

impl fmt::Display for Number {
    /// Reads back as the same number: a fraction has a point or an exponent.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(number) => write!(out, "{number}"),
            Self::Fraction(number) => write!(out, "{number:?}"),
        }
    }
}

/// Finite numbers are always comparable.
fn order(one: f64, other: f64) -> Ordering {
    one.partial_cmp(&other).unwrap_or(Ordering::Equal)
}

/// Exactly, though not every `i64` is an `f64`.
fn compare_mixed(whole: i64, fraction: f64) -> Ordering {
    if fraction >= WHOLE_END {
        return Ordering::Less;
    }
    if fraction < -WHOLE_END {
        return Ordering::Greater;
    }
    #[expect(clippy::cast_possible_truncation, reason = "it has no fraction and is in range")]
    let truncated = fraction.trunc() as i64;
    whole.cmp(&truncated).then_with(|| order(0.0, fraction.fract()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(one: &str, other: &str) -> Ordering {
        Number::read(one).unwrap().compare(Number::read(other).unwrap())
    }

    #[test]
    fn numbers_compare_exactly() {
        assert_eq!(compare("1", "1.0"), Ordering::Equal);
        assert_eq!(compare("-1", "-1.5"), Ordering::Greater);
        assert_eq!(compare("1", "1.5"), Ordering::Less);
        assert_eq!(compare("0", "-0.0"), Ordering::Equal);
        // 2^53 + 1 is no f64, and its neighbour below is.
        assert_eq!(compare("9007199254740993", "9007199254740992.0"), Ordering::Greater);
        assert_eq!(compare("9223372036854775807", "9223372036854775808.0"), Ordering::Less);
        assert_eq!(compare("-9223372036854775808", "-9223372036854775808.0"), Ordering::Equal);
        assert_eq!(compare("-9223372036854775808", "-1e300"), Ordering::Greater);
        assert_eq!(compare("1e3", "1000"), Ordering::Equal);
    }

    #[test]
    fn what_is_no_number_is_none() {
        for text in ["", "-", ".", "e", "1e", "x", " 1", "1 ", "0x10", "inf", "NaN", "1e999", "1_0"]
        {
            assert!(Number::read(text).is_none(), "{text:?}");
        }
        for text in ["+5", "-0", ".5", "5.", "1E-3", "99999999999999999999"] {
            assert!(Number::read(text).is_some(), "{text:?}");
        }
    }
}
