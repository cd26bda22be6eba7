//! What a call needs to be sent once more: its headers, and as much of its body as was handed on.
//!
//! Kept from the first byte on, because nobody knows beforehand which stream an endpoint will
//! refuse, and given up as soon as the answer begins: what has reached the client cannot be taken
//! back. The body is bounded by `limits.max_replay_bytes`; a call that sends more loses the chance
//! of another try, not its life.

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use http::request::Parts;
use http::HeaderMap;

use crate::call::Call;
use crate::exchange::CallGuard;
use crate::fault::Fault;

/// Parts up to this long are copied: a few bytes must not hold on to a buffer of many kilobytes
/// that was read from a socket.
const COPIED_MAX: usize = 1024;

/// A call as it can be sent again.
#[derive(Debug)]
pub(crate) struct Replay {
    /// What is known of it.
    pub(crate) call: Call,
    /// Its request headers, as they came.
    pub(crate) head: Parts,
    body: Body,
}

/// A call that its endpoint did not process.
#[derive(Debug)]
pub(crate) struct Again {
    pub(crate) guard: CallGuard,
    pub(crate) respond: h2::server::SendResponse<Bytes>,
    /// The rest of the request: where it comes from, and what was taken and not yet handed on;
    /// `None` if all of it was.
    pub(crate) rest: Option<(RecvStream, Bytes)>,
    pub(crate) replay: Box<Replay>,
    /// What became of the attempt.
    pub(crate) fault: Fault,
}

/// What was handed on of a body.
#[derive(Debug, Default)]
struct Body {
    /// Apart from the others, since most calls have just one.
    first: Bytes,
    others: Vec<Bytes>,
    length: usize,
    end: End,
}

/// How far a body was handed on.
#[derive(Debug, Default)]
enum End {
    /// There is more.
    #[default]
    Open,
    /// All of it.
    Complete,
    /// All of it, and trailers.
    Trailers(HeaderMap),
}

impl Replay {
    pub(crate) fn new(call: Call, head: Parts) -> Self {
        Self {
            call,
            head,
            body: Body::default(),
        }
    }

    /// Keeps what is about to be handed on. False if it is too much.
    pub(crate) fn keep(&mut self, part: &Bytes) -> bool {
        let limit = self.call.settings.limits.max_replay_bytes;
        self.body.keep(part, limit)
    }

    /// The request ended.
    pub(crate) fn complete(&mut self, trailers: Option<HeaderMap>) {
        self.body.end = trailers.map_or(End::Complete, End::Trailers);
    }

    /// Whether there is nothing but headers.
    pub(crate) fn ends_with_headers(&self) -> bool {
        self.body.length == 0 && matches!(self.body.end, End::Complete)
    }

    /// Hands on what was kept. Beyond the windows it waits in h2, which the limit bounds.
    pub(crate) fn send(&self, to: &mut SendStream<Bytes>) -> Result<(), h2::Error> {
        let ends = matches!(self.body.end, End::Complete);
        let parts = self.body.parts().count();
        for (index, part) in self.body.parts().enumerate() {
            to.send_data(part.clone(), ends && index + 1 == parts)?;
        }
        match &self.body.end {
            End::Trailers(trailers) => to.send_trailers(trailers.clone()),
            End::Complete if parts == 0 => to.send_data(Bytes::new(), true),
            End::Complete | End::Open => Ok(()),
        }
    }
}

/// What is kept of a part.
pub(crate) fn to_keep(part: &Bytes) -> Bytes {
    if part.len() <= COPIED_MAX {
        Bytes::copy_from_slice(part)
    } else {
        part.clone()
    }
}

impl Body {
    fn keep(&mut self, part: &Bytes, limit: usize) -> bool {
        if self.length + part.len() > limit {
            return false;
        }
        let kept = to_keep(part);
        if self.length == 0 {
            self.first = kept;
        } else {
            self.others.push(kept);
        }
        self.length += part.len();
        true
    }

    fn parts(&self) -> impl Iterator<Item = &Bytes> {
        let first = (self.length > 0).then_some(&self.first);
        first.into_iter().chain(&self.others)
    }
}

#[cfg(test)]
mod tests {
    use super::Body;
    use bytes::Bytes;

    #[test]
    fn a_body_is_kept_in_order_and_up_to_the_limit() {
        let mut body = Body::default();
        let parts = [vec![1; 10], vec![2; 2_000], vec![3; 90]].map(Bytes::from);
        assert!(parts.iter().all(|part| body.keep(part, 2_100)));
        let kept: Vec<_> = body.parts().cloned().collect();
        assert_eq!(kept, parts);
        assert!(!body.keep(&Bytes::from_static(b"x"), 2_100));
    }

    #[test]
    fn few_bytes_do_not_hold_a_large_buffer() {
        let read = Bytes::from(vec![7; 64 * 1024]);
        let mut body = Body::default();
        assert!(body.keep(&read.slice(..20), 1 << 20));
        drop(body.parts().next().cloned());
        assert!(read.is_unique(), "the buffer that was read is still held");
    }
}
