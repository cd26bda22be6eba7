//! HTTP CONNECT: the way in of clients that are told a proxy (`grpc_proxy`).
//!
//! The host and port that a client asks for name a service, by its authorities; nothing is resolved
//! or dialled under that name, so nobody gets through here to where the policy does not lead. What
//! then begins with the HTTP/2 preface is served call by call like on any listener. Other bytes, TLS
//! above all, cannot be: they pass through to one endpoint of the service, connection by
//! connection, and that is counted and said once.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{copy_bidirectional, AsyncReadExt, AsyncWriteExt};
use tokio::time::{timeout_at, Instant};

use crate::attempt::RequestInfo;
use crate::io::{close_gently, Socket};
use crate::listener::{self, stranger_of, Listener, Stranger, Way, PREFACE, TLS_ALERT};
use crate::route::check_authority;
use crate::runtime::Thread;
use crate::service::Service;
use crate::stats::Limit;

const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// Header fields of a request at most; nothing in them is read.
const FIELDS_MAX: usize = 64;

/// How long an answer may take to leave.
const FAREWELL: Duration = Duration::from_secs(1);

/// Endpoints that are tried for bytes that pass through.
const DIALS_MAX: usize = 3;

/// What a tunnel holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Content {
    /// HTTP/2: balanced call by call.
    Http2,
    /// TLS.
    Tls,
    /// Something else.
    Other,
}

impl Content {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Http2, Self::Tls, Self::Other];

    /// Its metric label.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Http2 => "http2",
            Self::Tls => "tls",
            Self::Other => "other",
        }
    }
}

/// Counters of tunnels.
#[derive(Debug, Default)]
pub struct TunnelStats {
    /// Tunnels by [`Content`].
    pub opened: [AtomicU64; Content::ALL.len()],
    /// Bytes that passed through were spoken of.
    told: AtomicBool,
}

/// How a client begins.
#[derive(Debug, PartialEq, Eq)]
enum Opening {
    /// With HTTP/2 itself.
    Http2(Bytes),
    /// With a request for a tunnel; what follows it.
    Tunnel(String, Bytes),
}

/// Why there is no tunnel: how it is counted, and what the client is told.
#[derive(Debug, PartialEq, Eq)]
struct Refused {
    stranger: Stranger,
    answer: Vec<u8>,
}

impl Refused {
    fn silently(stranger: Stranger) -> Self {
        Self {
            stranger,
            answer: Vec::new(),
        }
    }

    fn http(stranger: Stranger, status: &str, fields: &str, text: &str) -> Self {
        let text = format!("attnroute: {text}\n");
        let answer = format!(
            "HTTP/1.1 {status}\r\ncontent-type: text/plain\r\nconnection: close\r\n{fields}\
             content-length: {}\r\n\r\n{text}",
            text.len()
        );
        Self {
            stranger,
            answer: answer.into_bytes(),
        }
    }

    fn malformed(text: &str) -> Self {
        Self::http(Stranger::Malformed, "400 Bad Request", "", text)
    }
}

/// Serves a connection of a `connect` listener until it ends.
pub(crate) async fn serve(thread: &Rc<Thread>, listener: &Arc<Listener>, mut socket: Socket) {
    let (timeout, head_max) = {
        let routing = thread.shared.routing.load();
        let timeout = Duration::from_millis(routing.timeouts.handshake_ms);
        (timeout, routing.limits.max_connect_head_bytes)
    };
    let reading = timeout_at(Instant::now() + timeout, opening(&mut socket, head_max));
    let opening = tokio::select! {
        opening = reading => opening.unwrap_or_else(|_| {
            Err(Refused::http(
                Stranger::Silent,
                "408 Request Timeout",
                "",
                "no whole request within `timeouts.handshake`",
            ))
        }),
        () = thread.going_away(listener).cancelled() => Err(Refused::silently(Stranger::Closed)),
    };
    match opening {
        Ok(Opening::Http2(head)) => {
            listener::speak_http2(thread, &Way::to(listener), socket, head).await;
        }
        Ok(Opening::Tunnel(target, rest)) => {
            let tunnel = Tunnel {
                thread,
                listener,
                target,
                timeout,
            };
            if let Err((socket, refused)) = tunnel.serve(socket, rest).await {
                refuse(thread, listener, socket, refused).await;
            }
        }
        Err(refused) => refuse(thread, listener, socket, refused).await,
    }
}

async fn refuse(thread: &Thread, listener: &Listener, mut socket: Socket, refused: Refused) {
    let Refused { stranger, answer } = refused;
    listener.stats.refused[stranger as usize].fetch_add(1, Relaxed);
    if stranger == Stranger::HeadTooLong {
        thread.shared.stats.hit(Limit::ConnectHead);
    }
    tracing::debug!(listener = %listener.name(), what = stranger.name(), "refused");
    if answer.is_empty() {
        return;
    }
    let leaving = tokio::time::timeout(FAREWELL, socket.write_all(&answer));
    if leaving.await.is_ok() {
        close_gently(socket).await;
    }
}

/// Reads until it is clear what the client wants.
async fn opening(socket: &mut Socket, head_max: usize) -> Result<Opening, Refused> {
    let mut head = BytesMut::with_capacity(1024);
    loop {
        if let Some(opening) = understood(&head, head_max)? {
            return Ok(match opening {
                Opening::Http2(_) => Opening::Http2(head.freeze()),
                tunnel => tunnel,
            });
        }
        match socket.read_buf(&mut head).await {
            Ok(0) | Err(_) => return Err(Refused::silently(Stranger::Closed)),
            Ok(_) => {}
        }
    }
}

/// What the first bytes say; `None` while they are too few.
fn understood(head: &[u8], head_max: usize) -> Result<Option<Opening>, Refused> {
    let known = head.len().min(PREFACE.len());
    if head[..known] == PREFACE[..known] {
        return Ok((known == PREFACE.len()).then(|| Opening::Http2(Bytes::new())));
    }
    match stranger_of(head) {
        Some(Stranger::Tls) => {
            return Err(Refused {
                stranger: Stranger::Tls,
                answer: TLS_ALERT.to_vec(),
            })
        }
        Some(Stranger::Unknown) => return Err(Refused::silently(Stranger::Unknown)),
        _ => {}
    }
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut request = httparse::Request::new(&mut fields);
    let length = match request.parse(head) {
        Ok(httparse::Status::Complete(length)) if length <= head_max => length,
        Ok(httparse::Status::Partial) if head.len() <= head_max => return Ok(None),
        Ok(_) | Err(httparse::Error::TooManyHeaders) => {
            return Err(Refused::http(
                Stranger::HeadTooLong,
                "431 Request Header Fields Too Large",
                "",
                &format!(
                "the request is longer than `limits.max_connect_head_bytes`, {head_max}, or has \
                     more than {FIELDS_MAX} fields"
            ),
            ))
        }
        Err(error) => {
            return Err(Refused::malformed(&format!("no HTTP/1.1 request: {error}")));
        }
    };
    let target = request.path.unwrap_or_default();
    if request.method != Some("CONNECT") {
        return Err(Refused::http(
            Stranger::Http1,
            "405 Method Not Allowed",
            "allow: CONNECT\r\n",
            "this port takes HTTP CONNECT, and HTTP/2 by prior knowledge",
        ));
    }
    let has_port = target
        .rsplit_once(':')
        .is_some_and(|(_, port)| !port.is_empty() && port.bytes().all(|one| one.is_ascii_digit()));
    if let (true, Ok(())) = (has_port, check_authority(target)) {
        let rest = Bytes::copy_from_slice(&head[length..]);
        return Ok(Some(Opening::Tunnel(target.to_owned(), rest)));
    }
    Err(Refused::malformed(
        "CONNECT needs `host:port`, the name of a service and a port",
    ))
}

/// What a client asked for.
struct Tunnel<'a> {
    thread: &'a Rc<Thread>,
    listener: &'a Arc<Listener>,
    target: String,
    /// For the first bytes that come through it.
    timeout: Duration,
}

impl Tunnel<'_> {
    /// Opens it and serves what comes through it.
    async fn serve(self, mut socket: Socket, rest: Bytes) -> Result<(), (Socket, Refused)> {
        let (thread, listener) = (self.thread, self.listener);
        let service = match self.service() {
            Ok(service) => service,
            Err(refused) => return Err((socket, refused)),
        };
        let (content, head) = match self.begin(&mut socket, rest).await {
            Ok(begun) => begun,
            Err(stranger) => return Err((socket, Refused::silently(stranger))),
        };
        listener.stats.tunnels.opened[content as usize].fetch_add(1, Relaxed);
        if content == Content::Http2 {
            let way = Way::through(listener, self.target);
            listener::speak_http2(thread, &way, socket, head).await;
            return Ok(());
        }
        if !listener.stats.tunnels.told.swap(true, Relaxed) {
            tracing::warn!(
                listener = %listener.name(), service = %service.name, content = content.name(),
                "a tunnel holds no HTTP/2 by prior knowledge: it passes through to one endpoint, \
                 and its calls are not balanced; have clients speak plain text to the sidecar"
            );
        }
        pass(thread, &service, socket, &head).await;
        Ok(())
    }

    fn service(&self) -> Result<Arc<Service>, Refused> {
        let routing = self.thread.shared.routing.load();
        let target = &self.target;
        let service = routing.authorities.find(target).cloned();
        service.ok_or_else(|| {
            let known = &routing.known_authorities;
            Refused::http(
                Stranger::UnknownTarget,
                "404 Not Found",
                "",
                &format!("no service has the authority `{target}`; configured are {known}"),
            )
        })
    }

    async fn begin(&self, socket: &mut Socket, rest: Bytes) -> Result<(Content, Bytes), Stranger> {
        let beginning = async {
            let answered = socket.write_all(ESTABLISHED).await;
            answered.map_err(|_| Stranger::Closed)?;
            first_bytes(socket, rest).await
        };
        tokio::select! {
            begun = timeout_at(Instant::now() + self.timeout, beginning) => {
                begun.unwrap_or(Err(Stranger::Silent))
            }
            () = self.thread.going_away(self.listener).cancelled() => Err(Stranger::Closed),
        }
    }
}

/// Reads until it is clear whether HTTP/2 begins.
async fn first_bytes(socket: &mut Socket, rest: Bytes) -> Result<(Content, Bytes), Stranger> {
    let mut head = BytesMut::from(rest);
    loop {
        let known = head.len().min(PREFACE.len());
        if head[..known] != PREFACE[..known] {
            let content = match stranger_of(&head) {
                Some(Stranger::Tls) => Content::Tls,
                _ => Content::Other,
            };
            return Ok((content, head.freeze()));
        }
        if known == PREFACE.len() {
            return Ok((Content::Http2, head.freeze()));
        }
        match socket.read_buf(&mut head).await {
            Ok(0) | Err(_) => return Err(Stranger::Closed),
            Ok(_) => {}
        }
    }
}

/// Passes bytes through to an endpoint until either side ends, or the drain limit is over.
async fn pass(thread: &Thread, service: &Service, mut socket: Socket, head: &[u8]) {
    let Some(mut endpoint) = dial(thread, service).await else {
        return;
    };
    let passing = async {
        endpoint.write_all(head).await?;
        copy_bidirectional(&mut socket, &mut endpoint).await
    };
    tokio::select! {
        _ = passing => {}
        () = thread.force.cancelled() => {}
    }
}

async fn dial(thread: &Thread, service: &Service) -> Option<Socket> {
    for _ in 0..DIALS_MAX {
        let (endpoint, timeout) = {
            let snapshot = service.snapshot();
            let mut rng = thread.rng.borrow_mut();
            let now_ns = thread.clock.now_ns();
            let chosen = service.choose(&snapshot, now_ns, RequestInfo::default(), &mut rng);
            let Ok((index, _)) = chosen else {
                tracing::warn!(service = %service.name, "no endpoint for a tunnel");
                return None;
            };
            let endpoint = Arc::clone(&snapshot.members[index as usize].endpoint);
            (endpoint, snapshot.settings.connection.connect_timeout())
        };
        let dialling = tokio::time::timeout(timeout, Socket::connect(&endpoint.address));
        match dialling.await {
            Ok(Ok(socket)) => return Some(socket),
            Ok(Err(_)) | Err(_) => {
                endpoint.live.connect_failures.fetch_add(1, Relaxed);
            }
        }
    }
    tracing::warn!(service = %service.name, "no endpoint of a tunnel can be connected to");
    None
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::{understood, Opening, Stranger};

    const MAX: usize = 200;

    fn refused(head: &[u8]) -> (Stranger, String) {
        let refused = understood(head, MAX).expect_err("it is refused");
        let answer = String::from_utf8_lossy(&refused.answer);
        let status = answer.get(9..12).unwrap_or_default();
        (refused.stranger, status.to_owned())
    }

    #[test]
    fn a_request_for_a_tunnel_is_understood_once_it_is_whole() {
        let whole = b"CONNECT cart:80 HTTP/1.1\r\nhost: cart:80\r\n\r\nPRI";
        for length in 0..whole.len() - 3 {
            assert_eq!(understood(&whole[..length], MAX), Ok(None), "{length}");
        }
        let rest = Bytes::from_static(b"PRI");
        let expected = Opening::Tunnel("cart:80".to_owned(), rest);
        assert_eq!(understood(whole, MAX), Ok(Some(expected)));
        let six = b"CONNECT [::1]:80 HTTP/1.0\n\n";
        let expected = Opening::Tunnel("[::1]:80".to_owned(), Bytes::new());
        assert_eq!(understood(six, MAX), Ok(Some(expected)));
    }

    #[test]
    fn http2_is_let_in_without_a_request() {
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nmore";
        assert_eq!(understood(&preface[..23], MAX), Ok(None));
        let expected = Opening::Http2(Bytes::new());
        assert_eq!(understood(preface, MAX), Ok(Some(expected)));
    }

    #[test]
    fn anything_else_is_told_what_is_wrong() {
        let long = [b"CONNECT cart:80 HTTP/1.1\r\nx: ".to_vec(), vec![b'y'; MAX]].concat();
        let many = [
            b"CONNECT cart:80 HTTP/1.1\r\n".to_vec(),
            b"a:\r\n".repeat(65),
        ]
        .concat();
        for (head, stranger, status) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], Stranger::Http1, "405"),
            (b"CONNECT cart HTTP/1.1\r\n\r\n", Stranger::Malformed, "400"),
            (
                b"CONNECT cart: HTTP/1.1\r\n\r\n",
                Stranger::Malformed,
                "400",
            ),
            (
                b"CONNECT a@b:80 HTTP/1.1\r\n\r\n",
                Stranger::Malformed,
                "400",
            ),
            (
                b"CONNECT cart:80 HTTP/1.1\r\n a\r\n\r\n",
                Stranger::Malformed,
                "400",
            ),
            (&long, Stranger::HeadTooLong, "431"),
            (&many, Stranger::HeadTooLong, "431"),
            (&[0x16, 0x03, 0x01, 0x02], Stranger::Tls, ""),
            (b"\0\0\0\0", Stranger::Unknown, ""),
        ] {
            let text = String::from_utf8_lossy(head);
            assert_eq!(refused(head), (stranger, status.to_owned()), "{text}");
        }
    }
}
