//! A socket whose frames are counted as they pass, so that what a peer makes us do is limited.
//!
//! Open streams are limited by HTTP/2 itself; work is not. A peer can send PING, SETTINGS, PRIORITY
//! or frames of no use for ever, open streams and reset them, or dribble a header block. All of it
//! stands in the heads of frames, 9 bytes each, so this looks at nothing else: in both directions,
//! since what this side resets because of the peer's mistakes is work of the peer's making too.
//!
//! Frames that honest peers send because of what they got cost nothing: window updates and the
//! pings by which gRPC measures bandwidth, in proportion to the frames they answer. The rest is
//! paid from buckets that time, and for resets new calls, refill. A peer that has used up a bucket
//! is not read any more; whoever owns the connection sees [`Alarm`] and ends it.

use std::cell::Cell;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{ready, Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{sleep, Instant, Sleep};

use crate::config::{Limits, RateLimit, ResetLimit, Timeouts};
use crate::stats::Limit;

/// Length of a frame's head (RFC 9113 4.1).
const HEAD: usize = 9;

/// As much of the debug data of GOAWAY as tells its reasons apart.
const DEBUG: usize = 24;

/// The longest part of a frame that is looked at: GOAWAY's last stream, code and debug data.
const PART: usize = HEAD + 8 + DEBUG;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

/// END_STREAM of DATA, ACK of SETTINGS and PING.
const FLAG_1: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;

/// Bytes on the wire that the header block of a client may have, as a multiple of the size of the
/// list that it may hold: what it has so far is kept, and any number of clients can send the most of
/// one and stop.
const BLOCK_FACTOR: u32 = 2;

/// Replies that cost nothing, for each frame of ours that honest peers reply to: two window updates
/// and a ping, or an acknowledgement.
const REPLIES: u32 = 3;

/// Bytes skipped before the head of the first frame: what a client sends first.
pub(crate) const PREFACE: usize = 24;

/// That a peer went over a limit, seen from where its connection is driven.
#[derive(Debug, Clone, Default)]
pub(crate) struct Alarm(Rc<Cell<Option<(Limit, Finder)>>>);

/// Who found out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finder {
    /// The connection must be ended.
    Watched,
    /// HTTP/2, which ends it already.
    Http2,
}

impl Alarm {
    /// The limit of a connection that must be ended.
    pub(crate) fn must_end(&self) -> Option<Limit> {
        let (limit, finder) = self.0.get()?;
        (finder == Finder::Watched).then_some(limit)
    }

    /// The limit for which it ends or ended.
    pub(crate) fn limit(&self) -> Option<Limit> {
        self.0.get().map(|(limit, _)| limit)
    }

    fn raise(&self, limit: Limit, finder: Finder) {
        if self.0.get().is_none() {
            self.0.set(Some((limit, finder)));
        }
    }
}

/// A socket that is watched.
#[derive(Debug)]
pub(crate) struct Watched<S> {
    socket: S,
    read: Scan,
    written: Scan,
    work: Work,
    /// Runs out when the rest of a header block is overdue; behind the number of the block.
    block: Option<(u32, Pin<Box<Sleep>>)>,
    block_timeout: Duration,
}

/// What is still free of charge, and what is left of each bucket.
#[derive(Debug)]
struct Work {
    /// Replies that cost nothing.
    replies: u32,
    control: Bucket,
    resets: Bucket,
    /// What a new call gives back of a reset, in thousandths.
    reset_share: i64,
    /// Bytes of the header block that comes, as they are on the wire, and how many it may have.
    block_bytes: u32,
    block_bytes_max: u32,
    alarm: Alarm,
}

/// Whose frames are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    /// A client. Its preface is skipped.
    Client,
    /// An endpoint: a reset of its own is an answer, so none is counted.
    Endpoint,
}

impl<S> Watched<S> {
    /// Watches a socket on which nothing was read or written yet.
    pub(crate) fn new(socket: S, peer: Peer, limits: &Limits, timeouts: &Timeouts) -> Self {
        let (resets, preface, block_bytes_max) = match peer {
            Peer::Client => (
                limits.resets.clone(),
                (PREFACE, 0),
                limits.max_header_list_bytes.saturating_mul(BLOCK_FACTOR),
            ),
            Peer::Endpoint => (ResetLimit::off(), (0, PREFACE), u32::MAX),
        };
        Self {
            socket,
            read: Scan::after(preface.0),
            written: Scan::after(preface.1),
            work: Work {
                replies: 100,
                control: Bucket::new(&limits.control_frames),
                resets: Bucket::new(&resets.rate()),
                reset_share: (resets.share * 1000.0) as i64,
                block_bytes: 0,
                block_bytes_max,
                alarm: Alarm::default(),
            },
            block: None,
            block_timeout: Duration::from_millis(timeouts.header_block_ms),
        }
    }

    /// Where it says that the connection must end.
    pub(crate) fn alarm(&self) -> Alarm {
        self.work.alarm.clone()
    }

    /// Whether the rest of a header block is overdue.
    fn is_overdue(&mut self, cx: &mut Context<'_>) -> bool {
        if !self.read.in_block || self.block_timeout.is_zero() {
            self.block = None;
            return false;
        }
        let (number, timeout) = (self.read.blocks, self.block_timeout);
        let (of, timer) = self
            .block
            .get_or_insert_with(|| (number, Box::pin(sleep(timeout))));
        if std::mem::replace(of, number) != number {
            timer.as_mut().reset(Instant::now() + timeout);
        }
        timer.as_mut().poll(cx).is_ready()
    }

    fn wrote(&mut self, bytes: &[u8]) {
        let work = &mut self.work;
        self.written.advance(bytes, |frame| work.wrote(frame));
    }
}

impl Work {
    fn read(&mut self, frame: &Frame) {
        if matches!(frame.kind, HEADERS | CONTINUATION) {
            let before = if frame.kind == HEADERS {
                0
            } else {
                self.block_bytes
            };
            self.block_bytes = before.saturating_add(frame.length);
            if self.block_bytes > self.block_bytes_max {
                self.alarm.raise(Limit::HeaderList, Finder::Watched);
            }
        }
        match frame.kind {
            HEADERS => {
                self.resets.give(self.reset_share);
                self.replies = self.replies.saturating_add(REPLIES);
            }
            DATA if !frame.is_empty_data() => {}
            WINDOW_UPDATE | PING | SETTINGS | PRIORITY => self.reply(),
            RST_STREAM => self.reset(),
            CONTINUATION if frame.length > 0 => {}
            _ => self.control(),
        }
    }

    fn wrote(&mut self, frame: &Frame) {
        match frame.kind {
            HEADERS | DATA => self.replies = self.replies.saturating_add(REPLIES),
            SETTINGS | PING if frame.flags & FLAG_1 == 0 => {
                self.replies = self.replies.saturating_add(1);
            }
            // PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR, REFUSED_STREAM
            // and ENHANCE_YOUR_CALM: the peer's doing. Others end calls for reasons of ours.
            RST_STREAM if matches!(frame.code, 1 | 3 | 5 | 6 | 7 | 11) => self.reset(),
            GOAWAY => {
                if let Some(limit) = limit_of(frame.code, &frame.debug) {
                    self.alarm.raise(limit, Finder::Http2);
                }
            }
            _ => {}
        }
    }

    fn reply(&mut self) {
        match self.replies.checked_sub(1) {
            Some(left) => self.replies = left,
            None => self.control(),
        }
    }

    fn control(&mut self) {
        if !self.control.take(Instant::now) {
            self.alarm.raise(Limit::ControlFrames, Finder::Watched);
        }
    }

    fn reset(&mut self) {
        if !self.resets.take(Instant::now) {
            self.alarm.raise(Limit::Resets, Finder::Watched);
        }
    }
}

/// What may happen at once, and how much of it time gives back.
#[derive(Debug)]
struct Bucket {
    /// Thousandths.
    left: i64,
    /// Thousandths; 0: no limit.
    burst: i64,
    per_second: u32,
    filled: Instant,
}

impl Bucket {
    fn new(limit: &RateLimit) -> Self {
        let burst = i64::from(limit.burst) * 1000;
        Self {
            left: burst,
            burst,
            per_second: limit.per_second,
            filled: Instant::now(),
        }
    }

    fn give(&mut self, thousandths: i64) {
        self.left = (self.left + thousandths).min(self.burst);
    }

    /// Takes one. The clock is read only when there seems to be none.
    fn take(&mut self, now: impl FnOnce() -> Instant) -> bool {
        if self.burst == 0 {
            return true;
        }
        if self.left < 1000 {
            let now = now();
            let passed_ms = now.duration_since(self.filled).as_millis().min(3_600_000);
            // Thousandths per millisecond are ones per second; at most 3.6e6 * 4.3e9.
            self.give(passed_ms as i64 * i64::from(self.per_second));
            self.filled = now;
        }
        let enough = self.left >= 1000;
        if enough {
            self.left -= 1000;
        }
        enough
    }
}

/// The head of a frame, and as much of its payload as counts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Frame {
    kind: u8,
    flags: u8,
    length: u32,
    /// Bytes of padding of a DATA frame, its own length included.
    padding: u32,
    /// Error code of RST_STREAM and GOAWAY.
    code: u32,
    /// Where the debug data of GOAWAY begins.
    debug: [u8; DEBUG],
}

impl Frame {
    /// DATA that neither brings anything nor ends the stream.
    fn is_empty_data(&self) -> bool {
        self.kind == DATA && self.length <= self.padding && self.flags & FLAG_1 == 0
    }
}

/// Finds the heads of frames in a stream of bytes that comes in pieces.
#[derive(Debug)]
struct Scan {
    /// Bytes of a payload, or of the preface, that are to come.
    skip: u32,
    /// What there is of the next head, and behind it what counts of the payload.
    head: [u8; PART],
    have: u8,
    /// A header block has begun and is not complete.
    in_block: bool,
    /// It is complete when `skip` is 0.
    ends_block: bool,
    /// Blocks that were complete.
    blocks: u32,
}

impl Scan {
    fn after(preface: usize) -> Self {
        Self {
            skip: preface as u32,
            head: [0; PART],
            have: 0,
            in_block: false,
            ends_block: false,
            blocks: 0,
        }
    }

    fn advance(&mut self, mut bytes: &[u8], mut each: impl FnMut(&Frame)) {
        loop {
            let skipped = bytes.len().min(self.skip as usize);
            bytes = &bytes[skipped..];
            self.skip -= skipped as u32;
            if self.skip == 0 && self.ends_block {
                (self.in_block, self.ends_block) = (false, false);
                self.blocks = self.blocks.wrapping_add(1);
            }
            if bytes.is_empty() {
                return;
            }
            let have = usize::from(self.have);
            let more = bytes.len().min(self.wanted() - have);
            self.head[have..have + more].copy_from_slice(&bytes[..more]);
            self.have += more as u8;
            bytes = &bytes[more..];
            if usize::from(self.have) == self.wanted() {
                let frame = self.begin();
                each(&frame);
            }
        }
    }

    /// Bytes until all is known that counts of this frame.
    fn wanted(&self) -> usize {
        if usize::from(self.have) < HEAD {
            return HEAD;
        }
        match self.head[3] {
            RST_STREAM if self.length() == 4 => HEAD + 4,
            GOAWAY if self.length() >= 8 => HEAD + (self.length() as usize).min(8 + DEBUG),
            DATA if self.length() > 0 && self.head[4] & PADDED != 0 => HEAD + 1,
            _ => HEAD,
        }
    }

    fn length(&self) -> u32 {
        let [high, middle, low, ..] = self.head;
        u32::from_be_bytes([0, high, middle, low])
    }

    fn begin(&mut self) -> Frame {
        let (length, more) = (self.length(), usize::from(self.have) - HEAD);
        let [_, _, _, kind, flags, ..] = self.head;
        let payload = &self.head[HEAD..HEAD + more];
        self.have = 0;
        self.skip = length - more as u32;
        if matches!(kind, HEADERS | PUSH_PROMISE | CONTINUATION) {
            self.in_block = true;
            self.ends_block = flags & END_HEADERS != 0;
        }
        let mut frame = Frame {
            kind,
            flags,
            length,
            ..Frame::default()
        };
        match *payload {
            [padding] => frame.padding = u32::from(padding) + 1,
            [a, b, c, d] => frame.code = u32::from_be_bytes([a, b, c, d]),
            [_, _, _, _, a, b, c, d, ref debug @ ..] => {
                frame.code = u32::from_be_bytes([a, b, c, d]);
                frame.debug[..debug.len()].copy_from_slice(debug);
            }
            _ => {}
        }
        frame
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        // Nobody is woken for it: whoever polls the connection looks at the alarm afterwards.
        if this.work.alarm.must_end().is_some() {
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let Poll::Ready(result) = Pin::new(&mut this.socket).poll_read(cx, buffer) else {
            if this.is_overdue(cx) {
                this.work.alarm.raise(Limit::HeaderBlock, Finder::Watched);
            }
            return Poll::Pending;
        };
        result?;
        let work = &mut this.work;
        this.read
            .advance(&buffer.filled()[before..], |frame| work.read(frame));
        if work.alarm.must_end().is_some() {
            buffer.set_filled(before);
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let count = ready!(Pin::new(&mut this.socket).poll_write(cx, data))?;
        this.wrote(&data[..count]);
        Poll::Ready(Ok(count))
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
        let count = ready!(Pin::new(&mut this.socket).poll_write_vectored(cx, slices))?;
        let mut left = count;
        for slice in slices {
            let part = slice.len().min(left);
            this.wrote(&slice[..part]);
            left -= part;
        }
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }
}

/// Which limit HTTP/2 itself found exceeded, by the GOAWAY that it sends: its error does not tell.
fn limit_of(code: u32, debug: &[u8]) -> Option<Limit> {
    const COMPRESSION_ERROR: u32 = 9;
    const ENHANCE_YOUR_CALM: u32 = 11;
    match code {
        // Used for nothing but a header block of which not even the rest is read.
        COMPRESSION_ERROR => Some(Limit::HeaderList),
        ENHANCE_YOUR_CALM if debug.starts_with(b"too_many_resets") => Some(Limit::PendingResets),
        ENHANCE_YOUR_CALM if debug.starts_with(b"too_many_data") => Some(Limit::SmallFrames),
        ENHANCE_YOUR_CALM if debug.starts_with(b"too_many_continuations") => {
            Some(Limit::HeaderList)
        }
        ENHANCE_YOUR_CALM if debug.starts_with(b"header_list") => Some(Limit::HeaderList),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("short");
        let mut bytes = length.to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags, 0, 0, 0, 1]);
        bytes.extend(payload);
        bytes
    }

    fn kinds(scan: &mut Scan, bytes: &[u8]) -> Vec<Frame> {
        let mut found = Vec::new();
        scan.advance(bytes, |frame| found.push(*frame));
        found
    }

    fn work(control: RateLimit, resets: ResetLimit) -> Work {
        Work {
            replies: 0,
            control: Bucket::new(&control),
            resets: Bucket::new(&resets.rate()),
            reset_share: (resets.share * 1000.0) as i64,
            block_bytes: 0,
            block_bytes_max: u32::MAX,
            alarm: Alarm::default(),
        }
    }

    fn of_kind(kind: u8) -> Frame {
        Frame {
            kind,
            flags: 0,
            length: 8,
            ..Frame::default()
        }
    }

    #[test]
    fn finds_every_frame_however_it_is_cut() {
        let mut all = vec![0; PREFACE];
        all.extend(bytes(SETTINGS, 0, &[0; 12]));
        all.extend(bytes(HEADERS, 0, b"abc"));
        all.extend(bytes(CONTINUATION, END_HEADERS, b"defgh"));
        all.extend(bytes(DATA, PADDED, &[3, 0, 0, 0]));
        all.extend(bytes(DATA, FLAG_1, b""));
        all.extend(bytes(RST_STREAM, 0, &[0, 0, 0, 8]));
        all.extend(bytes(RST_STREAM, 0, &[0; 5]));
        let whole = kinds(&mut Scan::after(PREFACE), &all);
        let found: Vec<_> = whole
            .iter()
            .map(|frame| (frame.kind, frame.length))
            .collect();
        assert_eq!(
            found,
            [(4, 12), (1, 3), (9, 5), (0, 4), (0, 0), (3, 4), (3, 5)]
        );
        assert!(whole[3].is_empty_data() && !whole[4].is_empty_data());
        assert_eq!((whole[5].code, whole[6].code), (8, 0));
        for size in 1..all.len() {
            let mut scan = Scan::after(PREFACE);
            let pieces = all.chunks(size).flat_map(|piece| kinds(&mut scan, piece));
            assert_eq!(pieces.collect::<Vec<_>>(), whole, "in pieces of {size}");
            assert!(!scan.in_block);
        }
    }

    #[test]
    fn tells_from_its_goaway_what_http2_ended_the_connection_for() {
        for (code, debug, expected) in [
            (11, "too_many_resets", Some(Limit::PendingResets)),
            (11, "too_many_data_frames", Some(Limit::SmallFrames)),
            (11, "too_many_continuations", Some(Limit::HeaderList)),
            (11, "header_list_way_too_large", Some(Limit::HeaderList)),
            (9, "", Some(Limit::HeaderList)),
            (11, "", None),
            (0, "", None),
        ] {
            let mut payload = vec![0, 0, 0, 7, 0, 0, 0, code];
            payload.extend(debug.as_bytes());
            let goaway = bytes(GOAWAY, 0, &payload);
            let mut work = work(ResetLimit::off().rate(), ResetLimit::off());
            let mut scan = Scan::after(0);
            for byte in goaway {
                scan.advance(&[byte], |frame| work.wrote(frame));
            }
            assert_eq!(work.alarm.limit(), expected, "{debug}");
            assert_eq!(work.alarm.must_end(), None, "{debug}");
            assert_eq!((scan.skip, scan.have), (0, 0));
        }
    }

    #[test]
    fn what_is_kept_of_a_block_is_limited_and_begins_anew_with_each() {
        let mut work = work(ResetLimit::off().rate(), ResetLimit::off());
        work.block_bytes_max = 100;
        let sized = |kind, length| Frame {
            length,
            ..of_kind(kind)
        };
        for _ in 0..10 {
            work.read(&sized(HEADERS, 60));
            work.read(&sized(CONTINUATION, 40));
        }
        assert_eq!(work.alarm.must_end(), None);
        work.read(&sized(CONTINUATION, 1));
        assert_eq!(work.alarm.must_end(), Some(Limit::HeaderList));
    }

    #[test]
    fn knows_when_a_header_block_is_open() {
        let mut scan = Scan::after(0);
        let first = bytes(HEADERS, 0, b"abc");
        kinds(&mut scan, &first[..8]);
        assert!(!scan.in_block, "its head is not even there");
        kinds(&mut scan, &first[8..]);
        assert!(scan.in_block, "no END_HEADERS yet");
        let last = bytes(CONTINUATION, END_HEADERS, b"def");
        kinds(&mut scan, &last[..11]);
        assert!(scan.in_block, "a byte is missing");
        kinds(&mut scan, &last[11..]);
        assert_eq!((scan.in_block, scan.blocks), (false, 1));
    }

    #[test]
    fn a_bucket_holds_a_burst_and_refills_with_time() {
        let mut bucket = Bucket::new(&RateLimit {
            per_second: 10,
            burst: 3,
        });
        let start = bucket.filled;
        let mut take = |ms| bucket.take(|| start + Duration::from_millis(ms));
        assert!((0..3).all(|_| take(0)));
        assert!(!take(0));
        assert!(!take(99));
        assert!(take(200) && take(200) && !take(200));
        assert!((0..3).all(|_| take(3_600_000)));
        assert!(!take(3_600_000), "never more than the burst");
        let mut off = Bucket::new(&ResetLimit::off().rate());
        assert!((0..100_000).all(|_| off.take(|| start)), "0 is no limit");
    }

    #[test]
    fn replies_cost_nothing_as_far_as_there_is_something_to_reply_to() {
        let mut work = work(
            RateLimit {
                per_second: 0,
                burst: 5,
            },
            ResetLimit::off(),
        );
        for _ in 0..10_000 {
            work.wrote(&of_kind(DATA));
            work.read(&of_kind(WINDOW_UPDATE));
            work.read(&of_kind(WINDOW_UPDATE));
            work.read(&of_kind(PING));
        }
        assert_eq!((work.alarm.limit(), work.control.left), (None, 5000));
        for _ in 0..5 {
            work.read(&of_kind(WINDOW_UPDATE));
        }
        assert_eq!(work.alarm.limit(), None);
        work.read(&of_kind(PING));
        assert_eq!(work.alarm.limit(), Some(Limit::ControlFrames));
    }

    #[test]
    fn frames_of_no_use_are_paid() {
        let empty = Frame {
            length: 0,
            ..of_kind(DATA)
        };
        let continuation = Frame {
            length: 0,
            ..of_kind(CONTINUATION)
        };
        for frame in [
            empty,
            continuation,
            of_kind(2),
            of_kind(7),
            of_kind(200),
            of_kind(SETTINGS),
        ] {
            let mut work = work(
                RateLimit {
                    per_second: 0,
                    burst: 9,
                },
                ResetLimit::off(),
            );
            for _ in 0..9 {
                work.read(&frame);
            }
            assert_eq!(work.alarm.limit(), None, "{frame:?}");
            work.read(&frame);
            assert_eq!(work.alarm.limit(), Some(Limit::ControlFrames), "{frame:?}");
        }
        let mut work = work(
            RateLimit {
                per_second: 0,
                burst: 9,
            },
            ResetLimit::off(),
        );
        let last = Frame {
            flags: FLAG_1,
            ..empty
        };
        for frame in [last, of_kind(DATA), of_kind(HEADERS), of_kind(CONTINUATION)] {
            for _ in 0..100 {
                work.read(&frame);
            }
        }
        assert_eq!((work.alarm.limit(), work.control.left), (None, 9000));
    }

    #[test]
    fn resets_are_paid_by_calls() {
        let limit = ResetLimit {
            share: 0.75,
            per_second: 0,
            burst: 10,
        };
        let off = RateLimit {
            per_second: 0,
            burst: 0,
        };
        let mut honest = work(off.clone(), limit.clone());
        for call in 0..10_000 {
            honest.read(&of_kind(HEADERS));
            if call % 10 < 7 {
                honest.read(&of_kind(RST_STREAM));
            }
        }
        assert_eq!(honest.alarm.limit(), None, "seven of ten calls were reset");
        let mut rapid = work(off, limit);
        let pairs = (0..10_000)
            .take_while(|_| {
                rapid.read(&of_kind(HEADERS));
                rapid.read(&of_kind(RST_STREAM));
                rapid.alarm.limit().is_none()
            })
            .count();
        assert_eq!(rapid.alarm.limit(), Some(Limit::Resets));
        assert!((30..=45).contains(&pairs), "cut off after {pairs} pairs");
    }

    #[test]
    fn resets_that_a_peer_provokes_are_its_own() {
        let limit = ResetLimit {
            share: 0.0,
            per_second: 0,
            burst: 10,
        };
        let off = RateLimit {
            per_second: 0,
            burst: 0,
        };
        let mut work = work(off, limit);
        for code in [0, 2, 8, 13] {
            for _ in 0..100 {
                work.wrote(&Frame {
                    code,
                    ..of_kind(RST_STREAM)
                });
            }
        }
        assert_eq!(
            work.alarm.limit(),
            None,
            "ends of calls for reasons of ours"
        );
        for code in [1, 3, 5, 6, 7, 11, 1, 3, 5, 7] {
            work.wrote(&Frame {
                code,
                ..of_kind(RST_STREAM)
            });
        }
        assert_eq!(work.alarm.limit(), None);
        work.wrote(&Frame {
            code: 1,
            ..of_kind(RST_STREAM)
        });
        assert_eq!(work.alarm.limit(), Some(Limit::Resets));
    }
}
