//! `grpc-timeout`: how long the client still waits, read from a request and written to the next.
//!
//! The wire form is 1 to 8 digits and a unit (gRPC over HTTP/2, "Timeout"). What is written is
//! never longer than what remains, because an endpoint that outlives its client works for nobody,
//! and never zero, because some servers take zero for "no deadline" (H2-36).

use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};

/// The header's name.
pub static GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// Digits at most, by the protocol.
const DIGITS_MAX: usize = 8;

/// Largest number those digits write.
const NUMBER_MAX: u128 = 99_999_999;

/// Units by their length, finest first.
const UNITS: [(u8, u128); 6] = [
    (b'n', 1),
    (b'u', 1_000),
    (b'm', 1_000_000),
    (b'S', 1_000_000_000),
    (b'M', 60_000_000_000),
    (b'H', 3_600_000_000_000),
];

/// A `grpc-timeout` that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`grpc-timeout: {value}` is malformed; expected one field of 1 to 8 digits and one of `H`, `M`, `S`, `m`, `u`, `n`")]
pub struct Malformed {
    /// What the client sent, as text; several fields are joined with a comma.
    pub value: String,
}

/// The timeout of a request, `None` where it has none. Zero is valid and means: over already.
pub fn parse(headers: &HeaderMap) -> Result<Option<Duration>, Malformed> {
    let mut fields = headers.get_all(&GRPC_TIMEOUT).iter();
    let Some(first) = fields.next() else {
        return Ok(None);
    };
    match (fields.next(), parse_value(first.as_bytes())) {
        (None, Some(timeout)) => Ok(Some(timeout)),
        _ => Err(malformed(headers)),
    }
}

fn parse_value(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > DIGITS_MAX || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits
        .iter()
        .fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
    // Hours: 8 digits times 3600 stay far below the range of a duration in seconds.
    match unit {
        b'n' => Some(Duration::from_nanos(number)),
        b'u' => Some(Duration::from_micros(number)),
        b'm' => Some(Duration::from_millis(number)),
        b'S' => Some(Duration::from_secs(number)),
        b'M' => Some(Duration::from_secs(number * 60)),
        b'H' => Some(Duration::from_secs(number * 3600)),
        _ => None,
    }
}

#[cold]
fn malformed(headers: &HeaderMap) -> Malformed {
    let fields: Vec<_> = headers
        .get_all(&GRPC_TIMEOUT)
        .iter()
        .map(|value| String::from_utf8_lossy(value.as_bytes()))
        .collect();
    Malformed {
        value: fields.join(","),
    }
}

/// What remains as a field value, in the finest unit that fits 8 digits, rounded down.
///
/// The shortest is `1n`, also where nothing remains: such a call should not be sent at all. Beyond
/// 8 digits of hours it is cut to them.
#[must_use]
pub fn encode(remaining: Duration) -> HeaderValue {
    let nanos = remaining.as_nanos().max(1);
    let (unit, length) = UNITS
        .into_iter()
        .find(|(_, length)| nanos / length <= NUMBER_MAX)
        .unwrap_or(UNITS[UNITS.len() - 1]);
    let mut number = (nanos / length).min(NUMBER_MAX);
    let mut text = [0; DIGITS_MAX + 1];
    let mut start = DIGITS_MAX;
    text[start] = unit;
    while number > 0 {
        start -= 1;
        text[start] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    // Digits and a letter are always a field value; `1n` ends a call rather than prolonging it.
    HeaderValue::from_bytes(&text[start..]).unwrap_or_else(|_| HeaderValue::from_static("1n"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::header::{HeaderMap, HeaderValue};
    use proptest::prelude::*;

    use super::{encode, parse, parse_value, GRPC_TIMEOUT};

    fn headers(values: &[&[u8]]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(
                &GRPC_TIMEOUT,
                HeaderValue::from_bytes(value).expect("field value"),
            );
        }
        headers
    }

    #[test]
    fn h2_36_reads_every_unit() {
        for (text, expected) in [
            ("1H", Duration::from_secs(3600)),
            ("2M", Duration::from_secs(120)),
            ("3S", Duration::from_secs(3)),
            ("4m", Duration::from_millis(4)),
            ("5u", Duration::from_micros(5)),
            ("6n", Duration::from_nanos(6)),
            ("0S", Duration::ZERO),
            ("00000001S", Duration::from_secs(1)),
            ("99999999H", Duration::from_secs(99_999_999 * 3600)),
        ] {
            assert_eq!(
                parse(&headers(&[text.as_bytes()])),
                Ok(Some(expected)),
                "{text}"
            );
        }
        assert_eq!(parse(&HeaderMap::new()), Ok(None));
    }

    #[test]
    fn h2_36_refuses_what_is_no_timeout() {
        for text in [
            "123456789S",
            "10 S",
            "-1S",
            "+1S",
            "5x",
            "",
            "S",
            "10",
            "1.5S",
            "1s",
            "1S ",
        ] {
            let error = parse(&headers(&[text.as_bytes()])).expect_err(text);
            assert_eq!(error.value, text);
        }
        let two = parse(&headers(&[b"1S", b"1S"])).expect_err("two fields");
        assert_eq!(two.value, "1S,1S");
        let bytes = parse(&headers(&[b"\xff1S"])).expect_err("no text");
        assert_eq!(bytes.value, "\u{fffd}1S");
        assert!(two
            .to_string()
            .contains("`grpc-timeout: 1S,1S` is malformed"));
    }

    #[test]
    fn writes_the_finest_unit_that_fits() {
        for (remaining, expected) in [
            (Duration::ZERO, "1n"),
            (Duration::from_nanos(1), "1n"),
            (Duration::from_nanos(99_999_999), "99999999n"),
            (Duration::from_nanos(100_000_999), "100000u"),
            (Duration::from_secs(5), "5000000u"),
            (Duration::from_secs(100), "100000m"),
            (Duration::from_secs(99_999_999), "99999999S"),
            (Duration::from_secs(100_000_000), "1666666M"),
            (Duration::from_secs(3600 * 99_999_999), "99999999H"),
            (Duration::MAX, "99999999H"),
        ] {
            assert_eq!(encode(remaining), expected, "{remaining:?}");
        }
    }

    proptest! {
        #[test]
        fn never_lengthens_and_loses_little(nanos in 1_u64.., shift in 0_u32..64) {
            let remaining = Duration::from_nanos((nanos >> shift).max(1));
            let value = encode(remaining);
            prop_assert!(value.len() <= 9);
            let read = parse_value(value.as_bytes()).expect("own form");
            prop_assert!(read > Duration::ZERO && read <= remaining);
            // A unit is taken only when the next finer one has no room: from 10^8 of a unit on, at
            // most 1000 of it are lost, or 60 where minutes or hours are counted.
            prop_assert!(remaining - read <= remaining / 100_000);
        }

        #[test]
        fn reads_any_bytes_without_fault(value in proptest::collection::vec(any::<u8>(), 0..12)) {
            let valid = (2..=9).contains(&value.len())
                && value[..value.len() - 1].iter().all(u8::is_ascii_digit)
                && b"HMSmun".contains(&value[value.len() - 1]);
            prop_assert_eq!(parse_value(&value).is_some(), valid);
        }

        #[test]
        fn reads_what_the_protocol_writes(number in 0_u32..100_000_000, unit in "[HMSmun]") {
            let text = format!("{number}{unit}");
            prop_assert!(parse(&headers(&[text.as_bytes()])).expect("valid").is_some());
        }
    }
}
