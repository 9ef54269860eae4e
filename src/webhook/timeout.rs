//! Durations as Go writes them: the API server says in the URL how long it waits (`?timeout=5s`).

use std::time::Duration;

/// The time that the API server waits for a webhook where it does not say: its own default.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// It is not written like one.
    #[error("{0:?} is not a duration such as 500ms, 5s or 1m30s")]
    Form(String),
    /// It cannot be counted.
    #[error("{0:?} is too long: give at most 292 years, 2562047h")]
    TooLong(String),
}

/// Reads a duration in Go's syntax: decimal numbers, each with a unit of `h`, `m`, `s`, `ms`, `us` or `ns`, one after another,
/// or a bare `0`. Negative ones are no durations here.
///
/// # Errors
/// If the text is not of that form or the duration is too long to be counted.
pub fn parse_go_duration(text: &str) -> Result<Duration, DurationError> {
    let bad = || DurationError::Form(text.to_owned());
    let too_long = || DurationError::TooLong(text.to_owned());
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(bad());
    }
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(bad)?;
        let (value, tail) = rest.split_at(number);
        let end = tail
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let part = unit_nanos(unit)
            .and_then(|unit| decimal_times(value, unit))
            .ok_or_else(bad)?;
        nanos = nanos.checked_add(part).ok_or_else(too_long)?;
        rest = tail;
    }
    // As Go: more than an i64 of nanoseconds (292 years) is no duration.
    i64::try_from(nanos)
        .map(|nanos| Duration::from_nanos(nanos.unsigned_abs()))
        .map_err(|_| too_long())
}

fn unit_nanos(unit: &str) -> Option<u128> {
    Some(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// `value` (digits with at most one point, and at least one digit) times `unit`, cut to whole nanoseconds.
fn decimal_times(value: &str, unit: u128) -> Option<u128> {
    let (whole, fraction) = value.split_once('.').unwrap_or((value, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let mut total = if whole.is_empty() {
        0
    } else {
        whole.parse::<u128>().ok()?.checked_mul(unit)?
    };
    let mut place = unit;
    for digit in fraction.bytes() {
        place /= 10;
        total = total.checked_add(u128::from(digit - b'0') * place)?;
    }
    Some(total)
}

/// The `timeout` parameter of a query, if it is there and can be read.
#[must_use]
pub fn timeout_of_query(query: &str) -> Option<Duration> {
    let value = query.split('&').find_map(|pair| pair.strip_prefix("timeout="))?;
    parse_go_duration(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_durations_are_read_as_go_reads_them() {
        let ms = Duration::from_millis;
        for (text, expected) in [
            ("0", Some(ms(0))),
            ("0s", Some(ms(0))),
            ("5s", Some(ms(5_000))),
            ("+5s", Some(ms(5_000))),
            ("10s", Some(ms(10_000))),
            ("30s", Some(ms(30_000))),
            ("1m0s", Some(ms(60_000))),
            ("1m30s", Some(ms(90_000))),
            ("1h0m0.5s", Some(ms(3_600_500))),
            ("500ms", Some(ms(500))),
            ("1.5s", Some(ms(1_500))),
            (".5s", Some(ms(500))),
            ("5.s", Some(ms(5_000))),
            ("1s500ms", Some(ms(1_500))),
            ("250us", Some(Duration::from_micros(250))),
            ("250µs", Some(Duration::from_micros(250))),
            ("7ns", Some(Duration::from_nanos(7))),
            ("1.0000000001s", Some(ms(1_000))),
            ("", None),
            ("5", None),
            ("s", None),
            (".s", None),
            ("1..5s", None),
            ("-5s", None),
            ("5 s", None),
            ("5d", None),
            ("five", None),
            ("9999999999999h", None),
            ("99999999999999999999999999999999999999999999s", None),
        ] {
            assert_eq!(parse_go_duration(text).ok(), expected, "{text:?}");
        }
    }

    #[test]
    fn the_timeout_is_found_in_the_query() {
        for (query, expected) in [
            ("timeout=5s", Some(5)),
            ("a=b&timeout=10s", Some(10)),
            ("timeout=10s&a=b", Some(10)),
            ("", None),
            ("timeout=", None),
            ("timeout=soon", None),
            ("nottimeout=5s", None),
        ] {
            assert_eq!(timeout_of_query(query), expected.map(Duration::from_secs), "{query:?}");
        }
    }
}
