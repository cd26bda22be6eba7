//! Fleets for the tests of balancers.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use super::{Balancer, View};
use crate::address::Address;
use crate::attempt::RequestInfo;
use crate::config::{BalancerConfig, ChoiceCount};
use crate::endpoint::{Endpoint, Member};
use crate::rng::Rng;

/// Endpoints of which those with a weight are usable.
#[derive(Debug)]
pub(super) struct Fleet {
    pub(super) members: Vec<Member>,
    pub(super) usable: Vec<u32>,
}

impl Fleet {
    /// Static weight and calls in flight of each.
    pub(super) fn new(all: &[(f32, u32)]) -> Self {
        let members: Vec<_> = all
            .iter()
            .enumerate()
            .map(|(index, (static_weight, in_flight))| {
                let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1 + index as u16));
                let endpoint = Endpoint::new(index as u64, Address::Tcp(address));
                endpoint.live.in_flight.store(*in_flight, Relaxed);
                Member {
                    endpoint: Arc::new(endpoint),
                    static_weight: *static_weight,
                    zone: String::new(),
                    labels: BTreeMap::new(),
                }
            })
            .collect();
        let usable = (0..)
            .zip(all)
            .filter(|(_, (weight, _))| *weight > 0.0)
            .map(|(index, _)| index);
        Self {
            members,
            usable: usable.collect(),
        }
    }

    pub(super) fn view(&self) -> View<'_> {
        View {
            members: &self.members,
            usable: &self.usable,
        }
    }
}

/// `least_request` with distinct draws.
pub(super) fn choose(choice_count: ChoiceCount) -> BalancerConfig {
    BalancerConfig::LeastRequest {
        choice_count,
        with_replacement: false,
    }
}

/// How often each member is picked while the counters stand still.
pub(super) fn picks(balancer: &Balancer, fleet: &Fleet, count: u32, rng: &mut Rng) -> Vec<u32> {
    let mut counts = vec![0; fleet.members.len()];
    for _ in 0..count {
        counts[balancer.pick(fleet.view(), 0, RequestInfo::default(), rng) as usize] += 1;
    }
    counts
}
