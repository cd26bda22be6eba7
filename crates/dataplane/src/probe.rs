//! Probes: how loaded an endpoint is, asked between calls (`proto/attnroute/probe/v1/probe.proto`).

use prost::Message;

/// The method.
pub(crate) const PATH: &str = "/attnroute.probe.v1.Probe/Get";

/// `attnroute.probe.v1.GetResponse`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Answer {
    /// Calls in the endpoint.
    #[prost(uint32, tag = "1")]
    pub(crate) inflight: u32,
    /// Recent latency at about that many calls, in seconds; 0 where it has none.
    #[prost(double, tag = "2")]
    pub(crate) latency_s: f64,
}
