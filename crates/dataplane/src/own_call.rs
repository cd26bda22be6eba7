//! Small unary calls of our own over the pool's connections: health checks and probes. They see what
//! a call would see, and cost no connection of their own.

use std::fmt;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use h2::RecvStream;
use http::header::{HeaderMap, HeaderValue, CONTENT_TYPE, TE, USER_AGENT};
use http::uri::Scheme;
use http::{Method, Request, StatusCode, Uri};

use crate::address::Address;
use crate::deadline;
use crate::endpoint::Endpoint;
use crate::pool::Lease;

/// Answers are some bytes; who sends much more sends something else.
const ANSWER_BYTES_MAX: usize = 1024;

/// A flag and a length stand before each message.
pub(crate) const PREFIX_BYTES: usize = 5;

/// An answer with HTTP status 200.
#[derive(Debug)]
pub(crate) struct Reply {
    /// The block that holds the gRPC status, if any does.
    pub(crate) status: HeaderMap,
    /// The body.
    pub(crate) body: BytesMut,
}

/// There is no such answer.
#[derive(Debug)]
pub(crate) enum NoReply {
    Http(StatusCode),
    TooLong,
    Lost(h2::Error),
}

impl fmt::Display for NoReply {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(status) => write!(out, "HTTP status {status}"),
            Self::TooLong => out.write_str("the answer is too long"),
            Self::Lost(error) => error.fmt(out),
        }
    }
}

impl From<h2::Error> for NoReply {
    fn from(error: h2::Error) -> Self {
        Self::Lost(error)
    }
}

/// Asks, and waits for the whole answer; the caller enforces `timeout`. `question` is a message with
/// its prefix.
pub(crate) async fn ask(
    lease: &Lease,
    endpoint: &Endpoint,
    path: &'static str,
    question: Bytes,
    timeout: Duration,
) -> Result<Reply, NoReply> {
    let (answer, mut upward) = lease.open(request(endpoint, path, Some(timeout)), false)?;
    upward.send_data(question, true)?;
    let (head, mut body) = answer.await?.into_parts();
    if head.status != StatusCode::OK {
        return Err(NoReply::Http(head.status));
    }
    let message = collected(&mut body).await?;
    let trailers = body.trailers().await?;
    Ok(Reply {
        status: trailers.unwrap_or(head.headers),
        body: message,
    })
}

/// A message with its prefix.
pub(crate) fn framed(message: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(PREFIX_BYTES + message.len());
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    bytes.extend_from_slice(message);
    bytes.freeze()
}

/// The message in a body that holds one, whole and not compressed.
pub(crate) fn unframed(body: &[u8]) -> Option<&[u8]> {
    let (prefix, message) = body.split_first_chunk::<PREFIX_BYTES>()?;
    let [flag, length @ ..] = *prefix;
    let is_whole = u32::from_be_bytes(length) as usize == message.len();
    (flag == 0 && is_whole).then_some(message)
}

async fn collected(body: &mut RecvStream) -> Result<BytesMut, NoReply> {
    let mut message = BytesMut::new();
    while let Some(part) = body.data().await {
        let part = part?;
        if message.len() + part.len() > ANSWER_BYTES_MAX {
            return Err(NoReply::TooLong);
        }
        body.flow_control().release_capacity(part.len())?;
        message.extend_from_slice(&part);
    }
    Ok(message)
}

/// A call of ours; without `timeout` it has no deadline.
pub(crate) fn request(
    endpoint: &Endpoint,
    path: &'static str,
    timeout: Option<Duration>,
) -> Request<()> {
    let authority = match &endpoint.address {
        Address::Unix(_) => "localhost",
        Address::Tcp(_) => endpoint.name.as_ref(),
    };
    let uri = Uri::builder()
        .scheme(Scheme::HTTP)
        .authority(authority)
        .path_and_query(path);
    let mut request = Request::new(());
    *request.method_mut() = Method::POST;
    // Never the default: an address is a valid authority, and the path is ours.
    *request.uri_mut() = uri.build().unwrap_or_default();
    *request.version_mut() = http::Version::HTTP_2;
    let headers = request.headers_mut();
    let fixed = HeaderValue::from_static;
    headers.insert(TE, fixed("trailers"));
    headers.insert(CONTENT_TYPE, fixed("application/grpc"));
    headers.insert(
        USER_AGENT,
        fixed(concat!("attnroute/", env!("CARGO_PKG_VERSION"))),
    );
    if let Some(timeout) = timeout {
        headers.insert(&deadline::GRPC_TIMEOUT, deadline::encode(timeout));
    }
    request
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{framed, unframed};

    #[test]
    fn a_message_is_taken_out_as_it_was_put_in() {
        assert_eq!(framed(b"ab").as_ref(), [0, 0, 0, 0, 2, b'a', b'b']);
        assert_eq!(unframed(&framed(b"ab")), Some(&b"ab"[..]));
        assert_eq!(unframed(&framed(b"")), Some(&b""[..]));
        let broken: [&[u8]; 5] = [
            &[],
            &[0, 0, 0, 0],
            &[0, 0, 0, 0, 2, 8],
            &[0, 0, 0, 0, 2, 8, 1, 0],
            &[1, 0, 0, 0, 2, 8, 1],
        ];
        for body in broken {
            assert_eq!(unframed(body), None, "{body:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged_without_fault(body: Vec<u8>) {
            let message = unframed(&body);
            prop_assert!(message.is_none_or(|message| message.len() + 5 == body.len()));
        }
    }
}
