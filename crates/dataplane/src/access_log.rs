//! The access log: one JSON line per sampled call, written by a thread of its own.
//!
//! A data thread hands over what it knows of a call as shared pointers and numbers, through a
//! bounded queue that it never waits for; lines are made and written on the other side. The writer
//! sleeps between batches, so that one wake-up serves every call of some milliseconds: waking it
//! per call would cost more than the line.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{sync_channel, Receiver, SyncSender};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;

use crate::call_record::{EndedCall, Stamp};
use crate::config::AccessLogConfig;

/// Calls that wait for the writer; one more is dropped and counted.
const QUEUE_MAX: usize = 16_384;

/// How long the writer collects.
const PAUSE: Duration = Duration::from_millis(20);

/// What is left for the last lines when the data plane stops.
const LAST_WRITES: Duration = Duration::from_secs(1);

/// Bytes of one write to a file.
const FILE_BYTES: usize = 256 * 1024;

/// Bytes of one write to a standard stream: so much a pipe takes in one piece, whoever else writes.
const STREAM_BYTES: usize = 4_096;

/// The log of a data plane, on or off.
#[derive(Debug, Default)]
pub struct AccessLog {
    queue: ArcSwapOption<SyncSender<EndedCall>>,
    counters: Arc<Counters>,
    writer: Mutex<Option<Running>>,
}

#[derive(Debug)]
struct Running {
    output: String,
    /// Disconnected once everything was written.
    done: Receiver<()>,
}

/// What the log counts.
#[derive(Debug, Default)]
pub struct Counters {
    /// Lines written.
    pub written: AtomicU64,
    /// Calls dropped because the queue was full.
    pub dropped_by_queue: AtomicU64,
    /// Lines lost because the output refused them.
    pub dropped_by_output: AtomicU64,
    /// Raised to have the file opened anew.
    reopen: AtomicU64,
}

impl AccessLog {
    /// Counters, for metrics.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Follows the policy: starts, ends or replaces the writer.
    pub(crate) fn configure(&self, config: Option<&AccessLogConfig>) {
        let mut writer = self.writer.lock();
        let wanted = config.map(|config| config.output.as_str());
        let running = writer.as_ref().map(|running| running.output.as_str());
        if wanted == running {
            return;
        }
        // The thread ends with its last sender, once it wrote what is queued.
        self.queue.store(None);
        *writer = None;
        let Some(output) = wanted.map(str::to_owned) else {
            return;
        };
        let (sender, receiver) = sync_channel(QUEUE_MAX);
        let counters = Arc::clone(&self.counters);
        let mut target = Target::new(&output, counters);
        let (ending, done) = sync_channel(1);
        let spawned = std::thread::Builder::new()
            .name("access-log".to_owned())
            .spawn(move || {
                target.write_all(&receiver);
                drop(ending);
            });
        match spawned {
            Ok(_) => {
                self.queue.store(Some(Arc::new(sender)));
                *writer = Some(Running { output, done });
            }
            Err(error) => tracing::error!(%error, "cannot start the access log"),
        }
    }

    /// Ends the log; what is queued is written first, unless the output hangs.
    pub(crate) fn close(&self) {
        self.queue.store(None);
        if let Some(running) = self.writer.lock().take() {
            let _ = running.done.recv_timeout(LAST_WRITES);
        }
    }

    /// Has the file opened anew, after somebody moved it away.
    pub fn reopen(&self) {
        self.counters.reopen.fetch_add(1, Relaxed);
    }

    /// Hands a call over; never waits.
    pub(crate) fn push(&self, ended: EndedCall) {
        let queue = self.queue.load();
        let Some(queue) = queue.as_ref() else {
            return;
        };
        if queue.try_send(ended).is_err() {
            self.counters.dropped_by_queue.fetch_add(1, Relaxed);
        }
    }
}

/// Where lines go.
struct Target {
    output: String,
    counters: Arc<Counters>,
    file: Option<File>,
    reopened: u64,
    /// Why the output does not take lines, as it was logged.
    failing: Option<String>,
    batch: Vec<u8>,
    lines: u64,
}

impl Target {
    fn new(output: &str, counters: Arc<Counters>) -> Self {
        Self {
            output: output.to_owned(),
            reopened: counters.reopen.load(Relaxed),
            counters,
            file: None,
            failing: None,
            batch: Vec::new(),
            lines: 0,
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "a thread of its own, on which no call waits"
    )]
    fn write_all(&mut self, queue: &Receiver<EndedCall>) {
        let limit = match self.output.as_str() {
            "stdout" | "stderr" => STREAM_BYTES,
            _ => FILE_BYTES,
        };
        let (mut line, mut stamp) = (Vec::new(), Stamp::default());
        while let Ok(first) = queue.recv() {
            std::thread::sleep(PAUSE);
            let rest = std::iter::from_fn(|| queue.try_recv().ok());
            for ended in std::iter::once(first).chain(rest) {
                line.clear();
                ended.write_line(&mut line, &mut stamp);
                if self.batch.len() + line.len() > limit {
                    self.flush();
                }
                self.batch.extend_from_slice(&line);
                self.lines += 1;
            }
            self.flush();
        }
    }

    fn flush(&mut self) {
        if self.lines == 0 {
            return;
        }
        let counter = match self.deliver() {
            Ok(()) => {
                self.failing = None;
                &self.counters.written
            }
            Err(error) => {
                let cause = error.to_string();
                if self.failing.as_ref() != Some(&cause) {
                    tracing::error!(output = %self.output, cause, "cannot write the access log");
                    self.failing = Some(cause);
                }
                // Tried afresh with the next batch.
                self.file = None;
                &self.counters.dropped_by_output
            }
        };
        counter.fetch_add(self.lines, Relaxed);
        self.batch.clear();
        self.lines = 0;
    }

    fn deliver(&mut self) -> io::Result<()> {
        match self.output.as_str() {
            "stdout" => io::stdout()
                .write_all(&self.batch)
                .and_then(|()| io::stdout().flush()),
            "stderr" => io::stderr().write_all(&self.batch),
            path => {
                let wanted = self.counters.reopen.load(Relaxed);
                if wanted != self.reopened {
                    self.file = None;
                    self.reopened = wanted;
                }
                let file = match self.file.take() {
                    Some(file) => file,
                    None => OpenOptions::new().create(true).append(true).open(path)?,
                };
                self.file.insert(file).write_all(&self.batch)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;
    use std::sync::mpsc::sync_channel;
    use std::sync::Arc;

    use super::AccessLog;
    use crate::call_record::EndedCall;

    #[test]
    fn a_full_queue_drops_and_counts() {
        let (sender, receiver) = sync_channel(2);
        let log = AccessLog::default();
        log.queue.store(Some(Arc::new(sender)));
        for _ in 0..5 {
            log.push(EndedCall::example(None));
        }
        assert_eq!(log.counters().dropped_by_queue.load(Relaxed), 3);
        assert_eq!(receiver.try_iter().count(), 2);
    }

    #[test]
    fn without_a_writer_nothing_is_counted() {
        let log = AccessLog::default();
        log.push(EndedCall::example(None));
        assert_eq!(log.counters().dropped_by_queue.load(Relaxed), 0);
    }
}
