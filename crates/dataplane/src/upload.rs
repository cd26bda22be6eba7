//! What a client has sent of a call that may be tried again, and its way to the attempts that run.
//!
//! A frame is read from the client only when some attempt has sent all there was before it, and the
//! client's window is given back only when the foremost attempt has handed the bytes on: the fastest
//! one sets the pace, and what is kept never exceeds the limits by more than a frame. A call that
//! sends more than they allow goes on, but is not tried again (RS-11).

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;
use std::task::{ready, Context, Poll};

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use http::HeaderMap;

use crate::framing::Framing;
use crate::replay::to_keep;
use crate::service::Service;
use crate::stats::Limit;

/// The request of a call, kept until its answer begins.
#[derive(Debug)]
pub(crate) struct Upload {
    /// The rest of it; `None` if it ended with its headers.
    from: Option<RecvStream>,
    kept: VecDeque<Bytes>,
    /// Frames that are kept no more, because nobody will send them again.
    dropped: usize,
    end: Option<End>,
    /// The limit that costs the call its other tries.
    lost: Option<Limit>,
    max_bytes: usize,
    max_bytes_total: usize,
    /// Bytes that the foremost attempt handed on.
    handed_on: u64,
    /// Messages among them.
    pub(crate) asked: Framing,
    account: Account,
}

/// How the request ended.
#[derive(Debug)]
enum End {
    Plain,
    Trailers(HeaderMap),
}

/// How far an attempt has come.
#[derive(Debug)]
pub(crate) struct Cursor {
    /// Frames that it sent.
    frames: usize,
    /// Of the next one, bytes that it sent.
    offset: usize,
    bytes: u64,
    /// It sent everything, or its endpoint takes no more.
    is_done: bool,
}

/// What is left for an attempt to send once it is the only one.
#[derive(Debug)]
pub(crate) struct Rest {
    frames: VecDeque<Bytes>,
    /// Bytes at its beginning for which the client has its window back already.
    settled: usize,
    trailers: Option<HeaderMap>,
}

/// Bytes kept by all calls of a service, this one's given back on drop.
#[derive(Debug)]
struct Account {
    service: Arc<Service>,
    bytes: u64,
}

/// The client is gone.
#[derive(Debug)]
pub(crate) struct ClientGone;

impl Upload {
    /// `taken`: what was read of it already.
    pub(crate) fn new(service: &Arc<Service>, from: RecvStream, taken: Bytes) -> Self {
        let limits = &service.snapshot().settings.limits;
        let is_over = from.is_end_stream();
        let is_empty = is_over && taken.is_empty();
        let mut upload = Self {
            end: is_over.then_some(End::Plain),
            from: (!is_empty).then_some(from),
            kept: VecDeque::new(),
            dropped: 0,
            lost: None,
            max_bytes: limits.max_replay_bytes,
            max_bytes_total: limits.max_replay_bytes_total,
            handed_on: 0,
            asked: Framing::with_limit(limits.max_message_bytes.unwrap_or(u32::MAX)),
            account: Account {
                service: Arc::clone(service),
                bytes: 0,
            },
        };
        if !taken.is_empty() {
            upload.keep(taken);
        }
        upload
    }

    /// Whether the request is nothing but its headers.
    pub(crate) fn is_empty(&self) -> bool {
        self.from.is_none()
    }

    /// Whether something waits for the endpoint of an attempt.
    pub(crate) fn is_held(&self, cursor: &Cursor) -> bool {
        !cursor.is_done && cursor.frames - self.dropped < self.kept.len()
    }

    /// The limit because of which it cannot be sent again.
    pub(crate) fn lost(&self) -> Option<Limit> {
        self.lost
    }

    /// Of two attempts, whether the first has sent more.
    pub(crate) fn is_ahead(one: &Cursor, other: &Cursor) -> bool {
        one.bytes > other.bytes
    }

    /// Lets an attempt send what it can; ready once it has sent everything. `moving` sees every
    /// byte that nobody had sent before.
    pub(crate) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        cursor: &mut Cursor,
        to: &mut SendStream<Bytes>,
        moving: impl Fn(&[u8]),
    ) -> Poll<Result<(), ClientGone>> {
        while !cursor.is_done {
            let Some(frame) = self.kept.get(cursor.frames - self.dropped) else {
                match &self.end {
                    None => ready!(self.poll_read(cx))?,
                    Some(End::Plain) => {
                        cursor.is_done = true;
                        let _ = to.send_data(Bytes::new(), true);
                    }
                    Some(End::Trailers(trailers)) => {
                        cursor.is_done = true;
                        let _ = to.send_trailers(trailers.clone());
                    }
                }
                continue;
            };
            let missing = frame.len() - cursor.offset;
            to.reserve_capacity(missing);
            let room = to.capacity().min(missing);
            if room == 0 {
                match ready!(to.poll_capacity(cx)) {
                    Some(Ok(_)) => continue,
                    // It takes no more, and may still be answering (H2-08).
                    Some(Err(_)) | None => cursor.is_done = true,
                }
                continue;
            }
            let part = frame.slice(cursor.offset..cursor.offset + room);
            let is_last = room == missing
                && cursor.frames + 1 == self.dropped + self.kept.len()
                && matches!(self.end, Some(End::Plain));
            cursor.advance(room, missing);
            self.settle(cursor, &part, &moving);
            if to.send_data(part, is_last).is_err() || is_last {
                cursor.is_done = true;
            }
            if self.lost.is_some() {
                // Nobody else will send it.
                let sent = cursor.frames - self.dropped;
                self.kept.drain(..sent);
                self.dropped = cursor.frames;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Gives the client the window back for what was handed on for the first time.
    fn settle(&mut self, cursor: &Cursor, part: &[u8], moving: &dyn Fn(&[u8])) {
        let fresh = cursor.bytes.saturating_sub(self.handed_on) as usize;
        if fresh == 0 {
            return;
        }
        self.handed_on = cursor.bytes;
        let fresh = &part[part.len() - fresh.min(part.len())..];
        self.asked.advance(fresh);
        moving(fresh);
        if let Some(from) = &mut self.from {
            let _ = from.flow_control().release_capacity(fresh.len());
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ClientGone>> {
        let Some(from) = &mut self.from else {
            self.end = Some(End::Plain);
            return Poll::Ready(Ok(()));
        };
        let frame = match ready!(from.poll_data(cx)) {
            Some(Ok(frame)) => frame,
            Some(Err(_)) => return Poll::Ready(Err(ClientGone)),
            None => {
                self.end = Some(match ready!(from.poll_trailers(cx)) {
                    Ok(Some(trailers)) => End::Trailers(trailers),
                    Ok(None) => End::Plain,
                    Err(_) => return Poll::Ready(Err(ClientGone)),
                });
                return Poll::Ready(Ok(()));
            }
        };
        if from.is_end_stream() {
            self.end = Some(End::Plain);
        }
        if !frame.is_empty() {
            self.keep(frame);
        }
        Poll::Ready(Ok(()))
    }

    fn keep(&mut self, frame: Bytes) {
        if self.lost.is_none() {
            let total = self.account.add(frame.len());
            if self.account.bytes > self.max_bytes as u64 {
                self.lost = Some(Limit::ReplayBytes);
            } else if total > self.max_bytes_total as u64 {
                self.lost = Some(Limit::ReplayBytesTotal);
            }
            if self.lost.is_some() {
                self.account.clear();
            }
        }
        let frame = match self.lost {
            None => to_keep(&frame),
            Some(_) => frame,
        };
        self.kept.push_back(frame);
    }

    /// What an attempt has still to send, with where the rest of the request comes from; `None` if
    /// it has sent everything.
    pub(crate) fn into_rest(mut self, cursor: &Cursor) -> Option<(RecvStream, Rest)> {
        if cursor.is_done {
            return None;
        }
        let from = self.from.take()?;
        let mut frames = std::mem::take(&mut self.kept);
        frames.drain(..cursor.frames - self.dropped);
        if let Some(first) = frames.front_mut() {
            *first = first.slice(cursor.offset..);
        }
        let trailers = match self.end.take() {
            Some(End::Trailers(trailers)) => Some(trailers),
            _ => None,
        };
        let settled = (self.handed_on - cursor.bytes) as usize;
        Some((
            from,
            Rest {
                frames,
                settled,
                trailers,
            },
        ))
    }
}

impl Cursor {
    /// Of an attempt that begins. `is_done`: its headers end the request.
    pub(crate) fn new(is_done: bool) -> Self {
        Self {
            frames: 0,
            offset: 0,
            bytes: 0,
            is_done,
        }
    }

    fn advance(&mut self, sent: usize, missing: usize) {
        self.bytes += sent as u64;
        if sent == missing {
            (self.frames, self.offset) = (self.frames + 1, 0);
        } else {
            self.offset += sent;
        }
    }
}

impl Rest {
    /// The next frame.
    pub(crate) fn next_frame(&mut self) -> Option<Bytes> {
        self.frames.pop_front()
    }

    /// Whether nothing follows the frame that was taken last.
    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.trailers.is_none()
    }

    /// Of so many bytes that are handed on now, those for which the client has its window back.
    pub(crate) fn settle(&mut self, bytes: usize) -> usize {
        let settled = bytes.min(self.settled);
        self.settled -= settled;
        settled
    }

    /// The request's trailers, if it has ended with some.
    pub(crate) fn take_trailers(&mut self) -> Option<HeaderMap> {
        self.trailers.take()
    }
}

impl Account {
    /// Adds to it; returns what all calls keep now.
    fn add(&mut self, bytes: usize) -> u64 {
        let bytes = bytes as u64;
        self.bytes += bytes;
        let all = &self.service.stats.repetition.replay_bytes;
        all.fetch_add(bytes, Relaxed) + bytes
    }

    fn clear(&mut self) {
        let all = &self.service.stats.repetition.replay_bytes;
        all.fetch_sub(std::mem::take(&mut self.bytes), Relaxed);
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.clear();
    }
}
