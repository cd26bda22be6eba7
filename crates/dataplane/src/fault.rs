//! Everything the sidecar itself ends a call with, and the one function that turns it into a gRPC
//! status. Messages begin with `attnroute: ` so that nobody looks for them in the endpoint.

use std::sync::Arc;

use crate::deadline::Malformed;
use crate::endpoint::Outcome;
use crate::grpc::{code_of_reset, Code, Status};
use crate::service::Refusal;

/// Why the sidecar ended a call.
#[derive(Debug)]
pub(crate) enum Fault {
    /// No service of this listener has that authority.
    UnknownAuthority { authority: String, known: Arc<str> },
    /// The request's header list is over `limits.max_header_list_bytes`.
    HeaderList { bytes: usize, limit: u32 },
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
    /// The deadline passed.
    Deadline,
    /// The endpoint reset the stream.
    Reset {
        endpoint: String,
        reason: h2::Reason,
    },
    /// The endpoint's answer broke HTTP/2.
    Malformed { endpoint: String, cause: String },
    /// The connection to the endpoint was lost.
    Lost { endpoint: String, cause: String },
    /// The answer ended without a status.
    Truncated { endpoint: String },
    /// The drain limit is over.
    ShuttingDown,
}

impl Fault {
    /// Reads an error of the endpoint's stream.
    pub(crate) fn of_endpoint(endpoint: &str, error: &h2::Error) -> Self {
        let endpoint = endpoint.to_owned();
        match error.reason() {
            Some(reason) if error.is_reset() && error.is_remote() => {
                Self::Reset { endpoint, reason }
            }
            Some(_) if error.is_reset() => Self::Malformed {
                endpoint,
                cause: error.to_string(),
            },
            _ => Self::Lost {
                endpoint,
                cause: error.to_string(),
            },
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
            Self::Deadline => (
                Code::DeadlineExceeded,
                "the deadline of the call passed".into(),
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
            Self::Lost { endpoint, cause } => (
                Code::Unavailable,
                format!("connection to endpoint `{endpoint}` was lost: {cause}"),
            ),
            Self::Truncated { endpoint } => (
                Code::Internal,
                format!("endpoint `{endpoint}` ended the answer without a status"),
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

    fn blames_endpoint(&self) -> bool {
        match self {
            Self::Connect { .. }
            | Self::Reset { .. }
            | Self::Malformed { .. }
            | Self::Lost { .. }
            | Self::Truncated { .. }
            // Silence until the deadline counts against the endpoint (RS-05).
            | Self::Deadline => true,
            Self::UnknownAuthority { .. }
            | Self::HeaderList { .. }
            | Self::Timeout(_)
            | Self::Refused { .. }
            | Self::StreamLimit { .. }
            | Self::PendingLimit { .. }
            | Self::ShuttingDown => false,
        }
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
    }
}
