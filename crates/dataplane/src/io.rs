//! One socket type for every place bytes come from: TCP or a Unix socket, dialled or accepted,
//! with the bytes that a listener had to read before it knew what it was talking to.

use std::cell::{Cell, RefCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

use crate::address::Address;

/// A connected socket.
#[derive(Debug)]
pub(crate) enum Socket {
    /// TCP, without Nagle's delay.
    Tcp(TcpStream),
    /// A Unix socket.
    Unix(UnixStream),
}

impl Socket {
    /// Dials.
    pub(crate) async fn connect(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Ok(Self::Tcp(stream))
            }
            Address::Unix(path) => Ok(Self::Unix(UnixStream::connect(path).await?)),
        }
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
