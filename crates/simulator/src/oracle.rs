//! `oracle`: the limit. It knows every speed, every call in flight, those on their way included,
//! and what work of each class means on each endpoint, and picks the least expected completion.
//!
//! It does not know how much work one call turns out to be, since nobody could.

use attnroute_dataplane::rng::Rng;

use crate::endpoint::{Endpoint, Queue};

/// Expected time from the pick to the answer, in nanoseconds.
pub(crate) fn completion_ns(endpoint: &Endpoint, work_ns: f64, rtt_ns: f64) -> f64 {
    let rate = endpoint.rate();
    if rate <= 0.0 {
        return f64::INFINITY;
    }
    let (calls, workers) = (f64::from(endpoint.assigned), f64::from(endpoint.workers));
    let served_ns = match &endpoint.queue {
        Queue::Fifo(_) if calls < workers => work_ns,
        Queue::Fifo(_) => {
            // So many must end before a worker is free, and they end at workers/mean.
            let mean_ns = endpoint.assigned_ns / calls;
            work_ns + mean_ns * (calls - workers + 1.0) / workers
        }
        Queue::Sharing(_) => work_ns * ((calls + 1.0) / workers).max(1.0),
    };
    rtt_ns + served_ns / rate
}

/// The endpoint with the least cost, ties at random; None without candidates.
pub(crate) fn least(costs: impl Iterator<Item = (u32, f64)>, rng: &mut Rng) -> Option<u32> {
    let mut best: Option<(u32, f64)> = None;
    let mut ties = 0;
    for (number, cost) in costs {
        match best {
            Some((_, least)) if cost > least => {}
            Some((_, least)) if cost == least => {
                ties += 1;
                if rng.below(ties) == 0 {
                    best = Some((number, cost));
                }
            }
            _ => {
                best = Some((number, cost));
                ties = 1;
            }
        }
    }
    best.map(|(number, _)| number)
}
