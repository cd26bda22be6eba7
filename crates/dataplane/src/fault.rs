//! Everything the sidecar itself ends a call with, and the one function that turns it into a gRPC
//! status. Messages begin with `attnroute: ` so that nobody looks for them in the endpoint.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::deadline::Malformed;
use crate::endpoint::Outcome;
use crate::grpc::{code_of_reset, Code, Status};
use crate::inbound::Shed;
use crate::service::Refusal;
use crate::stats::RetryReason;

/// What a timer can be late by: tokio counts in milliseconds and rounds up.
const TIMER_STEP: Duration = Duration::from_millis(2);

/// Why the sidecar ended a call.
#[derive(Debug)]
pub(crate) enum Fault {
    /// No service of this listener has that authority.
    UnknownAuthority { authority: String, known: Arc<str> },
    /// The request's header list is over `limits.max_header_list_bytes`.
    HeaderList { bytes: usize, limit: u32 },
    /// The answer's header list is over `limits.max_header_list_bytes`.
    AnswerHeaderList {
        endpoint: String,
        bytes: usize,
        limit: u32,
    },
    /// `grpc-timeout` cannot be read.
    Timeout(Malformed),
    /// No endpoint was picked.
    Refused { service: String, refusal: Refusal },
    /// The picked endpoint cannot be reached, and no other was left to try.
    Connect {
        service: String,
        endpoint: String,
        cause: String,
    },
    /// Every connection to the endpoint is full, and no more are allowed.
    StreamLimit { endpoint: String },
    /// Too many calls wait for a connection already.
    PendingLimit { endpoint: String, limit: usize },
    /// The server behind an `inbound` listener is full.
    Shed {
        listener: String,
        shed: Shed,
        push_back_ms: u64,
    },
    /// Too many calls of the service wait for a place already.
    WaitingLimit { service: String, limit: u32 },
    /// `waiting.max_time` passed without a place.
    Waited { refused: Box<Self>, max_ms: u64 },
    /// The service has as many connections as it may.
    ConnectionLimit { endpoint: String, limit: u32 },
    /// A message is longer than `limits.max_message_bytes`.
    MessageBytes { bytes: u32, limit: u32 },
    /// The deadline passed.
    Deadline,
    /// The time of one attempt passed.
    PerTryTimeout { endpoint: String, timeout_ms: u64 },
    /// The endpoint reset the stream.
    Reset {
        endpoint: String,
        reason: h2::Reason,
    },
    /// The endpoint's answer broke HTTP/2.
    Malformed { endpoint: String, cause: String },
    /// The connection to the endpoint was lost.
    Lost { endpoint: String, cause: String },
    /// The same, before anything of the call was written to it.
    Unsent { endpoint: String, cause: String },
    /// The endpoint sent GOAWAY, and the call stands above the last stream that it takes.
    Leaving { endpoint: String, cause: String },
    /// The endpoint leaves, and the call stayed for longer than it may.
    Overstayed { endpoint: String },
    /// The answer ended without a status.
    Truncated { endpoint: String },
    /// The client took nothing of the answer for too long.
    Stalled,
    /// The drain limit is over.
    ShuttingDown,
}

impl Fault {
    /// Reads an error of the endpoint's stream. `wrote`: something may have been written to the
    /// connection since the stream was opened.
    pub(crate) fn of_endpoint(endpoint: &str, error: &h2::Error, wrote: bool) -> Self {
        let endpoint = endpoint.to_owned();
        match error.reason() {
            // h2 gives this to streams above the last one and to nobody else: those up to it go on,
            // and end with an error of the socket if they end early.
            Some(_) if error.is_go_away() && error.is_remote() => Self::Leaving {
                endpoint,
                cause: error.to_string(),
            },
            Some(reason) if error.is_reset() && error.is_remote() => {
                Self::Reset { endpoint, reason }
            }
            Some(_) if error.is_reset() => Self::Malformed {
                endpoint,
                cause: error.to_string(),
            },
            _ if error.is_io() && !wrote => Self::Unsent {
                endpoint,
                cause: error.to_string(),
            },
            _ => Self::Lost {
                endpoint,
                cause: error.to_string(),
            },
        }
    }

    /// An endpoint that was told how long the call may take gives it up with CANCEL when that is
    /// over, as servers of gRPC do. It is the deadline that ended the call, though our timer, which
    /// counts in milliseconds, has yet to say so.
    pub(crate) fn or_deadline(self, deadline: Option<Instant>) -> Self {
        let is_over = |deadline: Instant| deadline <= Instant::now() + TIMER_STEP;
        match self {
            Self::Reset { reason, .. }
                if reason == h2::Reason::CANCEL && deadline.is_some_and(is_over) =>
            {
                Self::Deadline
            }
            fault => fault,
        }
    }

    /// Why the call can be sent again, whatever it does: the endpoint did not process it.
    pub(crate) fn repeats(&self) -> Option<RetryReason> {
        match self {
            Self::Reset { reason, .. } if *reason == h2::Reason::REFUSED_STREAM => {
                Some(RetryReason::Refused)
            }
            Self::Leaving { .. } => Some(RetryReason::Leaving),
            Self::Unsent { .. } => Some(RetryReason::Unsent),
            _ => None,
        }
    }

    /// The status the client gets.
    pub(crate) fn status(&self) -> Status {
        let (code, text) = match self {
            Self::UnknownAuthority { authority, known } => (
                Code::Unavailable,
                format!("no service has the authority `{authority}`; configured are {known}"),
            ),
            Self::HeaderList { bytes, limit } => (
                Code::ResourceExhausted,
                format!("header list of {bytes} bytes, `limits.max_header_list_bytes` is {limit}"),
            ),
            Self::AnswerHeaderList {
                endpoint,
                bytes,
                limit,
            } => (
                Code::ResourceExhausted,
                format!(
                    "endpoint `{endpoint}` answered with a header list of {bytes} bytes, \
                     `limits.max_header_list_bytes` is {limit}"
                ),
            ),
            Self::Timeout(malformed) => (Code::Internal, malformed.to_string()),
            Self::Refused { service, refusal } => refusal_status(service, *refusal),
            Self::Connect {
                service,
                endpoint,
                cause,
            } => (
                Code::Unavailable,
                format!("cannot connect to endpoint `{endpoint}` of `{service}`: {cause}"),
            ),
            Self::StreamLimit { endpoint } => (
                Code::Unavailable,
                format!(
                    "every connection to `{endpoint}` is full and \
                     `limits.max_connections_per_endpoint` is reached"
                ),
            ),
            // UNAVAILABLE, as from Envoy and gRPC: the endpoints are well, another try may get through
            // (RS-15).
            Self::PendingLimit { endpoint, limit } => (
                Code::Unavailable,
                format!(
                    "{limit} calls wait for a connection to `{endpoint}`; \
                     `limits.max_pending` is reached"
                ),
            ),
            // The server itself is at its limit, unlike above: whoever can should try another one.
            Self::Shed { listener, shed, .. } => (
                Code::ResourceExhausted,
                format!(
                    "the server behind listener `{listener}` is full: {}",
                    why(*shed)
                ),
            ),
            Self::WaitingLimit { service, limit } => (
                Code::Unavailable,
                format!(
                    "{limit} calls to `{service}` wait for a place; `limits.max_waiting` is reached"
                ),
            ),
            Self::Waited { refused, max_ms } => {
                let status = refused.status();
                return Status::new(
                    status.code,
                    format!(
                        "{}; the call waited {max_ms} ms, `waiting.max_time`",
                        status.message
                    ),
                );
            }
            Self::ConnectionLimit { endpoint, limit } => (
                Code::Unavailable,
                format!(
                    "no connection to `{endpoint}`: {limit} are open and \
                     `limits.max_open_connections` is reached"
                ),
            ),
            Self::MessageBytes { bytes, limit } => (
                Code::ResourceExhausted,
                format!("message of {bytes} bytes, `limits.max_message_bytes` is {limit}"),
            ),
            Self::Deadline => (
                Code::DeadlineExceeded,
                "the deadline of the call passed".into(),
            ),
            Self::PerTryTimeout {
                endpoint,
                timeout_ms,
            } => (
                Code::DeadlineExceeded,
                format!(
                    "endpoint `{endpoint}` did not answer within `retry.per_try_timeout`, \
                     {timeout_ms} ms"
                ),
            ),
            Self::Reset { endpoint, reason } => (
                code_of_reset((*reason).into()),
                format!(
                    "endpoint `{endpoint}` reset the call: {}",
                    reason.description()
                ),
            ),
            Self::Malformed { endpoint, cause } => (
                Code::Internal,
                format!("malformed answer of endpoint `{endpoint}`: {cause}"),
            ),
            Self::Lost { endpoint, cause } | Self::Unsent { endpoint, cause } => (
                Code::Unavailable,
                format!("connection to endpoint `{endpoint}` was lost: {cause}"),
            ),
            Self::Leaving { endpoint, cause } => (
                Code::Unavailable,
                format!("endpoint `{endpoint}` is leaving and did not take the call: {cause}"),
            ),
            Self::Overstayed { endpoint } => (
                Code::Unavailable,
                format!(
                    "endpoint `{endpoint}` is leaving and the call ran on for \
                     `connection.max_leaving`"
                ),
            ),
            Self::Truncated { endpoint } => (
                Code::Internal,
                format!("endpoint `{endpoint}` ended the answer without a status"),
            ),
            Self::Stalled => (
                Code::ResourceExhausted,
                "the client took nothing of the answer for `timeouts.stalled_stream`".into(),
            ),
            Self::ShuttingDown => (
                Code::Unavailable,
                "the sidecar is shutting down; `drain.limit` is over".into(),
            ),
        };
        Status::new(code, format!("attnroute: {text}"))
    }

    /// What the statistics of the attempt are told.
    pub(crate) fn outcome(&self) -> Outcome {
        let code = self.status().code;
        if self.blames_endpoint() {
            Outcome::Answered(code)
        } else {
            Outcome::Censored(code)
        }
    }

    /// When the call may come back, where that is known.
    pub(crate) fn push_back_ms(&self) -> Option<u64> {
        match self {
            Self::Shed { push_back_ms, .. } => Some(*push_back_ms),
            _ => None,
        }
    }

    fn blames_endpoint(&self) -> bool {
        match self {
            Self::Connect { .. }
            | Self::Reset { .. }
            | Self::Malformed { .. }
            | Self::Lost { .. }
            | Self::Truncated { .. }
            // Silence until the deadline counts against the endpoint (RS-05).
            | Self::Deadline
            | Self::PerTryTimeout { .. } => true,
            Self::UnknownAuthority { .. }
            | Self::HeaderList { .. }
            // What is too large is a matter of our limit.
            | Self::AnswerHeaderList { .. }
            | Self::Timeout(_)
            | Self::Refused { .. }
            | Self::StreamLimit { .. }
            | Self::PendingLimit { .. }
            | Self::WaitingLimit { .. }
            | Self::Waited { .. }
            | Self::ConnectionLimit { .. }
            | Self::MessageBytes { .. }
            // Who leaves, or closes what was idle, does nothing wrong.
            | Self::Unsent { .. }
            | Self::Leaving { .. }
            | Self::Overstayed { .. }
            | Self::Shed { .. }
            | Self::Stalled
            | Self::ShuttingDown => false,
        }
    }
}

fn why(shed: Shed) -> &'static str {
    match shed {
        Shed::QueueLength => "`queue.max_length` calls wait already",
        Shed::QueueTimeout => "the call waited for `queue.timeout`",
        Shed::Deadline => "the deadline of the call would pass before its turn",
    }
}

fn refusal_status(service: &str, refusal: Refusal) -> (Code, String) {
    match refusal {
        Refusal::NoEndpoints => (
            Code::Unavailable,
            format!("no endpoint of `{service}` can take a call: its endpoint set is empty"),
        ),
        Refusal::AllWeightZero => (
            Code::Unavailable,
            format!("no endpoint of `{service}` can take a call: every static weight is 0"),
        ),
        Refusal::AllDrained => (
            Code::Unavailable,
            format!("no endpoint of `{service}` can take a call: an operator drained all of them"),
        ),
        Refusal::NoneWell(count) => (
            Code::Unavailable,
            format!(
                "no endpoint of `{service}` can take a call: of {count} all are ejected; \
                 `panic_threshold` is 0"
            ),
        ),
        Refusal::MaxInflight(limit) => (
            Code::Unavailable,
            format!("{limit} calls to `{service}` are in flight; `limits.max_inflight` is reached"),
        ),
        Refusal::MaxInflightPerEndpoint(limit) => (
            Code::Unavailable,
            format!(
                "{limit} calls are in flight at each endpoint of `{service}`; \
                 `limits.max_inflight_per_endpoint` is reached"
            ),
        ),
        Refusal::MaxHeldBytes(limit) => (
            Code::Unavailable,
            format!(
                "calls to `{service}` hold data that one side does not take; \
                 `limits.max_held_bytes` of {limit} is reached"
            ),
        ),
        Refusal::MaxHeldBytesPerEndpoint(limit) => (
            Code::Unavailable,
            format!(
                "calls at each endpoint of `{service}` hold data that one side does not take; \
                 `limits.max_held_bytes_per_endpoint` of {limit} is reached"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::Fault;

    fn reset(reason: h2::Reason) -> Fault {
        Fault::Reset {
            endpoint: "10.0.0.1:1".into(),
            reason,
        }
    }

    #[test]
    fn an_endpoint_that_gives_up_at_the_deadline_has_met_it() {
        let now = Instant::now();
        let over = reset(h2::Reason::CANCEL).or_deadline(Some(now));
        assert!(matches!(over, Fault::Deadline), "{over:?}");
        for (reason, deadline) in [
            (h2::Reason::CANCEL, None),
            (h2::Reason::CANCEL, Some(now + Duration::from_secs(60))),
            (h2::Reason::INTERNAL_ERROR, Some(now)),
            (h2::Reason::REFUSED_STREAM, Some(now)),
        ] {
            let other = reset(reason).or_deadline(deadline);
            assert!(matches!(other, Fault::Reset { .. }), "{other:?}");
        }
    }
}
