//! Counters of the process that belong to no service or listener.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::service::ServiceStats;

/// A configured limit; its hits are `attnroute_limit_hits_total{limit}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Limit {
    /// `limits.max_connections` of a listener.
    Connections,
    /// `limits.max_streams_per_connection` of a client connection.
    StreamsPerConnection,
    /// `limits.max_pending_resets` of a client connection, which is then closed.
    PendingResets,
    /// `limits.resets` of a client connection, which is then closed.
    Resets,
    /// `limits.control_frames` of a connection, either side's, which is then closed.
    ControlFrames,
    /// Small DATA frames that nobody reads: a connection may hold as many as fit half its window,
    /// 256 bytes each at least, and is closed above.
    SmallFrames,
    /// `timeouts.header_block` of a connection, either side's, which is then closed.
    HeaderBlock,
    /// `timeouts.stalled_stream` of a call, which then ends.
    StalledStream,
    /// `limits.max_header_list_bytes` of a request or of an answer.
    HeaderList,
    /// `limits.max_inflight` of a service.
    MaxInflight,
    /// `limits.max_connections_per_endpoint` of a service.
    ConnectionsPerEndpoint,
    /// `limits.max_pending` of a service.
    Pending,
    /// `health.grpc.max_checks` of a service.
    HealthChecks,
    /// `limits.max_replay_bytes` of a service, where it cost a call its other try.
    ReplayBytes,
    /// `request_class.max_classes` of a service.
    RequestClasses,
    /// `limits.max_replay_bytes_total` of a service, where it did so.
    ReplayBytesTotal,
    /// `limits.max_connect_head_bytes` of a CONNECT request.
    ConnectHead,
    /// `queue.max_length` of an inbound listener.
    QueueLength,
    /// `queue.timeout` of an inbound listener.
    QueueTimeout,
    /// `limits.max_inflight_per_endpoint` of a service, at every endpoint that a call may go to.
    InflightPerEndpoint,
    /// `limits.max_open_connections` of a service.
    OpenConnections,
    /// `limits.max_waiting` of a service.
    Waiting,
    /// `limits.max_message_bytes` of a service.
    MessageBytes,
    /// `limits.max_held_bytes` of a service.
    HeldBytes,
    /// `limits.max_held_bytes_per_endpoint` of a service, at every endpoint that a call may go to.
    HeldBytesPerEndpoint,
    /// `connection.max_leaving` of a service, at a connection, which is then closed.
    Leaving,
}

impl Limit {
    /// Every limit.
    pub const ALL: [Self; 26] = [
        Self::Connections,
        Self::StreamsPerConnection,
        Self::PendingResets,
        Self::Resets,
        Self::ControlFrames,
        Self::SmallFrames,
        Self::HeaderBlock,
        Self::StalledStream,
        Self::HeaderList,
        Self::MaxInflight,
        Self::ConnectionsPerEndpoint,
        Self::Pending,
        Self::HealthChecks,
        Self::ReplayBytes,
        Self::RequestClasses,
        Self::ReplayBytesTotal,
        Self::ConnectHead,
        Self::QueueLength,
        Self::QueueTimeout,
        Self::InflightPerEndpoint,
        Self::OpenConnections,
        Self::Waiting,
        Self::MessageBytes,
        Self::HeldBytes,
        Self::HeldBytesPerEndpoint,
        Self::Leaving,
    ];

    /// Its key in the policy, and its metric label.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Connections => "max_connections",
            Self::StreamsPerConnection => "max_streams_per_connection",
            Self::PendingResets => "max_pending_resets",
            Self::Resets => "resets",
            Self::ControlFrames => "control_frames",
            Self::SmallFrames => "small_frames",
            Self::HeaderBlock => "header_block",
            Self::StalledStream => "stalled_stream",
            Self::HeaderList => "max_header_list_bytes",
            Self::MaxInflight => "max_inflight",
            Self::ConnectionsPerEndpoint => "max_connections_per_endpoint",
            Self::Pending => "max_pending",
            Self::HealthChecks => "max_checks",
            Self::ReplayBytes => "max_replay_bytes",
            Self::RequestClasses => "max_classes",
            Self::ReplayBytesTotal => "max_replay_bytes_total",
            Self::ConnectHead => "max_connect_head_bytes",
            Self::QueueLength => "queue.max_length",
            Self::QueueTimeout => "queue.timeout",
            Self::InflightPerEndpoint => "max_inflight_per_endpoint",
            Self::OpenConnections => "max_open_connections",
            Self::Waiting => "max_waiting",
            Self::MessageBytes => "max_message_bytes",
            Self::HeldBytes => "max_held_bytes",
            Self::HeldBytesPerEndpoint => "max_held_bytes_per_endpoint",
            Self::Leaving => "max_leaving",
        }
    }
}

/// Why a call was sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum RetryReason {
    /// The endpoint reset the stream with REFUSED_STREAM.
    Refused,
    /// The stream stands above the last one of the endpoint's GOAWAY.
    Leaving,
    /// The connection was lost before anything of the call was written.
    Unsent,
    /// Its status is in `retry.on` of its route.
    Status,
    /// `retry.per_try_timeout` was over.
    PerTryTimeout,
}

impl RetryReason {
    /// Every reason.
    pub const ALL: [Self; 5] = [
        Self::Refused,
        Self::Leaving,
        Self::Unsent,
        Self::Status,
        Self::PerTryTimeout,
    ];

    /// Its metric label.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Leaving => "leaving",
            Self::Unsent => "unsent",
            Self::Status => "status",
            Self::PerTryTimeout => "per_try_timeout",
        }
    }
}

/// Counters of the process.
#[derive(Debug, Default)]
pub struct Stats {
    /// Calls that no service takes.
    pub unrouted: ServiceStats,
    /// Requests that are no valid HTTP/2 requests; only their stream is reset.
    pub malformed_requests: AtomicU64,
    hits: [AtomicU64; Limit::ALL.len()],
}

impl Stats {
    /// Counts a hit.
    pub fn hit(&self, limit: Limit) {
        self.hits[limit as usize].fetch_add(1, Relaxed);
    }

    /// Hits so far.
    #[must_use]
    pub fn hits(&self, limit: Limit) -> u64 {
        self.hits[limit as usize].load(Relaxed)
    }
}
