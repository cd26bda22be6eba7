//! What of gRPC a proxy must know: status codes, the answers it makes itself, a few header rules.
//!
//! Sources: gRPC over HTTP/2 (PROTOCOL-HTTP2.md), gRPC's status codes and its mapping from HTTP
//! status; RFC 9113. Headers that merely pass are never touched here: an endpoint's `grpc-status`
//! and `grpc-message` reach the client byte for byte.

use std::borrow::Cow;

use http::header::{HeaderMap, HeaderName, HeaderValue, CONTENT_TYPE, TE};

/// Where a status stands: in the trailers, or in the only header block of an answer.
pub static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// Where its text stands, percent-encoded.
pub static GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");

/// Attempts of a call that went before this one.
static PREVIOUS_ATTEMPTS: HeaderName = HeaderName::from_static("grpc-previous-rpc-attempts");

/// Longest text of a status of our own, in bytes of UTF-8 before encoding (H2-26).
const MESSAGE_BYTES_MAX: usize = 1024;

/// A gRPC status code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Code {
    /// Success.
    Ok = 0,
    /// The call was cancelled, mostly by the client.
    Cancelled = 1,
    /// Anything that has no code of its own.
    Unknown = 2,
    /// The arguments are wrong whatever the state of the system.
    InvalidArgument = 3,
    /// The deadline passed.
    DeadlineExceeded = 4,
    /// Something asked for is not there.
    NotFound = 5,
    /// Something to be made is there already.
    AlreadyExists = 6,
    /// The client may not do this.
    PermissionDenied = 7,
    /// A quota or a limit is used up.
    ResourceExhausted = 8,
    /// The state of the system does not allow this.
    FailedPrecondition = 9,
    /// A conflict; the client may begin anew.
    Aborted = 10,
    /// Past the end of something.
    OutOfRange = 11,
    /// No such method.
    Unimplemented = 12,
    /// An invariant is broken.
    Internal = 13,
    /// Cannot be done now; the client may try again.
    Unavailable = 14,
    /// Data are lost.
    DataLoss = 15,
    /// The client did not prove who it is.
    Unauthenticated = 16,
}

impl Code {
    /// How many there are.
    pub const COUNT: usize = 17;

    /// All of them, each at the index of its number.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Ok,
        Self::Cancelled,
        Self::Unknown,
        Self::InvalidArgument,
        Self::DeadlineExceeded,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::FailedPrecondition,
        Self::Aborted,
        Self::OutOfRange,
        Self::Unimplemented,
        Self::Internal,
        Self::Unavailable,
        Self::DataLoss,
        Self::Unauthenticated,
    ];

    /// The code of a number; one that gRPC does not define is UNKNOWN.
    #[must_use]
    pub fn from_number(number: u32) -> Self {
        usize::try_from(number)
            .ok()
            .and_then(|index| Self::ALL.get(index))
            .map_or(Self::Unknown, |code| *code)
    }

    /// Its number, 0 to 16.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Its name as gRPC writes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Cancelled => "CANCELLED",
            Self::Unknown => "UNKNOWN",
            Self::InvalidArgument => "INVALID_ARGUMENT",
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::NotFound => "NOT_FOUND",
            Self::AlreadyExists => "ALREADY_EXISTS",
            Self::PermissionDenied => "PERMISSION_DENIED",
            Self::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Self::FailedPrecondition => "FAILED_PRECONDITION",
            Self::Aborted => "ABORTED",
            Self::OutOfRange => "OUT_OF_RANGE",
            Self::Unimplemented => "UNIMPLEMENTED",
            Self::Internal => "INTERNAL",
            Self::Unavailable => "UNAVAILABLE",
            Self::DataLoss => "DATA_LOSS",
            Self::Unauthenticated => "UNAUTHENTICATED",
        }
    }

    /// Whether it speaks against the endpoint (`algorithms.md` section 0): the one definition for
    /// ejection, penalties and error shares.
    #[must_use]
    pub const fn is_failure(self) -> bool {
        matches!(
            self,
            Self::Unknown
                | Self::DeadlineExceeded
                | Self::ResourceExhausted
                | Self::Internal
                | Self::Unavailable
                | Self::DataLoss
        )
    }

    const fn digits(self) -> &'static str {
        const DIGITS: [&str; Code::COUNT] = [
            "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15",
            "16",
        ];
        DIGITS[self as usize]
    }
}

/// How a call ended when it was us who ended it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Status {
    /// The code.
    pub code: Code,
    /// The text, not encoded; empty for none.
    pub message: Cow<'static, str>,
}

impl Status {
    /// A status of that code and text.
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

/// The status in a header block, if it holds one.
///
/// A value that is no number is UNKNOWN, as gRPC clients take it. Whether a block's status counts
/// is the caller's to know: one in the headers of an answer does only with END_STREAM (H2-05).
#[must_use]
pub fn status_code(headers: &HeaderMap) -> Option<Code> {
    let digits = headers.get(&GRPC_STATUS)?.as_bytes();
    let number = match digits {
        [] => None,
        _ => digits.iter().try_fold(0_u32, |number, digit| match digit {
            b'0'..=b'9' => number.checked_mul(10)?.checked_add(u32::from(digit - b'0')),
            _ => None,
        }),
    };
    Some(number.map_or(Code::Unknown, Code::from_number))
}

/// Whether the content type says gRPC: `application/grpc`, alone or before `+` or `;`.
#[must_use]
pub fn is_grpc(headers: &HeaderMap) -> bool {
    const PREFIX: &[u8] = b"application/grpc";
    let Some(value) = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes) else {
        return false;
    };
    match value.split_at_checked(PREFIX.len()) {
        Some((prefix, rest)) => {
            prefix.eq_ignore_ascii_case(PREFIX) && matches!(rest.first(), None | Some(b'+' | b';'))
        }
        None => false,
    }
}

/// An answer that is nothing but a status; send it with END_STREAM (H2-02).
#[must_use]
pub fn trailers_only(status: &Status) -> http::Response<()> {
    let mut response = http::Response::new(());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    insert_status(headers, status);
    response
}

/// The trailers that end an answer whose headers went out before.
#[must_use]
pub fn trailers(status: &Status) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(2);
    insert_status(&mut headers, status);
    headers
}

fn insert_status(headers: &mut HeaderMap, status: &Status) {
    headers.insert(&GRPC_STATUS, HeaderValue::from_static(status.code.digits()));
    if !status.message.is_empty() {
        headers.insert(&GRPC_MESSAGE, encode_message(&status.message));
    }
}

/// A text as `grpc-message` carries it: at most 1 KiB of it, cut between characters, then
/// everything outside space to `~` and `%` itself percent-encoded (H2-26, H2-54).
///
/// A space at either end is encoded too: a field value must not begin or end with one
/// (RFC 9113 8.2.1), and a peer would drop the stream for it.
#[must_use]
pub fn encode_message(text: &str) -> HeaderValue {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let bytes = cut(text, MESSAGE_BYTES_MAX).as_bytes();
    let mut encoded = Vec::with_capacity(bytes.len());
    for (index, &byte) in bytes.iter().enumerate() {
        let at_end = index == 0 || index + 1 == bytes.len();
        if matches!(byte, b' '..=b'~') && byte != b'%' && !(byte == b' ' && at_end) {
            encoded.push(byte);
        } else {
            let (high, low) = (usize::from(byte >> 4), usize::from(byte & 15));
            encoded.extend_from_slice(&[b'%', HEX[high], HEX[low]]);
        }
    }
    // Printable ASCII is always a field value; should that ever change, a status without its text
    // is worth more than a panic.
    HeaderValue::try_from(encoded).unwrap_or_else(|_| HeaderValue::from_static(""))
}

fn cut(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}

/// The reset code that a client reads as that code, as far as there is one.
#[must_use]
pub(crate) const fn reset_of(code: Code) -> u32 {
    match code {
        Code::ResourceExhausted => 11,
        _ => 2,
    }
}

/// The status of a stream that an endpoint reset with that HTTP/2 error code, by gRPC's table
/// (H2-10).
///
/// Codes without a row there (STREAM_CLOSED, HTTP_1_1_REQUIRED, unassigned ones) are INTERNAL:
/// RFC 9113 section 7 has unknown codes treated like INTERNAL_ERROR.
#[must_use]
pub const fn code_of_reset(reason: u32) -> Code {
    match reason {
        7 => Code::Unavailable,
        8 => Code::Cancelled,
        11 => Code::ResourceExhausted,
        12 => Code::PermissionDenied,
        _ => Code::Internal,
    }
}

/// The status of an answer without `grpc-status`, by gRPC's mapping from HTTP status; only for
/// foreign answers, never for our own faults (H2-12).
#[must_use]
pub const fn code_of_http(status: u16) -> Code {
    match status {
        400 => Code::Internal,
        401 => Code::Unauthenticated,
        403 => Code::PermissionDenied,
        404 => Code::Unimplemented,
        429 | 502 | 503 | 504 => Code::Unavailable,
        _ => Code::Unknown,
    }
}

/// Leaves of the last block of an answer what says how the call ended: its status, and its message
/// where that is no longer than ours may be. False if there is no status.
pub fn strip_to_status(headers: &mut HeaderMap) -> bool {
    let Some(status) = headers.get(&GRPC_STATUS).cloned() else {
        return false;
    };
    let message = headers.get(&GRPC_MESSAGE);
    let message = message
        .filter(|text| text.len() <= MESSAGE_BYTES_MAX)
        .cloned();
    let content_type = headers.get(CONTENT_TYPE).cloned();
    headers.clear();
    headers.insert(&GRPC_STATUS, status);
    headers.extend(message.map(|value| (GRPC_MESSAGE.clone(), value)));
    headers.extend(content_type.map(|value| (CONTENT_TYPE, value)));
    true
}

/// Size of a header list as limits count it (RFC 9113 6.5.2): name, value and 32 bytes per field.
/// Pseudo-headers do not stand in a `HeaderMap` and are left out.
#[must_use]
pub fn header_list_bytes(headers: &HeaderMap) -> usize {
    headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 32)
        .sum()
}

/// Makes `te` what a request may carry onwards (H2-37): exactly one `trailers` on every gRPC
/// request, whether the client sent it or not, since some servers refuse calls without it; on
/// others `trailers` where the client asked for it, and nothing else ever.
pub fn prepare_request_headers(headers: &mut HeaderMap) {
    let (mut fields, mut trailers) = (0, 0);
    for value in headers.get_all(TE) {
        fields += 1;
        trailers += usize::from(value.as_bytes().eq_ignore_ascii_case(b"trailers"));
    }
    if trailers > 0 || is_grpc(headers) {
        if (fields, trailers) != (1, 1) {
            headers.insert(TE, HeaderValue::from_static("trailers"));
        }
    } else if fields > 0 {
        headers.remove(TE);
    }
}

/// Tells an endpoint how many attempts of the call went before, those of the client itself included
/// (gRFC A6).
pub fn add_previous_attempts(headers: &mut HeaderMap, before: u32) {
    let number = |value: &HeaderValue| value.to_str().ok()?.parse::<u32>().ok();
    let clients = headers.get(&PREVIOUS_ATTEMPTS).and_then(number);
    let total = clients.unwrap_or(0).saturating_add(before);
    headers.insert(&PREVIOUS_ATTEMPTS, HeaderValue::from(total));
}

#[cfg(test)]
mod tests {
    use http::header::{HeaderMap, HeaderValue, TE};
    use proptest::prelude::*;

    use super::{
        code_of_http, code_of_reset, encode_message, header_list_bytes, is_grpc,
        prepare_request_headers, status_code, trailers, trailers_only, Code, Status,
    };

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    /// The other side's reading: what stands in a field value, decoded.
    fn decode(value: &HeaderValue) -> Vec<u8> {
        let mut bytes = value.as_bytes().iter().copied();
        let mut decoded = Vec::new();
        while let Some(byte) = bytes.next() {
            decoded.push(if byte == b'%' {
                let hex = [bytes.next().expect("digit"), bytes.next().expect("digit")];
                let hex = std::str::from_utf8(&hex).expect("ASCII").to_owned();
                u8::from_str_radix(&hex, 16).expect("hexadecimal")
            } else {
                byte
            });
        }
        decoded
    }

    #[test]
    fn codes_stand_at_their_numbers() {
        for (index, code) in Code::ALL.into_iter().enumerate() {
            assert_eq!(usize::from(code.number()), index);
            assert_eq!(Code::from_number(index as u32), code);
            assert_eq!(code.digits(), index.to_string());
        }
        assert_eq!(Code::from_number(17), Code::Unknown);
        assert_eq!(Code::from_number(u32::MAX), Code::Unknown);
        assert_eq!(Code::DeadlineExceeded.name(), "DEADLINE_EXCEEDED");
    }

    #[test]
    fn failures_are_what_speaks_against_an_endpoint() {
        let failures: Vec<_> = Code::ALL
            .into_iter()
            .filter(|code| code.is_failure())
            .map(Code::number)
            .collect();
        assert_eq!(failures, [2, 4, 8, 13, 14, 15]);
    }

    #[test]
    fn reads_a_status() {
        let read = |value| status_code(&headers(&[("grpc-status", value)]));
        assert_eq!(read("0"), Some(Code::Ok));
        assert_eq!(read("16"), Some(Code::Unauthenticated));
        for odd in ["17", "", "-1", "+1", " 1", "x", "99999999999999999999"] {
            assert_eq!(read(odd), Some(Code::Unknown), "{odd}");
        }
        assert_eq!(status_code(&HeaderMap::new()), None);
    }

    #[test]
    fn knows_grpc_by_its_content_type() {
        for (value, expected) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("Application/GRPC;charset=utf-8", true),
            ("application/grpc-web", false),
            ("application/grp", false),
            ("application/json", false),
            ("", false),
        ] {
            assert_eq!(
                is_grpc(&headers(&[("content-type", value)])),
                expected,
                "{value}"
            );
        }
        assert!(!is_grpc(&HeaderMap::new()));
    }

    #[test]
    fn answers_with_nothing_but_a_status() {
        let status = Status::new(Code::Unavailable, "attnroute: no endpoint");
        let response = trailers_only(&status);
        assert_eq!(response.status(), 200);
        let expected = [
            ("content-type", "application/grpc"),
            ("grpc-status", "14"),
            ("grpc-message", "attnroute: no endpoint"),
        ];
        assert_eq!(response.headers(), &headers(&expected));
        assert_eq!(trailers(&status), headers(&expected[1..]));
        assert_eq!(
            trailers(&Status::new(Code::Ok, "")),
            headers(&[("grpc-status", "0")])
        );
    }

    #[test]
    fn h2_54_encodes_what_a_field_cannot_hold() {
        for (text, expected) in [
            ("100% sure", "100%25 sure"),
            ("café", "caf%C3%A9"),
            ("😀", "%F0%9F%98%80"),
            ("a\r\nb", "a%0D%0Ab"),
            ("%zz", "%25zz"),
            ("~\u{7f}", "~%7F"),
            (" padded ", "%20padded%20"),
            ("", ""),
        ] {
            assert_eq!(encode_message(text), expected);
        }
    }

    #[test]
    fn h2_26_cuts_long_texts_between_characters() {
        assert_eq!(encode_message(&"x".repeat(100_000)).len(), 1024);
        let cut = decode(&encode_message(&"é".repeat(50_000)));
        assert_eq!(
            String::from_utf8(cut).expect("whole characters"),
            "é".repeat(512)
        );
        let cut = decode(&encode_message(&format!("x{}", "é".repeat(600))));
        assert_eq!(cut.len(), 1023);
    }

    #[test]
    fn h2_10_resets_map_by_the_table() {
        for reason in [0, 1, 2, 3, 4, 5, 6, 9, 10, 13, 14, u32::MAX] {
            assert_eq!(code_of_reset(reason), Code::Internal, "{reason}");
        }
        assert_eq!(code_of_reset(7), Code::Unavailable);
        assert_eq!(code_of_reset(8), Code::Cancelled);
        assert_eq!(code_of_reset(11), Code::ResourceExhausted);
        assert_eq!(code_of_reset(12), Code::PermissionDenied);
    }

    #[test]
    fn http_status_maps_by_the_table() {
        let expected = [
            (400, Code::Internal),
            (401, Code::Unauthenticated),
            (403, Code::PermissionDenied),
            (404, Code::Unimplemented),
            (429, Code::Unavailable),
            (502, Code::Unavailable),
            (503, Code::Unavailable),
            (504, Code::Unavailable),
            (200, Code::Unknown),
            (500, Code::Unknown),
        ];
        for (status, code) in expected {
            assert_eq!(code_of_http(status), code, "{status}");
        }
    }

    #[test]
    fn counts_every_field_of_a_header_list() {
        assert_eq!(header_list_bytes(&HeaderMap::new()), 0);
        let list = headers(&[("a", "bcd"), ("x-twice", "1"), ("x-twice", "22")]);
        assert_eq!(
            header_list_bytes(&list),
            (1 + 3) + (7 + 1) + (7 + 2) + 3 * 32
        );
    }

    #[test]
    fn h2_37_te_is_trailers_or_nothing() {
        const GRPC: (&str, &str) = ("content-type", "application/grpc");
        for (fields, expected) in [
            (vec![GRPC], vec!["trailers"]),
            (vec![GRPC, ("te", "trailers")], vec!["trailers"]),
            (vec![GRPC, ("te", "gzip")], vec!["trailers"]),
            (
                vec![GRPC, ("te", "trailers"), ("te", "gzip")],
                vec!["trailers"],
            ),
            (
                vec![GRPC, ("te", "trailers"), ("te", "trailers")],
                vec!["trailers"],
            ),
            (vec![("te", "trailers")], vec!["trailers"]),
            (vec![("te", "gzip"), ("te", "deflate")], vec![]),
            (vec![], vec![]),
        ] {
            let mut found = headers(&fields);
            prepare_request_headers(&mut found);
            assert_eq!(
                found.get_all(TE).iter().collect::<Vec<_>>(),
                expected,
                "{fields:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn messages_survive_the_way(text in ".{0,80}") {
            let value = encode_message(&text);
            prop_assert!(value.as_bytes().iter().all(|byte| (b' '..=b'~').contains(byte)));
            prop_assert!(!value.as_bytes().starts_with(b" ") && !value.as_bytes().ends_with(b" "));
            prop_assert_eq!(decode(&value), text.as_bytes());
        }
    }
}
