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
    let number = digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0'));
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
    Malformed { value: fields.join(",") }
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
