//! Sums of one window: calls by request class and endpoint, and by endpoint.
//!
//! They cross to the control side as fixed rows, little-endian and packed; the twins of the layouts
//! here are `WINDOW_CELL_DTYPE` and `WINDOW_ENDPOINT_DTYPE` in `attnroute/dataplane.py`. Sums are
//! f64 seconds, so that adding them up costs no digits.

use crate::histogram::{bucket, BUCKETS};

/// Calls of one class that ended at one endpoint, and counted (`algorithms.md` section 0).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CellSums {
    class: u32,
    /// Successes.
    pub(crate) calls: u32,
    /// Failures.
    pub(crate) errors: u32,
    /// Successes whose answer said how long the service took.
    pub(crate) service_samples: u32,
    /// Latency of successes.
    pub(crate) latency_s: f64,
    /// What they said.
    pub(crate) service_s: f64,
    /// Service time estimated from the latency and the calls in the endpoint.
    pub(crate) estimated_s: f64,
    /// Latency of successes, by the buckets of every histogram.
    pub(crate) buckets: [u32; BUCKETS],
}

/// Cells of one endpoint that changed.
#[derive(Debug, Default)]
pub(crate) struct Cells {
    changed: Vec<CellSums>,
    /// By class: its place in `changed` plus 1.
    places: Vec<u16>,
}

/// Sums of one endpoint over all classes.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct EndpointSums {
    /// Calls in flight times seconds.
    pub(crate) inflight_s: f64,
    /// Calls that ended and counted.
    pub(crate) calls: u32,
    /// Load reports with calls in flight.
    pub(crate) reports: u32,
    /// Sum of those.
    pub(crate) reported_inflight: f64,
    /// Sum of reported calls per second.
    pub(crate) rps: f64,
    /// Sum of reported utilizations.
    pub(crate) utilization: f64,
    /// Reports that had one.
    pub(crate) utilization_reports: u32,
    /// Calls in flight from everybody as estimated at the picks, summed over `calls`.
    pub(crate) inflight_estimate: f64,
}

/// What a window says of an endpoint beside its sums.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct EndpointState {
    pub(crate) id: u64,
    pub(crate) started_s: f64,
    pub(crate) concurrency: f32,
    pub(crate) rtt_s: f32,
    pub(crate) usable: bool,
    pub(crate) ejected: bool,
}

/// The window of a service.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Window {
    /// Endpoint set that the rows are in the order of.
    pub endpoint_epoch: u64,
    /// Classes that the rows name.
    pub class_epoch: u64,
    /// Time since the window before.
    pub length_ns: u64,
    /// One row per endpoint.
    pub endpoints: Vec<u8>,
    /// One row per cell that changed.
    pub cells: Vec<u8>,
}

/// Bytes of a row of [`Window::endpoints`].
pub const ENDPOINT_BYTES: usize = 84;

/// Bytes of a row of [`Window::cells`].
pub const CELL_BYTES: usize = 48 + 4 * BUCKETS;

impl Cells {
    /// The cell of a class.
    pub(crate) fn of(&mut self, class: u32) -> &mut CellSums {
        let index = class as usize;
        if self.places.len() <= index {
            self.places.resize(index + 1, 0);
        }
        if self.places[index] == 0 {
            self.changed.push(CellSums::new(class));
            self.places[index] = self.changed.len() as u16;
        }
        &mut self.changed[usize::from(self.places[index]) - 1]
    }

    /// Gives what there is of some classes to another one.
    pub(crate) fn fold(&mut self, classes: &[u32], into: u32) {
        for class in classes {
            let place = self.places.get_mut(*class as usize).map(std::mem::take);
            let Some(place @ 1..) = place else {
                continue;
            };
            let sums = CellSums::new(*class);
            let sums = std::mem::replace(&mut self.changed[usize::from(place) - 1], sums);
            self.of(into).add(&sums);
        }
    }

    /// Writes every changed cell and begins anew. Adds up the calls of each class.
    pub(crate) fn drain(&mut self, endpoint: u32, out: &mut Vec<u8>, calls: &mut [u32]) {
        for sums in self.changed.drain(..) {
            if let Some(place) = self.places.get_mut(sums.class as usize) {
                *place = 0;
            }
            if sums.calls + sums.errors == 0 {
                continue;
            }
            if let Some(calls) = calls.get_mut(sums.class as usize) {
                *calls = calls.saturating_add(sums.calls + sums.errors);
            }
            sums.encode(endpoint, out);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.changed.clear();
        self.places.fill(0);
    }
}

impl CellSums {
    fn new(class: u32) -> Self {
        Self {
            class,
            calls: 0,
            errors: 0,
            service_samples: 0,
            latency_s: 0.0,
            service_s: 0.0,
            estimated_s: 0.0,
            buckets: [0; BUCKETS],
        }
    }

    /// Counts a success.
    pub(crate) fn success(&mut self, latency_ns: u64, estimated_s: f64, service_s: Option<f64>) {
        self.calls += 1;
        self.latency_s += latency_ns as f64 * 1e-9;
        self.estimated_s += estimated_s;
        if let Some(service_s) = service_s {
            self.service_samples += 1;
            self.service_s += service_s;
        }
        self.buckets[bucket(latency_ns)] += 1;
    }

    fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.errors += other.errors;
        self.service_samples += other.service_samples;
        self.latency_s += other.latency_s;
        self.service_s += other.service_s;
        self.estimated_s += other.estimated_s;
        for (own, other) in self.buckets.iter_mut().zip(&other.buckets) {
            *own += other;
        }
    }

    fn encode(&self, endpoint: u32, out: &mut Vec<u8>) {
        let ints = [
            self.class,
            endpoint,
            self.calls,
            self.errors,
            self.service_samples,
            0,
        ];
        out.extend(ints.iter().flat_map(|value| value.to_le_bytes()));
        let sums = [self.latency_s, self.service_s, self.estimated_s];
        out.extend(sums.iter().flat_map(|value| value.to_le_bytes()));
        out.extend(self.buckets.iter().flat_map(|value| value.to_le_bytes()));
    }
}

impl EndpointSums {
    pub(crate) fn encode(&self, state: EndpointState, out: &mut Vec<u8>) {
        out.extend(state.id.to_le_bytes());
        out.extend(state.started_s.to_le_bytes());
        out.extend(self.inflight_s.to_le_bytes());
        out.extend(self.calls.to_le_bytes());
        out.extend(self.reports.to_le_bytes());
        out.extend(self.reported_inflight.to_le_bytes());
        out.extend(self.rps.to_le_bytes());
        out.extend(self.utilization.to_le_bytes());
        out.extend(self.utilization_reports.to_le_bytes());
        out.extend(self.inflight_estimate.to_le_bytes());
        out.extend(state.concurrency.to_le_bytes());
        out.extend(state.rtt_s.to_le_bytes());
        out.extend(u32::from(state.usable).to_le_bytes());
        out.extend(u32::from(state.ejected).to_le_bytes());
    }
}
