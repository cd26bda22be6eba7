//! A call that may be tried again, until its answer begins.
//!
//! On routes with `retry` one attempt follows the other, on routes with `hedge` another one is sent
//! beside those that run; both are this one machine, which reads the request once and sends it to
//! every attempt from its start. The commit point is the first header block that is not
//! Trailers-Only (gRFC A6), or an answer that is final: from there on the call is an ordinary
//! [`Exchange`] with the attempt that won, and the client has seen nothing of the others.
//!
//! Each attempt is counted for its own endpoint, from its own start. One that the sidecar gives up
//! because another won is censored: nobody knows how it would have ended.

use std::future::{poll_fn, Future};
use std::ops::ControlFlow::{self, Break, Continue};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use h2::client::ResponseFuture;
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::request::Parts;
use http::Response;
use tokio::time::{sleep, sleep_until, Instant, Sleep};

use crate::attempt::{Attempt, Sample};
use crate::call::{request_of, Call};
use crate::config::HedgeAt;
use crate::endpoint::Outcome;
use crate::exchange::{check_size, code_of_head, count, is_nearly_over, take_claims};
use crate::exchange::{CallGuard, Exchange, Parts as ExchangeParts};
use crate::fault::Fault;
use crate::grpc::{self, Code};
use crate::hedge::TailSource;
use crate::pool::Lease;
use crate::repetition::{Repetition, RepetitionStats};
use crate::retry::{Circumstances, Ended, Plan, PushBack, Refused, Verdict};
use crate::stats::{Limit, RetryReason};
use crate::upload::{Cursor, Upload};

/// A wait for a connection; picks that find none are counted out by it.
type Leasing = Pin<Box<dyn Future<Output = Result<(Attempt, Lease), Fault>>>>;

/// A call before its commit point.
pub(crate) struct Repeat {
    call: Rc<Call>,
    rule: Option<Arc<Repetition>>,
    plan: Plan,
    hedging: Hedging,
    guard: CallGuard,
    head: Parts,
    upload: Upload,
    respond: SendResponse<Bytes>,
    /// In flight, oldest first.
    tries: Vec<Try>,
    /// Attempts that an application may have seen.
    seen: u32,
    leasing: Option<Leasing>,
    /// Until the next attempt; `false` if everything has to end now.
    pause: Option<Pin<Box<dyn Future<Output = bool>>>>,
    deadline: Option<Pin<Box<Sleep>>>,
    /// What the client gets if nothing better comes.
    last: Option<Failure>,
}

/// Attempts beside each other.
#[derive(Debug, Default)]
struct Hedging {
    /// Attempts that may still be sent.
    left: u32,
    /// The endpoint asked for no more, or nobody is left to ask.
    is_over: bool,
}

/// An attempt in flight.
struct Try {
    attempt: Attempt,
    lease: Lease,
    answer: ResponseFuture,
    to: SendStream<Bytes>,
    cursor: Cursor,
    timer: Option<Pin<Box<Sleep>>>,
    is_hedge: bool,
}

/// An attempt that brought nothing of use.
enum Failure {
    /// Trailers-Only.
    Answer(Response<()>, Code),
    Fault(Fault),
}

enum Event {
    ClientGone,
    /// The call's time is over.
    Deadline,
    /// The pause is over.
    Paused,
    ShuttingDown,
    Leased(Result<(Attempt, Lease), Fault>),
    /// The request has a message of more bytes than it may.
    TooLong(u32, u32),
    /// Of the attempt at this place.
    Answered(usize, Result<Response<RecvStream>, h2::Error>),
    TimedOut(usize),
}

/// What becomes of the call.
enum Finish {
    /// It goes on with this attempt and answer.
    Commit(Box<Try>, Response<RecvStream>),
    /// The client gets this.
    Answer(Response<()>, Code),
    Refuse(Fault),
    ClientGone,
}

type Step = ControlFlow<Finish>;

impl Repeat {
    /// Takes over a call and sends its first attempt.
    pub(crate) fn begin(
        call: Call,
        guard: CallGuard,
        head: Parts,
        upload: Upload,
        respond: SendResponse<Bytes>,
    ) -> impl Future<Output = ()> {
        let rule = call.repetition().cloned();
        let retry = rule.as_ref().and_then(|rule| rule.retry.as_ref());
        let hedge = rule.as_ref().and_then(|rule| rule.hedge.as_ref());
        let plan = Plan::new(retry.map(|(rule, _)| rule));
        let hedging = Hedging {
            left: hedge.map_or(0, |(rule, _)| rule.max_attempts - 1),
            is_over: hedge.is_none(),
        };
        if let Some((_, budget)) = retry {
            budget.begin();
        }
        if let Some((_, purse)) = hedge {
            purse.pay_in();
        }
        let mut repeat = Self {
            upload,
            deadline: call.timer(),
            call: Rc::new(call),
            rule,
            plan,
            hedging,
            guard,
            head,
            respond,
            tries: Vec::with_capacity(2),
            seen: 0,
            leasing: None,
            pause: None,
            last: None,
        };
        let sent = repeat.send_first();
        async move {
            let finish = match sent {
                Break(finish) => finish,
                Continue(()) => repeat.run().await,
            };
            repeat.finish(finish).await;
        }
    }

    async fn run(&mut self) -> Finish {
        loop {
            let event = poll_fn(|cx| self.poll(cx)).await;
            if let Break(finish) = self.take(event) {
                return finish;
            }
        }
    }

    fn take(&mut self, event: Event) -> Step {
        match event {
            Event::ClientGone => Break(Finish::ClientGone),
            Event::ShuttingDown => Break(Finish::Refuse(Fault::ShuttingDown)),
            Event::TooLong(bytes, limit) => {
                self.call.thread.shared.stats.hit(Limit::MessageBytes);
                Break(Finish::Refuse(Fault::MessageBytes { bytes, limit }))
            }
            Event::Deadline => {
                while let Some(one) = self.tries.pop() {
                    let code = Code::DeadlineExceeded;
                    let outcome = if self.had_half_of_the_time(&one.attempt) {
                        Outcome::Answered(code)
                    } else {
                        Outcome::Censored(code)
                    };
                    self.count_out(one.attempt, &Sample::new(outcome, 0));
                }
                Break(Finish::Refuse(Fault::Deadline))
            }
            Event::Paused => {
                self.pause = None;
                if self.is_idle() {
                    self.send_another()
                } else {
                    self.hedge()
                }
            }
            Event::Leased(leased) => {
                self.leasing = None;
                match leased {
                    Ok((attempt, lease)) => self.open(attempt, lease),
                    Err(fault) => self.failed(Failure::Fault(fault), PushBack::Unsaid, false),
                }
            }
            Event::Answered(place, Ok(response)) => self.answered(place, response),
            Event::Answered(place, Err(error)) => {
                let one = self.tries.remove(place);
                if self.call.thread.force.is_cancelled() {
                    return Break(Finish::Refuse(Fault::ShuttingDown));
                }
                let fault = one.lease.fault(&error);
                self.count_out(one.attempt, &Sample::new(fault.outcome(), 0));
                self.failed(Failure::Fault(fault), PushBack::Unsaid, false)
            }
            Event::TimedOut(place) => {
                let one = self.tries.remove(place);
                let timeout = self.plan.per_try_timeout().unwrap_or_default();
                let fault = Fault::PerTryTimeout {
                    endpoint: one.attempt.endpoint().name.to_string(),
                    timeout_ms: timeout.as_millis() as u64,
                };
                self.count_out(one.attempt, &Sample::new(fault.outcome(), 0));
                self.failed(Failure::Fault(fault), PushBack::Unsaid, true)
            }
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        if self.respond.poll_reset(cx).is_ready() || self.poll_upload(cx) {
            return Poll::Ready(Event::ClientGone);
        }
        if let Some((bytes, limit)) = self.upload.asked.too_long() {
            return Poll::Ready(Event::TooLong(bytes, limit));
        }
        for (place, one) in self.tries.iter_mut().enumerate() {
            if let Poll::Ready(answer) = Pin::new(&mut one.answer).poll(cx) {
                return Poll::Ready(Event::Answered(place, answer));
            }
        }
        if let Some(leasing) = &mut self.leasing {
            if let Poll::Ready(leased) = leasing.as_mut().poll(cx) {
                return Poll::Ready(Event::Leased(leased));
            }
        }
        if is_over(self.deadline.as_mut(), cx) {
            return Poll::Ready(Event::Deadline);
        }
        for (place, one) in self.tries.iter_mut().enumerate() {
            if is_over(one.timer.as_mut(), cx) {
                return Poll::Ready(Event::TimedOut(place));
            }
        }
        if let Some(pause) = &mut self.pause {
            if let Poll::Ready(goes_on) = pause.as_mut().poll(cx) {
                return Poll::Ready(if goes_on {
                    Event::Paused
                } else {
                    Event::ShuttingDown
                });
            }
        }
        Poll::Pending
    }

    /// Moves the request to every attempt. True if the client is gone.
    fn poll_upload(&mut self, cx: &mut Context<'_>) -> bool {
        let stats = &self.guard.stats().request_bytes;
        let logged = self.guard.record.as_ref().map(|one| &one.request_bytes);
        for one in &mut self.tries {
            let sent = self
                .upload
                .poll_send(cx, &mut one.cursor, &mut one.to, |part| {
                    count(stats, logged, part);
                });
            if matches!(sent, Poll::Ready(Err(_))) {
                return true;
            }
            let is_held = self.upload.is_held(&one.cursor);
            let routing = is_held.then(|| self.call.thread.shared.routing.load());
            let window_bytes = routing.map_or(0, |routing| routing.limits.stream_window_bytes);
            one.attempt.hold(usize::from(is_held), window_bytes);
        }
        if self.upload.lost().is_some() && !self.hedging.is_over {
            self.keep_foremost();
        }
        false
    }

    /// What the client sent is not kept any more: only the attempt that has most of it can go on.
    fn keep_foremost(&mut self) {
        self.hedging.is_over = true;
        self.count_lost();
        if self.tries.len() < 2 {
            return;
        }
        let ahead = |one: usize, other: usize| {
            Upload::is_ahead(&self.tries[one].cursor, &self.tries[other].cursor)
        };
        let places = 1..self.tries.len();
        let best = places.fold(
            0,
            |best, place| if ahead(place, best) { place } else { best },
        );
        let kept = self.tries.swap_remove(best);
        self.give_up_tries();
        self.tries.push(kept);
        self.pause = None;
    }

    /// A limit costs the call its other tries.
    fn count_lost(&self) {
        if let Some(limit) = self.upload.lost() {
            self.call.thread.shared.stats.hit(limit);
        }
    }

    fn send_first(&mut self) -> Step {
        match self.call.pick_or_wait(self.call.received_ns) {
            Ok(Some(attempt)) => self.send(attempt),
            Ok(None) => self.wait_for_place(None),
            Err(fault) => Break(Finish::Refuse(fault)),
        }
    }

    /// After a failure: to another endpoint if there is one, else to one that was tried.
    fn send_another(&mut self) -> Step {
        match self.call.pick_or_wait(self.call.now_ns()) {
            Ok(Some(attempt)) => self.send(attempt),
            Ok(None) => self.wait_for_place(None),
            Err(fault) => Break(self.last_or(fault)),
        }
    }

    /// Beside those that run, to an endpoint that has not got the call.
    fn hedge(&mut self) -> Step {
        if self.hedging.is_over || self.hedging.left == 0 || self.leasing.is_some() {
            return Continue(());
        }
        let takes = self.call.has_another() && self.takes_hedge();
        let picked = takes.then(|| self.call.pick(self.call.now_ns()));
        let Some(Ok(attempt)) = picked else {
            self.hedging.is_over = true;
            return Continue(());
        };
        self.hedging.left -= 1;
        self.count(|stats| &stats.hedges);
        self.send(attempt)
    }

    fn takes_hedge(&self) -> bool {
        let hedge = self.rule.as_ref().and_then(|rule| rule.hedge.as_ref());
        let takes = hedge.is_some_and(|(_, purse)| purse.take());
        if !takes {
            self.count(|stats| &stats.hedges_refused);
        }
        takes
    }

    fn send(&mut self, attempt: Attempt) -> Step {
        let settings = &self.call.settings;
        match self
            .call
            .thread
            .pool
            .try_lease(attempt.endpoint(), settings)
        {
            Some(lease) => self.open(attempt, lease),
            None => self.wait_for_place(Some(attempt)),
        }
    }

    fn wait_for_place(&mut self, picked: Option<Attempt>) -> Step {
        let call = Rc::clone(&self.call);
        self.leasing = Some(Box::pin(async move { call.place(picked).await }));
        Continue(())
    }

    /// Opens the endpoint's stream, in the same turn as its lease.
    fn open(&mut self, attempt: Attempt, lease: Lease) -> Step {
        let remaining = self.call.remaining();
        let own = self.plan.per_try_timeout();
        let own = own.filter(|own| remaining.is_none_or(|left| *own < left));
        let timeout = own.or(remaining);
        let mut headers = self.head.headers.clone();
        if self.seen > 0 {
            grpc::add_previous_attempts(&mut headers, self.seen);
        }
        self.seen += 1;
        let request = request_of(&self.head, headers, timeout);
        let ends = self.upload.is_empty();
        match lease.open(request, ends) {
            Ok((answer, to)) => {
                let is_hedge = !self.tries.is_empty();
                self.tries.push(Try {
                    attempt,
                    lease,
                    answer,
                    to,
                    cursor: Cursor::new(ends),
                    timer: own.map(|own| Box::pin(sleep(own))),
                    is_hedge,
                });
                self.arm_hedge();
                // What is there of the request goes out in the same write as its headers.
                let _ = self.poll_upload(&mut Context::from_waker(Waker::noop()));
                Continue(())
            }
            Err(error) => {
                let fault = Fault::of_endpoint(&attempt.endpoint().name, &error, false);
                self.count_out(attempt, &Sample::new(fault.outcome(), 0));
                self.failed(Failure::Fault(fault), PushBack::Unsaid, false)
            }
        }
    }

    /// Sets the time at which another attempt is sent beside the newest.
    fn arm_hedge(&mut self) {
        if self.hedging.is_over || self.hedging.left == 0 {
            return;
        }
        let hedge = self.rule.as_ref().and_then(|rule| rule.hedge.as_ref());
        let (Some((rule, _)), Some(newest)) = (hedge, self.tries.last()) else {
            return;
        };
        let after = match rule.at {
            HedgeAt::AfterMs(after_ms) => Some(Duration::from_millis(after_ms)),
            HedgeAt::Quantile(quantile) => self.tail_of(&newest.attempt, quantile),
        };
        self.pause = after.map(|after| self.pause_of(after));
    }

    /// When the attempt takes longer than that share of its like: as scores predict it, else as
    /// answers were measured.
    fn tail_of(&self, attempt: &Attempt, quantile: f64) -> Option<Duration> {
        let snapshot = self.call.service.snapshot();
        let predicted_ns = snapshot.tail_ns(self.call.now_ns(), attempt, quantile);
        let measured_ns = || {
            let tails = self.call.thread.tails.borrow();
            tails.quantile_ns(self.call.kind(), attempt.endpoint().id, quantile)
        };
        let (after_ns, source) = match predicted_ns {
            Some(after_ns) => (Some(after_ns), TailSource::Predicted),
            None => match measured_ns() {
                Some(after_ns) => (Some(after_ns), TailSource::Measured),
                None => (None, TailSource::Unknown),
            },
        };
        self.count(|stats| &stats.tails[source as usize]);
        after_ns.map(Duration::from_nanos)
    }

    fn pause_of(&self, length: Duration) -> Pin<Box<dyn Future<Output = bool>>> {
        let force = self.call.thread.force.clone();
        let until = Instant::now() + length;
        Box::pin(async move {
            tokio::select! {
                () = sleep_until(until) => true,
                () = force.cancelled() => false,
            }
        })
    }

    /// A head came. If it is not the whole answer, the call stays with it.
    fn answered(&mut self, place: usize, response: Response<RecvStream>) -> Step {
        let one = self.tries.remove(place);
        let now_ns = self.call.thread.clock.now_ns();
        let latency_ns = now_ns.saturating_sub(one.attempt.started_ns());
        if !response.body().is_end_stream() {
            self.learn_tail(&one.attempt, latency_ns);
            return Break(Finish::Commit(Box::new(one), response));
        }
        let (mut head, _) = response.into_parts();
        let name = || one.attempt.endpoint().name.to_string();
        if let Some(fault) = check_size(&self.call.thread, &mut head.headers, true, name) {
            self.count_out(one.attempt, &Sample::new(fault.outcome(), 0));
            return self.failed(Failure::Fault(fault), PushBack::Unsaid, false);
        }
        let code = code_of_head(&head, true);
        let push_back = PushBack::of(&head.headers);
        let claims = take_claims(Some(&self.call.service), &mut head.headers);
        let mut sample = Sample::new(Outcome::Answered(code), latency_ns);
        let report = claims.and_then(|claims| {
            sample.push_back_ns = claims.push_back_ns();
            self.call.service.read_report(&claims)
        });
        sample.report = report.as_ref();
        // The endpoint was told the attempt's time, and may be the first to say that it is over.
        let nearly = |timer: &Pin<Box<Sleep>>| is_nearly_over(timer.deadline(), latency_ns);
        let timed_out = code == Code::DeadlineExceeded && one.timer.as_ref().is_some_and(nearly);
        if !code.is_failure() {
            self.learn_tail(&one.attempt, latency_ns);
        }
        self.call.settle(&one.attempt);
        self.call.service.end_attempt(one.attempt, now_ns, &sample);
        let mut answer = Response::new(());
        *answer.status_mut() = head.status;
        *answer.headers_mut() = head.headers;
        if code == Code::Ok {
            return Break(Finish::Answer(answer, code));
        }
        self.failed(Failure::Answer(answer, code), push_back, timed_out)
    }

    /// An attempt brought no answer that the client has to get whatever else happens.
    fn failed(&mut self, failure: Failure, push_back: PushBack, timed_out: bool) -> Step {
        let deadline = self.deadline.as_ref().map(|timer| timer.deadline());
        let failure = match failure {
            Failure::Fault(fault) => Failure::Fault(fault.or_deadline(deadline)),
            answer @ Failure::Answer(..) => answer,
        };
        let (code, unprocessed, is_ours) = match &failure {
            Failure::Answer(_, code) => (*code, None, false),
            Failure::Fault(fault) => {
                let is_ours = matches!(fault.outcome(), Outcome::Censored(_));
                (fault.status().code, fault.repeats(), is_ours)
            }
        };
        if is_ours && unprocessed.is_none() {
            // Ours, a limit or the end: nothing to try again, but others may still answer.
            return self.end_unless_running(failure);
        }
        if unprocessed.is_some() {
            self.seen = self.seen.saturating_sub(1);
        }
        let ended = Ended {
            code,
            unprocessed: unprocessed.is_some(),
            timed_out,
            push_back,
        };
        let hedges = self.rule.as_ref().is_some_and(|rule| rule.hedge.is_some());
        if hedges && unprocessed.is_none() {
            return self.failed_hedge(failure, ended);
        }
        if !self.is_idle() {
            return self.end_unless_running(failure);
        }
        match self.verdict(&ended) {
            Verdict::Final => Break(failure.into()),
            Verdict::Refused(why) => {
                let refused = &self.call.service.stats.repetition.refused;
                refused[why as usize].fetch_add(1, Relaxed);
                if why == Refused::Buffer {
                    self.count_lost();
                }
                Break(failure.into())
            }
            Verdict::Again(wait) => {
                let otherwise = if timed_out {
                    RetryReason::PerTryTimeout
                } else {
                    RetryReason::Status
                };
                let why = unprocessed.unwrap_or(otherwise);
                self.call.service.stats.retries[why as usize].fetch_add(1, Relaxed);
                self.last = Some(failure);
                if wait.is_zero() {
                    return self.send_another();
                }
                self.pause = Some(self.pause_of(wait));
                Continue(())
            }
        }
    }

    fn verdict(&mut self, ended: &Ended) -> Verdict {
        let thread = &self.call.thread;
        let retry = self.rule.as_ref().and_then(|rule| rule.retry.as_ref());
        let budget = match retry {
            Some((_, budget)) => budget,
            None => &self.call.service.unprocessed_budget,
        };
        let circumstances = Circumstances {
            remaining: self.call.remaining(),
            replayable: self.upload.lost().is_none(),
            budget,
            now_ns: thread.clock.now_ns(),
        };
        let mut rng = thread.rng.borrow_mut();
        self.plan.after(ended, &circumstances, &mut rng)
    }

    /// On a route that hedges: the next attempt is sent at once, or when the endpoint says.
    fn failed_hedge(&mut self, failure: Failure, ended: Ended) -> Step {
        if !ended.code.is_failure() {
            // An answer, though not the one that was hoped for.
            return Break(failure.into());
        }
        let wait = match ended.push_back {
            PushBack::Unsaid => Duration::ZERO,
            PushBack::Wait(wait) => wait,
            PushBack::Stop => {
                self.hedging.is_over = true;
                self.pause = None;
                return self.end_unless_running(failure);
            }
        };
        let in_time = self.call.remaining().is_none_or(|left| wait < left);
        let may = !self.hedging.is_over && self.hedging.left > 0 && self.upload.lost().is_none();
        let may = may && self.call.has_another();
        if !may || !in_time {
            return self.end_unless_running(failure);
        }
        self.pause = Some(self.pause_of(wait));
        if !self.is_idle() {
            self.last = Some(failure);
            return Continue(());
        }
        // Nobody runs: what comes next is no hedge beside others, but is paid for like one.
        if !self.takes_hedge() {
            return Break(failure.into());
        }
        self.hedging.left -= 1;
        self.count(|stats| &stats.hedges);
        self.last = Some(failure);
        Continue(())
    }

    fn end_unless_running(&mut self, failure: Failure) -> Step {
        if self.is_idle() {
            return Break(failure.into());
        }
        self.last = Some(failure);
        Continue(())
    }

    /// No attempt runs or waits for a connection.
    fn is_idle(&self) -> bool {
        self.tries.is_empty() && self.leasing.is_none()
    }

    fn last_or(&mut self, fault: Fault) -> Finish {
        self.last.take().map_or(Finish::Refuse(fault), Into::into)
    }

    /// Ends what the sidecar no longer wants: their streams are reset with CANCEL when dropped.
    fn give_up_tries(&mut self) {
        let now_ns = self.call.thread.clock.now_ns();
        for one in std::mem::take(&mut self.tries) {
            let waited_ns = now_ns.saturating_sub(one.attempt.started_ns());
            self.learn_tail(&one.attempt, waited_ns);
            let outcome = Outcome::Censored(Code::Cancelled);
            let sample = Sample::new(outcome, waited_ns);
            self.call.service.end_attempt(one.attempt, now_ns, &sample);
        }
    }

    fn learn_tail(&self, attempt: &Attempt, latency_ns: u64) {
        let hedge = self.rule.as_ref().and_then(|rule| rule.hedge.as_ref());
        if hedge.is_some_and(|(rule, _)| matches!(rule.at, HedgeAt::Quantile(_))) {
            let mut tails = self.call.thread.tails.borrow_mut();
            tails.record(self.call.kind(), attempt.endpoint().id, latency_ns);
        }
    }

    fn count_out(&self, attempt: Attempt, sample: &Sample<'_>) {
        let now_ns = self.call.thread.clock.now_ns();
        let sample = Sample {
            latency_ns: now_ns.saturating_sub(attempt.started_ns()),
            ..*sample
        };
        self.call.service.end_attempt(attempt, now_ns, &sample);
    }

    /// The end of a deadline is an attempt's fault only if it had most of the call's time.
    fn had_half_of_the_time(&self, attempt: &Attempt) -> bool {
        let now_ns = self.call.thread.clock.now_ns();
        let own_ns = now_ns.saturating_sub(attempt.started_ns());
        let all_ns = now_ns.saturating_sub(self.guard.received_ns);
        own_ns >= all_ns / 2
    }

    /// A client leaves as its deadline passes: see the same judgement in [`Exchange`].
    fn gave_all_the_time(&self, attempt: &Attempt) -> bool {
        let now_ns = self.call.thread.clock.now_ns();
        let deadline = self.deadline.as_ref().map(|timer| timer.deadline());
        let passed_ns = now_ns.saturating_sub(self.guard.received_ns);
        deadline.is_some_and(|deadline| is_nearly_over(deadline, passed_ns))
            && self.had_half_of_the_time(attempt)
    }

    fn count(&self, which: impl Fn(&RepetitionStats) -> &AtomicU64) {
        which(&self.call.service.stats.repetition).fetch_add(1, Relaxed);
    }

    async fn finish(mut self, finish: Finish) {
        if let Some((_, budget)) = self.rule.as_ref().and_then(|rule| rule.retry.as_ref()) {
            budget.end(self.call.thread.clock.now_ns());
        }
        if matches!(finish, Finish::ClientGone) {
            while let Some(one) = self.tries.pop() {
                let outcome = if self.gave_all_the_time(&one.attempt) {
                    Outcome::Answered(Code::DeadlineExceeded)
                } else {
                    Outcome::Censored(Code::Cancelled)
                };
                self.count_out(one.attempt, &Sample::new(outcome, 0));
            }
        } else {
            self.give_up_tries();
        }
        if let Finish::Commit(one, _) = &finish {
            self.call.settle(&one.attempt);
        }
        self.leasing = None;
        self.call.note_in(&mut self.guard);
        match finish {
            Finish::ClientGone => self.guard.end(Code::Cancelled),
            Finish::Refuse(fault) => self.guard.refuse(self.respond, &fault),
            Finish::Answer(answer, code) => {
                // Fails only if the client has left meanwhile.
                let _ = self.respond.send_response(answer, true);
                self.guard.end(code);
            }
            Finish::Commit(one, response) => {
                if one.is_hedge {
                    self.count(|stats| &stats.hedges_won);
                }
                if let Some(exchange) = self.commit(*one, response) {
                    exchange.await;
                }
            }
        }
    }

    fn commit(self, one: Try, response: Response<RecvStream>) -> Option<Exchange> {
        let mut upload = self.upload;
        let asked = std::mem::take(&mut upload.asked);
        let (from, rest) = upload.into_rest(&one.cursor).unzip();
        let parts = ExchangeParts {
            guard: self.guard,
            attempt: one.attempt,
            lease: one.lease,
            method: self.call.method,
            timer: self.deadline,
            up: from.map(|from| (from, Bytes::new(), one.to)),
            answer: one.answer,
            respond: self.respond,
            max_message_bytes: self.call.settings.limits.max_message_bytes,
            replay: None,
        };
        Exchange::resume(parts, rest, asked, response)
    }
}

impl From<Failure> for Finish {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Answer(answer, code) => Self::Answer(answer, code),
            Failure::Fault(fault) => Self::Refuse(fault),
        }
    }
}

fn is_over(timer: Option<&mut Pin<Box<Sleep>>>, cx: &mut Context<'_>) -> bool {
    timer.is_some_and(|timer| timer.as_mut().poll(cx).is_ready())
}
