//! One socket type for every place bytes come from: TCP or a Unix socket, dialled or accepted,
//! with the bytes that a listener had to read before it knew what it was talking to.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{ready, Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use crate::address::Address;

/// A connected socket.
#[derive(Debug)]
pub(crate) enum Socket {
    /// TCP, without Nagle's delay.
    Tcp(Tcp),
    /// A Unix socket.
    Unix(UnixStream),
}

impl Socket {
    /// From here on only HTTP/2 writes, whose large writes are joined.
    pub(crate) fn join_writes(&mut self) {
        if let Self::Tcp(tcp) = self {
            tcp.joins = true;
        }
    }

    /// Dials.
    pub(crate) async fn connect(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Ok(Self::Tcp(Tcp::new(stream)))
            }
            Address::Unix(path) => Ok(Self::Unix(UnixStream::connect(path).await?)),
        }
    }
}

/// Writes of at least so many bytes are likely to be followed by more: DATA frames of a large
/// message come one by one, each with a flush of its own.
const BULK_BYTES: usize = 8 * 1024;

/// More follows, which may share a segment; without a signal where the peer is gone.
#[cfg(target_os = "linux")]
const MORE: i32 = 0x8000 | 0x4000;
#[cfg(not(target_os = "linux"))]
const MORE: i32 = 0;

/// A TCP connection that joins large writes: the system keeps what does not fill a segment until
/// more comes, or until nothing more does. A segment carries four frames then, and the peer is
/// woken once instead of four times.
#[derive(Debug)]
pub(crate) struct Tcp {
    stream: TcpStream,
    /// Whether whoever writes flushes as [`Joining`] has it.
    joins: bool,
    joining: Joining,
}

/// Whether the system holds bytes back, and until when.
///
/// h2 flushes after each DATA frame that it writes, and once more when it has no other: the second
/// flush in a row is the end.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Joining {
    /// Everything is on its way.
    #[default]
    No,
    /// The last write said that more follows.
    Wrote,
    /// The same, and one flush came since.
    Flushed,
}

impl Joining {
    /// A flush. Whether what is held back has to leave.
    fn flush(&mut self) -> bool {
        let leaves = *self == Self::Flushed;
        *self = match self {
            Self::Wrote => Self::Flushed,
            Self::No | Self::Flushed => Self::No,
        };
        leaves
    }
}

impl Tcp {
    /// A connection of which nothing was written yet.
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            joins: false,
            joining: Joining::No,
        }
    }

    fn poll_write_bulk(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.stream.poll_write_ready(cx))?;
            let send = || SockRef::from(&self.stream).send_vectored_with_flags(slices, MORE);
            match self.stream.try_io(Interest::WRITABLE, send) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                sent => {
                    self.joining = Joining::Wrote;
                    return Poll::Ready(sent);
                }
            }
        }
    }
}

impl AsyncRead for Tcp {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Tcp {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(data)])
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.joining.flush() {
            // Said again, it sends at once what is held back.
            this.stream.set_nodelay(true)?;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let length: usize = slices.iter().map(|slice| slice.len()).sum();
        if this.joins && length >= BULK_BYTES {
            return this.poll_write_bulk(cx, slices);
        }
        let written = ready!(Pin::new(&mut this.stream).poll_write_vectored(cx, slices))?;
        // A write that says nothing of more takes along what was held back.
        this.joining = Joining::No;
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}

/// What went through a socket so far.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// Bytes that were read.
    pub(crate) read: Cell<u64>,
    /// Bytes that the system took.
    pub(crate) written: Cell<u64>,
}

/// A socket that counts, so that it is known whether a frame can have left, and whether the peer
/// still says anything.
#[derive(Debug)]
pub(crate) struct Counted {
    socket: Socket,
    traffic: Rc<Traffic>,
}

impl Counted {
    pub(crate) fn new(socket: Socket) -> Self {
        Self {
            socket,
            traffic: Rc::default(),
        }
    }

    /// Its counters.
    pub(crate) fn traffic(&self) -> Rc<Traffic> {
        Rc::clone(&self.traffic)
    }

    fn note_written(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(count)) = &written {
            let traffic = &self.traffic.written;
            traffic.set(traffic.get() + *count as u64);
        }
        written
    }
}

/// How long a closed connection may go on receiving what is thrown away.
const LINGER: Duration = Duration::from_secs(2);

/// A socket whose first bytes were read already, lent to HTTP/2 for as long as it is spoken.
#[derive(Debug)]
pub(crate) struct Rewound {
    socket: Rc<RefCell<Socket>>,
    head: Bytes,
}

impl Rewound {
    /// Hands out `head` first, then what the socket has.
    pub(crate) fn new(socket: &Rc<RefCell<Socket>>, head: Bytes) -> Self {
        Self {
            socket: Rc::clone(socket),
            head,
        }
    }
}

/// Sends what was written, then reads until the peer closes too, for at most [`LINGER`]. Closing a
/// socket that holds unread bytes (a late WINDOW_UPDATE is enough) resets the connection, and a
/// reset takes what the peer has not read yet with it: the tail of the last answer (H2-07).
pub(crate) async fn close_gently(mut socket: Socket) {
    let reading = async {
        let _ = socket.shutdown().await;
        let mut sink = [0; 4096];
        while socket.read(&mut sink).await.is_ok_and(|count| count > 0) {}
    };
    let _ = tokio::time::timeout(LINGER, reading).await;
}

/// Calls the same method of whichever socket it is.
macro_rules! on_socket {
    ($socket:expr, $inner:ident => $call:expr) => {
        match $socket {
            Socket::Tcp($inner) => $call,
            Socket::Unix($inner) => $call,
        }
    };
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        on_socket!(self.get_mut(), inner => Pin::new(inner).poll_read(cx, buffer))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        on_socket!(self.get_mut(), inner => Pin::new(inner).poll_write(cx, data))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_socket!(self.get_mut(), inner => Pin::new(inner).poll_flush(cx))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        on_socket!(self.get_mut(), inner => Pin::new(inner).poll_shutdown(cx))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        on_socket!(self.get_mut(), inner => Pin::new(inner).poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}

impl AsyncRead for Rewound {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.head.is_empty() {
            return Pin::new(&mut *this.socket.borrow_mut()).poll_read(cx, buffer);
        }
        let count = this.head.len().min(buffer.remaining());
        buffer.put_slice(&this.head[..count]);
        this.head.advance(count);
        if this.head.is_empty() {
            // Nothing of it would still hold all of its buffer, for as long as the connection lives.
            this.head = Bytes::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Rewound {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.get_mut().socket.borrow_mut()).poll_write(cx, data)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.get_mut().socket.borrow_mut()).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.get_mut().socket.borrow_mut()).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.get_mut().socket.borrow_mut()).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let polled = Pin::new(&mut this.socket).poll_read(cx, buffer);
        let count = (buffer.filled().len() - before) as u64;
        this.traffic.read.set(this.traffic.read.get() + count);
        polled
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.socket).poll_write(cx, data);
        this.note_written(written)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.socket).poll_write_vectored(cx, slices);
        this.note_written(written)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::IoSlice;
    use std::pin::Pin;

    use tokio::io::{AsyncReadExt, AsyncWrite};
    use tokio::net::{TcpListener, TcpStream};

    use super::{Joining, Tcp, BULK_BYTES};

    #[test]
    fn the_second_flush_in_a_row_lets_go() {
        let mut joining = Joining::Wrote;
        assert_eq!([joining.flush(), joining.flush()], [false, true]);
        assert_eq!([joining.flush(), joining.flush()], [false, false]);
    }

    async fn pair() -> (Tcp, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let stream = TcpStream::connect(address).await.expect("it listens");
        stream.set_nodelay(true).expect("an option");
        let mut tcp = Tcp::new(stream);
        tcp.joins = true;
        (tcp, listener.accept().await.expect("dialled").0)
    }

    async fn write(tcp: &mut Tcp, data: &[u8]) {
        let mut left = data;
        while !left.is_empty() {
            let slices = [IoSlice::new(left)];
            let count = poll_fn(|cx| Pin::new(&mut *tcp).poll_write_vectored(cx, &slices))
                .await
                .expect("the peer reads");
            left = &left[count..];
        }
    }

    async fn flush(tcp: &mut Tcp) {
        poll_fn(|cx| Pin::new(&mut *tcp).poll_flush(cx))
            .await
            .expect("it is open");
    }

    #[test]
    fn large_and_small_writes_come_whole_and_in_order() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let (mut tcp, mut peer) = pair().await;
            let large: Vec<u8> = (0..BULK_BYTES + 1).map(|at| at as u8).collect();
            for _ in 0..3 {
                write(&mut tcp, &large).await;
                flush(&mut tcp).await;
                assert_eq!(tcp.joining, Joining::Flushed);
            }
            flush(&mut tcp).await;
            assert_eq!(tcp.joining, Joining::No);
            let mut found = vec![0; 3 * large.len()];
            peer.read_exact(&mut found).await.expect("all of it");
            assert_eq!(found, large.repeat(3));
            write(&mut tcp, &large).await;
            write(&mut tcp, b"end").await;
            assert_eq!(tcp.joining, Joining::No, "a small write lets go, too");
            found.truncate(large.len() + 3);
            peer.read_exact(&mut found).await.expect("all of it");
            assert!(found.ends_with(b"end"));
        });
    }
}
