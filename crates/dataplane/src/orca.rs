//! Load reports in the ORCA form: what an endpoint says of its load.
//!
//! They come with the trailers of an answer (`endpoint-load-metrics-bin`) or out of band. A report
//! is a claim of somebody else: every value is checked where it comes in, and one that is not
//! finite, negative or absurd counts as absent. A report never fails a call.

/// What an endpoint reported; a value that it did not report, or that cannot be true, is absent.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct LoadReport {
    /// Share of the processor in use; may exceed 1.
    pub cpu_utilization: Option<f64>,
    /// Share of memory in use.
    pub mem_utilization: Option<f64>,
    /// Share of whatever the application is bound by; may exceed 1.
    pub application_utilization: Option<f64>,
    /// Calls per second.
    pub qps: Option<f64>,
    /// Failed calls per second.
    pub eps: Option<f64>,
    /// `attnroute.inflight`: calls in the endpoint when the answer left, its own excluded.
    pub inflight: Option<f64>,
    /// `attnroute.queue`: calls that wait there for a worker.
    pub queue: Option<f64>,
    /// `attnroute.concurrency`: calls that it works on at a time.
    pub concurrency: Option<f64>,
    /// `attnroute.service_time_s`: of the carrying call, without queueing.
    pub service_time_s: Option<f64>,
    /// `attnroute.started_s`: Unix time of its start.
    pub started_s: Option<f64>,
}
