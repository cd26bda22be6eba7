//! A bound address: accepting connections, and finding out what they speak.
//!
//! Only HTTP/2 by prior knowledge is served. Anything else gets an answer in its own language
//! where there is one (HTTP/1.1: 426; TLS: an alert), is counted by kind, and closed: a client
//! that dialled the wrong port should learn why, not time out.

use std::cell::RefCell;
use std::io;
use std::net::Shutdown;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::{Bytes, BytesMut};
use http::uri::Authority;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};

use crate::address::Address;
use crate::config::{ListenerConfig, ListenerMode};
use crate::connect::{self, TunnelStats};
use crate::error::BindError;
use crate::io::{close_gently, Rewound, Socket, Tcp};
use crate::runtime::{Routing, Thread};
use crate::server;
use crate::service::Service;
use crate::stats::Limit;

/// What an HTTP/2 client sends first (RFC 9113 3.4).
pub(crate) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const NOT_HTTP2: &[u8] = b"HTTP/1.1 426 Upgrade Required\r\n\
    content-type: text/plain\r\nconnection: close, upgrade\r\nupgrade: h2c\r\n\
    content-length: 86\r\n\r\n\
    attnroute: this port speaks gRPC: HTTP/2 by prior knowledge, neither HTTP/1.1 nor TLS\n";

/// A TLS record: fatal alert 70, protocol_version (RFC 8446 6.2).
pub(crate) const TLS_ALERT: &[u8] = &[0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 70];

/// Longest method of an HTTP/1 request.
const METHOD_MAX: usize = 32;

/// A request line that is longer is not waited for.
const FIRST_LINE_MAX: usize = 1024;

/// How long an answer to a stranger may take to leave.
const FAREWELL: Duration = Duration::from_secs(1);

/// Wait after an accept that failed for lack of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// One listener, shared by the data threads.
#[derive(Debug)]
pub struct Listener {
    /// As configured. A reload may change everything but the address.
    pub config: ArcSwap<ListenerConfig>,
    /// Where it is bound, with the port that the system picked.
    pub bound: Address,
    /// Counters.
    pub stats: ListenerStats,
    /// `None` once closed: a socket that stays open would still take connections, and hold them.
    socket: Mutex<Option<BoundSocket>>,
}

/// Counters of a listener.
#[derive(Debug, Default)]
pub struct ListenerStats {
    /// Connections open now.
    pub open: AtomicUsize,
    /// Connections ever accepted.
    pub accepted: AtomicU64,
    /// Connections closed before HTTP/2 began, by [`Stranger`].
    pub refused: [AtomicU64; Stranger::ALL.len()],
    /// Accepts that the system refused.
    pub accept_errors: AtomicU64,
    /// Tunnels of a `connect` listener.
    pub tunnels: TunnelStats,
}

/// What a connection was that did not begin HTTP/2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Stranger {
    /// An HTTP/1 request.
    Http1,
    /// A TLS handshake.
    Tls,
    /// Something else.
    Unknown,
    /// Nothing, or half a preface, until `timeouts.handshake`.
    Silent,
    /// It closed by itself, or its socket failed.
    Closed,
    /// A CONNECT request that is none.
    Malformed,
    /// A CONNECT request beyond `limits.max_connect_head_bytes`.
    HeadTooLong,
    /// A CONNECT request for what no service is called.
    UnknownTarget,
}

impl Stranger {
    /// Every kind.
    pub const ALL: [Self; 8] = [
        Self::Http1,
        Self::Tls,
        Self::Unknown,
        Self::Silent,
        Self::Closed,
        Self::Malformed,
        Self::HeadTooLong,
        Self::UnknownTarget,
    ];

    /// Its metric label.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Http1 => "http1",
            Self::Tls => "tls",
            Self::Unknown => "unknown_protocol",
            Self::Silent => "handshake_timeout",
            Self::Closed => "closed",
            Self::Malformed => "malformed",
            Self::HeadTooLong => "head_too_long",
            Self::UnknownTarget => "unknown_target",
        }
    }
}

/// How a client's calls come in.
#[derive(Debug)]
pub(crate) struct Way {
    pub(crate) listener: Arc<Listener>,
    /// What it asked a tunnel for; it decides which service takes the calls.
    target: Option<String>,
}

impl Way {
    /// Straight to a listener.
    pub(crate) fn to(listener: &Arc<Listener>) -> Self {
        Self {
            listener: Arc::clone(listener),
            target: None,
        }
    }

    /// Through a tunnel.
    pub(crate) fn through(listener: &Arc<Listener>, target: String) -> Self {
        Self {
            listener: Arc::clone(listener),
            target: Some(target),
        }
    }

    /// The service of a call with this authority.
    pub(crate) fn service<'a>(
        &self,
        routing: &'a Routing,
        authority: Option<&str>,
    ) -> Option<&'a Arc<Service>> {
        match &self.target {
            Some(target) => routing.authorities.find(target),
            None => self.listener.service(routing, authority),
        }
    }

    /// By which name the service was asked for, if by any.
    pub(crate) fn asked<'a>(&'a self, authority: Option<&'a str>) -> Option<&'a str> {
        self.target.as_deref().or(authority)
    }
}

#[derive(Debug)]
enum BoundSocket {
    Tcp(std::net::TcpListener),
    Unix(std::os::unix::net::UnixListener, Option<FileId>),
}

/// Device and inode.
type FileId = (u64, u64);

enum Acceptor {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Binds. SO_REUSEPORT is not used: with it two sidecars would share a port without a word.
    /// Data threads accept from duplicates of one socket instead, so a busy thread takes less.
    pub fn bind(config: ListenerConfig) -> Result<Self, BindError> {
        let (socket, bound) = match bind(&config.address) {
            Ok(bound) => bound,
            Err(cause) => {
                return Err(BindError {
                    listener: config.name,
                    address: config.address.to_string(),
                    source_position: config.source,
                    cause,
                })
            }
        };
        let socket = Mutex::new(Some(socket));
        Ok(Self {
            config: ArcSwap::from_pointee(config),
            bound,
            stats: ListenerStats::default(),
            socket,
        })
    }

    /// The service of a call with this authority; `None` for the listener's default.
    fn service<'a>(
        &self,
        routing: &'a Routing,
        authority: Option<&str>,
    ) -> Option<&'a Arc<Service>> {
        let config = self.config.load();
        match (config.mode, authority) {
            (ListenerMode::Explicit | ListenerMode::Connect, Some(authority)) => {
                routing.authorities.find(authority)
            }
            (ListenerMode::Inbound, _) => routing.services.get(&config.name),
            _ => routing.services.get(config.service.as_ref()?),
        }
    }

    /// What endpoints see of a call that came without an authority.
    pub(crate) fn default_authority(&self) -> Authority {
        let config = self.config.load();
        let service = config.service.as_deref().unwrap_or_default();
        service
            .parse()
            .unwrap_or_else(|_| Authority::from_static("localhost"))
    }

    /// Takes no more connections. Those that are open go on.
    pub(crate) fn close(&self) {
        // Shut down, since data threads hold duplicates until their next turn: until then clients
        // would wait behind a socket that nobody accepts from, and the address could not be bound.
        match self.socket.lock().take() {
            None => {}
            Some(BoundSocket::Tcp(socket)) => {
                let _ = socket2::SockRef::from(&socket).shutdown(Shutdown::Both);
            }
            Some(BoundSocket::Unix(socket, id)) => {
                let _ = socket2::SockRef::from(&socket).shutdown(Shutdown::Both);
                self.remove_file(id);
            }
        }
    }

    /// Removes the socket file, unless somebody has put another one in its place.
    fn remove_file(&self, id: Option<FileId>) {
        if let Address::Unix(path) = &self.bound {
            if id.is_some() && file_id(path) == id {
                let _ = std::fs::remove_file(path);
            }
        }
    }

    /// Whether it stands in front of a server, and so leaves first when the process drains.
    pub(crate) fn is_inbound(&self) -> bool {
        self.config.load().mode == ListenerMode::Inbound
    }

    /// Its name in the policy in force, the value of the `listener` label.
    #[must_use]
    pub fn name(&self) -> String {
        self.config.load().name.clone()
    }

    /// A duplicate to accept from; `None` once closed.
    fn acceptor(&self) -> io::Result<Option<Acceptor>> {
        Ok(match &*self.socket.lock() {
            None => None,
            Some(BoundSocket::Tcp(socket)) => {
                Some(Acceptor::Tcp(TcpListener::from_std(socket.try_clone()?)?))
            }
            Some(BoundSocket::Unix(socket, _)) => {
                Some(Acceptor::Unix(UnixListener::from_std(socket.try_clone()?)?))
            }
        })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.close();
    }
}

fn bind(address: &Address) -> io::Result<(BoundSocket, Address)> {
    match address {
        Address::Tcp(address) => {
            let domain = socket2::Domain::for_address(*address);
            let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
            socket.set_reuse_address(true)?;
            socket.bind(&(*address).into())?;
            socket.listen(1024)?;
            socket.set_nonblocking(true)?;
            let socket = std::net::TcpListener::from(socket);
            let bound = Address::Tcp(socket.local_addr()?);
            Ok((BoundSocket::Tcp(socket), bound))
        }
        Address::Unix(path) => {
            remove_stale_socket(path)?;
            let socket = std::os::unix::net::UnixListener::bind(path)?;
            socket.set_nonblocking(true)?;
            Ok((BoundSocket::Unix(socket, file_id(path)), address.clone()))
        }
    }
}

fn file_id(path: &Path) -> Option<FileId> {
    use std::os::unix::fs::MetadataExt;
    let data = std::fs::symlink_metadata(path).ok()?;
    Some((data.dev(), data.ino()))
}

/// Removes a socket file that nobody listens on any more; one that is served stays busy.
fn remove_stale_socket(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|data| data.file_type().is_socket());
    if !is_socket {
        return Ok(());
    }
    // Must not wait for somebody who listens and does not accept.
    let probe = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)?;
    probe.set_nonblocking(true)?;
    match probe.connect(&socket2::SockAddr::unix(path)?) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
        }
        _ => Ok(()),
    }
}

/// Accepts until `stop` is cancelled.
pub(crate) async fn accept(
    thread: Rc<Thread>,
    listener: Arc<Listener>,
    stop: tokio_util::sync::CancellationToken,
) {
    let acceptor = match listener.acceptor() {
        Ok(Some(acceptor)) => acceptor,
        Ok(None) => return,
        Err(error) => {
            tracing::error!(listener = %listener.name(), %error, "cannot accept");
            return;
        }
    };
    loop {
        let accepted = tokio::select! {
            biased;
            // First: a socket that was shut down is no error.
            () = stop.cancelled() => return,
            accepted = acceptor.accept() => accepted,
        };
        match accepted {
            Ok(socket) => admit(&thread, &listener, socket),
            Err(error) => {
                listener.stats.accept_errors.fetch_add(1, Relaxed);
                tracing::warn!(listener = %listener.name(), %error, "accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

impl Acceptor {
    async fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // A peer that is gone already must not count as our fault.
                let _ = stream.set_nodelay(true);
                Ok(Socket::Tcp(Tcp::new(stream)))
            }
            Self::Unix(listener) => Ok(Socket::Unix(listener.accept().await?.0)),
        }
    }
}

fn admit(thread: &Rc<Thread>, listener: &Arc<Listener>, socket: Socket) {
    let open = Open::new(Arc::clone(listener));
    let limit = thread.shared.routing.load().limits.max_connections;
    if listener.stats.open.load(Relaxed) > limit {
        thread.shared.stats.hit(Limit::Connections);
        return;
    }
    let thread = Rc::clone(thread);
    tokio::task::spawn_local(async move {
        serve(&thread, &open, socket).await;
    });
}

/// A client connection, counted while it is open.
struct Open(Arc<Listener>);

impl Open {
    fn new(listener: Arc<Listener>) -> Self {
        listener.stats.open.fetch_add(1, Relaxed);
        listener.stats.accepted.fetch_add(1, Relaxed);
        Self(listener)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.stats.open.fetch_sub(1, Relaxed);
    }
}

async fn serve(thread: &Rc<Thread>, open: &Open, mut socket: Socket) {
    if open.0.config.load().mode == ListenerMode::Connect {
        return Box::pin(connect::serve(thread, &open.0, socket)).await;
    }
    let timeout = Duration::from_millis(thread.shared.routing.load().timeouts.handshake_ms);
    let sniffed = tokio::select! {
        sniffed = tokio::time::timeout(timeout, sniff(&mut socket)) => {
            sniffed.unwrap_or(Err(Stranger::Silent))
        }
        // Whoever has not even begun HTTP/2 holds no drain up (H2-51).
        () = thread.going_away(&open.0).cancelled() => Err(Stranger::Closed),
    };
    match sniffed {
        Ok(head) => speak_http2(thread, &Way::to(&open.0), socket, head).await,
        Err(stranger) => {
            open.0.stats.refused[stranger as usize].fetch_add(1, Relaxed);
            tracing::debug!(listener = %open.0.name(), what = stranger.name(), "refused");
            let farewell = match stranger {
                Stranger::Http1 => NOT_HTTP2,
                Stranger::Tls => TLS_ALERT,
                _ => return,
            };
            if tokio::time::timeout(FAREWELL, socket.write_all(farewell))
                .await
                .is_ok()
            {
                Box::pin(close_gently(socket)).await;
            }
        }
    }
}

/// Serves a client that has sent `head`, the preface first.
pub(crate) async fn speak_http2(thread: &Rc<Thread>, way: &Way, mut socket: Socket, head: Bytes) {
    socket.join_writes();
    let socket = Rc::new(RefCell::new(socket));
    server::serve(thread, way, Rewound::new(&socket, head)).await;
    // HTTP/2 is over and has given its half back. What reads the rest is as large as its buffer and
    // stands apart: a connection that is open need not hold it.
    if let Some(socket) = Rc::into_inner(socket) {
        tokio::select! {
            () = Box::pin(close_gently(socket.into_inner())) => {}
            () = thread.force.cancelled() => {}
        }
    }
}

/// Reads until it is clear that HTTP/2 begins, or that it does not. Returns what was read.
async fn sniff(socket: &mut Socket) -> Result<Bytes, Stranger> {
    let mut head = BytesMut::with_capacity(1024);
    loop {
        if head.len() >= PREFACE.len() && head.starts_with(PREFACE) {
            return Ok(head.freeze());
        }
        let known = head.len().min(PREFACE.len());
        if head[..known] != PREFACE[..known] {
            if let Some(stranger) = stranger_of(&head) {
                return Err(stranger);
            }
        }
        match socket.read_buf(&mut head).await {
            Ok(0) | Err(_) => return Err(Stranger::Closed),
            Ok(_) => {}
        }
    }
}

/// What is no HTTP/2; `None` while its first line is not whole.
pub(crate) fn stranger_of(head: &[u8]) -> Option<Stranger> {
    // A TLS record of type handshake, any 3.x version (RFC 8446 5.1).
    if head.len() >= 2 && head[0] == 0x16 && head[1] == 0x03 || head == [0x16] {
        return Some(Stranger::Tls);
    }
    let method = head
        .iter()
        .take_while(|byte| byte.is_ascii_uppercase())
        .count();
    if method == 0 || method > METHOD_MAX || head.get(method).is_some_and(|byte| *byte != b' ') {
        return Some(Stranger::Unknown);
    }
    match head.iter().position(|byte| *byte == b'\n') {
        // The version stands last (RFC 9112 3).
        Some(end)
            if head[..end]
                .trim_ascii_end()
                .rsplit(|byte| *byte == b' ')
                .next()
                .is_some_and(|version| version.starts_with(b"HTTP/1.")) =>
        {
            Some(Stranger::Http1)
        }
        Some(_) => Some(Stranger::Unknown),
        None if head.len() < FIRST_LINE_MAX => None,
        None => Some(Stranger::Http1),
    }
}

#[cfg(test)]
mod tests {
    use super::{stranger_of, Stranger, NOT_HTTP2};

    #[test]
    fn tells_strangers_apart() {
        let long = [b"GET /".to_vec(), vec![b'x'; super::FIRST_LINE_MAX]].concat();
        for (head, expected) in [
            (b"GET / HTTP/1.1\r\n".as_slice(), Some(Stranger::Http1)),
            (b"GET / HTTP/1.0\nhost: a", Some(Stranger::Http1)),
            (&long, Some(Stranger::Http1)),
            (b"POST", None),
            (&[b'E'; super::METHOD_MAX + 1], Some(Stranger::Unknown)),
            (b"GET /", None),
            (
                b"INVALID CONNECTION PREFACE\r\n\r\n",
                Some(Stranger::Unknown),
            ),
            (b"GET /\r\n", Some(Stranger::Unknown)),
            (&[0x16, 0x03, 0x01, 0x02], Some(Stranger::Tls)),
            (&[0x16], Some(Stranger::Tls)),
            (&[0x16, 0x99], Some(Stranger::Unknown)),
            (b"\0\0\0", Some(Stranger::Unknown)),
            (b"PRI\0", Some(Stranger::Unknown)),
        ] {
            assert_eq!(stranger_of(head), expected, "{}", head.escape_ascii());
        }
    }

    #[test]
    fn announces_the_length_of_its_answer() {
        let text = std::str::from_utf8(NOT_HTTP2).expect("ascii");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        assert!(
            head.contains(&format!("content-length: {}", body.len())),
            "{}",
            body.len()
        );
    }
}
