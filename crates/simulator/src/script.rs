//! What happens to endpoints by itself: the events of a scenario, noise, autoscaling, restarts.

use std::sync::Arc;

use attnroute_dataplane::config::{EndpointConfig, EndpointSetConfig};
use attnroute_dataplane::orca::LoadReport;
use attnroute_dataplane::rng::Rng;

use crate::draws::exponential;
use crate::endpoint::Endpoint;
use crate::recorder::zone_of;
use crate::scenario::{Action, Cold, Scenario, Selection};
use crate::sidecar::address_of;
use crate::world::{place_of, streams, Event, Pickers, World};

const NS_PER_MS: u64 = 1_000_000;
/// A pool that waits to dial again finds an endpoint back within this long.
const RECONNECT_NS_MAX: u32 = 1_000_000_000;
/// Autoscaling leaves the number of endpoints alone within this share of its target.
const AUTOSCALE_TOLERANCE: f64 = 0.1;

/// State of the script.
#[derive(Debug)]
pub(crate) struct Script {
    /// Endpoints that each event concerned when it began.
    targets: Vec<Vec<u32>>,
    noise: Vec<Noisy>,
    reconnects: Rng,
    out_of_band: Vec<Option<LoadReport>>,
    /// Busy and possible time of the autoscaled group when it was last looked at.
    looked_at: (f64, u64),
    joining: u32,
}

/// One endpoint under one noise.
#[derive(Debug)]
struct Noisy {
    endpoint: u32,
    spec: usize,
    slow: bool,
    rng: Rng,
}

impl Script {
    pub(crate) fn new(scenario: &Scenario, seed: u64) -> Self {
        Self {
            targets: vec![Vec::new(); scenario.events.len()],
            noise: Vec::new(),
            reconnects: Rng::stream(seed, streams::RECONNECTS),
            out_of_band: Vec::new(),
            looked_at: (0.0, 0),
            joining: 0,
        }
    }
}

impl World {
    /// Endpoints of the beginning, and everything that is known to come.
    pub(crate) fn begin_script(&mut self) {
        let scenario = Arc::clone(&self.scenario);
        for (group, spec) in scenario.endpoints.iter().enumerate() {
            for _ in 0..spec.count {
                self.add_endpoint(group, None);
            }
        }
        self.publish_set();
        for (number, event) in (0..).zip(&scenario.events) {
            self.agenda
                .at(event.at_ms * NS_PER_MS, Event::Begin { event: number });
        }
        for (spec, noise) in scenario.noise.iter().enumerate() {
            for endpoint in self.selected(&noise.endpoints) {
                let stream = streams::NOISE * (spec as u64 + 1) + u64::from(endpoint);
                self.script.noise.push(Noisy {
                    endpoint,
                    spec,
                    slow: true,
                    rng: Rng::stream(self.seed, stream),
                });
                // Ends a slow state that began before the run: the first one is normal.
                let source = (self.script.noise.len() - 1) as u32;
                self.change_noise(source);
            }
        }
        if let Some(autoscale) = &scenario.autoscale {
            self.agenda
                .at(autoscale.every_ms * NS_PER_MS, Event::Autoscale);
        }
    }

    pub(crate) fn scripted(&mut self, event: Event) {
        match event {
            Event::Begin { event } => self.begin_event(event),
            Event::End { event } => self.end_event(event),
            Event::Warm { endpoint, start } => {
                if self.endpoints[endpoint as usize].starts == start {
                    self.endpoints[endpoint as usize].cold = 1.0;
                    self.change_rate(endpoint);
                }
            }
            Event::Sever { endpoint, start } => self.sever(endpoint, start),
            Event::Up { endpoint, event } => self.come_up(endpoint, event),
            Event::Reconnect {
                sidecar,
                endpoint,
                start,
            } => self.reconnect(sidecar, endpoint, start),
            Event::Noise { source } => self.change_noise(source),
            Event::Autoscale => self.autoscale(),
            Event::Join { count } => self.join(count),
            Event::OutOfBand { endpoint } => self.tell(endpoint),
            Event::Deliver { endpoint } => self.deliver(endpoint),
            _ => unreachable!("calls and probes are handled by the loop"),
        }
    }

    // --- the set ---------------------------------------------------------------------------------

    fn add_endpoint(&mut self, group: usize, cold: Option<Cold>) {
        let number = self.endpoints.len() as u32;
        let spec = &self.scenario.endpoints[group];
        let others = self.endpoints.iter().filter(|other| other.group == group);
        let position = others.count() as u32;
        let zone = place_of(&self.zones, &zone_of(&spec.zones, position));
        let column = number as usize % self.affinity[0].len();
        self.endpoints.push(Endpoint::new(
            (group, position),
            (zone, column),
            (spec.workers, spec.speed),
            spec.discipline,
            self.now_ns,
        ));
        self.script.out_of_band.push(None);
        let every_ns = self.scenario.reports.out_of_band_ms * NS_PER_MS;
        if self.scenario.reports.enabled && every_ns > 0 {
            let event = Event::OutOfBand { endpoint: number };
            self.agenda.at(self.now_ns + every_ns, event);
        }
        self.chill(number, cold);
    }

    /// Starts an endpoint cold, if it does.
    fn chill(&mut self, number: u32, cold: Option<Cold>) {
        let endpoint = &mut self.endpoints[number as usize];
        endpoint.starts += 1;
        endpoint.cold = 1.0;
        if let Some(cold) = cold {
            endpoint.cold = cold.speed;
            let start = endpoint.starts;
            let event = Event::Warm {
                endpoint: number,
                start,
            };
            self.agenda.at(self.now_ns + cold.for_ms * NS_PER_MS, event);
        }
        self.change_rate(number);
    }

    /// Discovery tells every sidecar the set.
    fn publish_set(&mut self) {
        let Pickers::Sidecars(sidecars) = &mut self.pickers else {
            return;
        };
        let endpoints = (0..)
            .zip(&self.endpoints)
            .filter(|(_, endpoint)| endpoint.in_set)
            .map(|(number, endpoint)| {
                let group = &self.scenario.endpoints[endpoint.group];
                EndpointConfig {
                    address: address_of(number),
                    static_weight: group.static_weight as f32,
                    zone: self.zones[endpoint.zone].clone(),
                    labels: group.labels.clone(),
                    priority: 0,
                    operator_override: None,
                }
            })
            .collect();
        let set = EndpointSetConfig { endpoints };
        for sidecar in sidecars {
            sidecar.apply_endpoints(&set);
        }
    }

    /// Endpoints in the set that a selection takes.
    fn selected(&self, selection: &Selection) -> Vec<u32> {
        (0..)
            .zip(&self.endpoints)
            .filter(|(number, endpoint)| {
                let group = &self.scenario.endpoints[endpoint.group].name;
                endpoint.in_set && selection.takes(group, endpoint.position, *number)
            })
            .map(|(number, _)| number)
            .collect()
    }

    fn group_of(&self, name: &str) -> usize {
        let groups = &self.scenario.endpoints;
        groups
            .iter()
            .position(|group| group.name == name)
            .unwrap_or(0)
    }

    fn change_rate(&mut self, number: u32) {
        let due = self.endpoints[number as usize].change_rate(self.now_ns);
        self.announce(number, due);
    }

    // --- events ----------------------------------------------------------------------------------

    fn begin_event(&mut self, event: u32) {
        let scenario = Arc::clone(&self.scenario);
        let action = &scenario.events[event as usize].action;
        let targets = match action {
            Action::Slow { endpoints, .. }
            | Action::Fail { endpoints, .. }
            | Action::Hang { endpoints, .. }
            | Action::Restart { endpoints, .. }
            | Action::Remove { endpoints }
            | Action::ReportLoss { endpoints, .. } => self.selected(endpoints),
            Action::Add { .. }
            | Action::AffinityShift {}
            | Action::ModelFault { .. }
            | Action::TrainerDown { .. } => Vec::new(),
        };
        self.script.targets[event as usize].clone_from(&targets);
        if let Some(name) = avoidable(action) {
            self.recorder.watch(name, self.now_ns, &targets);
        }
        let mut lasts_ms = 0;
        match action {
            Action::Slow { speed, for_ms, .. } => {
                lasts_ms = *for_ms;
                for &number in &targets {
                    self.endpoints[number as usize].slows.push((event, *speed));
                    self.change_rate(number);
                }
            }
            Action::Fail {
                mode,
                share,
                for_ms,
                ..
            } => {
                lasts_ms = *for_ms;
                for &number in &targets {
                    let faults = &mut self.endpoints[number as usize].faults;
                    faults.push((event, *mode, *share));
                }
            }
            Action::Hang { for_ms, .. } => {
                lasts_ms = *for_ms;
                for &number in &targets {
                    self.endpoints[number as usize].hangs += 1;
                    self.change_rate(number);
                }
            }
            Action::ReportLoss { for_ms, .. } => {
                lasts_ms = *for_ms;
                for &number in &targets {
                    self.endpoints[number as usize].mutes += 1;
                }
            }
            Action::Restart { down_ms, .. } => {
                for &number in &targets {
                    self.crash(number, event, *down_ms);
                }
            }
            Action::Add { group, count, cold } => {
                let group = self.group_of(group);
                for _ in 0..*count {
                    self.add_endpoint(group, *cold);
                }
                self.publish_set();
            }
            Action::Remove { .. } => {
                for &number in &targets {
                    self.endpoints[number as usize].in_set = false;
                }
                self.publish_set();
            }
            Action::AffinityShift {} => self.shift += 1,
            Action::ModelFault { .. } | Action::TrainerDown { .. } => {}
        }
        if lasts_ms > 0 {
            self.agenda
                .at(self.now_ns + lasts_ms * NS_PER_MS, Event::End { event });
        }
    }

    fn end_event(&mut self, event: u32) {
        let scenario = Arc::clone(&self.scenario);
        let spec = &scenario.events[event as usize];
        for number in self.script.targets[event as usize].clone() {
            let endpoint = &mut self.endpoints[number as usize];
            match &spec.action {
                Action::Slow { .. } => endpoint.slows.retain(|(from, _)| *from != event),
                Action::Fail { .. } => endpoint.faults.retain(|(from, ..)| *from != event),
                Action::Hang { .. } => endpoint.hangs -= 1,
                Action::ReportLoss { .. } => endpoint.mutes -= 1,
                _ => {}
            }
            self.change_rate(number);
        }
        self.unwatch(event);
    }

    fn unwatch(&mut self, event: u32) {
        let spec = &self.scenario.events[event as usize];
        if let Some(name) = avoidable(&spec.action) {
            self.recorder.unwatch(name, spec.at_ms * NS_PER_MS);
        }
    }

    // --- restarts --------------------------------------------------------------------------------

    fn crash(&mut self, number: u32, event: u32, down_ms: u64) {
        let endpoint = &mut self.endpoints[number as usize];
        endpoint.down = true;
        endpoint.starts += 1;
        let start = endpoint.starts;
        for call in endpoint.crash(self.now_ns) {
            self.send_back(call, true, None);
        }
        let seen_ns = self.now_ns + self.farthest_ns(number);
        let sever = Event::Sever {
            endpoint: number,
            start,
        };
        self.agenda.at(seen_ns, sever);
        if down_ms > 0 {
            let up = Event::Up {
                endpoint: number,
                event,
            };
            self.agenda.at(self.now_ns + down_ms * NS_PER_MS, up);
        }
    }

    /// Every sidecar sees its connections break and cannot dial again.
    fn sever(&mut self, number: u32, start: u32) {
        let endpoint = &self.endpoints[number as usize];
        if !endpoint.down || endpoint.starts != start {
            return; // it came back before anybody looked
        }
        if let Pickers::Sidecars(sidecars) = &mut self.pickers {
            for sidecar in sidecars {
                sidecar.set_failing(number, true);
            }
        }
    }

    fn come_up(&mut self, number: u32, event: u32) {
        let cold = match &self.scenario.events[event as usize].action {
            Action::Restart { cold, .. } => *cold,
            _ => None,
        };
        self.endpoints[number as usize].restarted(self.now_ns);
        self.chill(number, cold);
        let start = self.endpoints[number as usize].starts;
        for sidecar in 0..self.scenario.sidecars.count {
            let wait_ns = u64::from(self.script.reconnects.below(RECONNECT_NS_MAX));
            let reconnect = Event::Reconnect {
                sidecar,
                endpoint: number,
                start,
            };
            self.agenda.at(self.now_ns + wait_ns, reconnect);
        }
        self.unwatch(event);
    }

    fn reconnect(&mut self, sidecar: u32, number: u32, start: u32) {
        let endpoint = &self.endpoints[number as usize];
        if endpoint.down || endpoint.starts != start {
            return;
        }
        if let Pickers::Sidecars(sidecars) = &mut self.pickers {
            sidecars[sidecar as usize].set_failing(number, false);
        }
    }

    // --- noise and autoscaling -------------------------------------------------------------------

    fn change_noise(&mut self, source: u32) {
        let noisy = &mut self.script.noise[source as usize];
        let spec = &self.scenario.noise[noisy.spec];
        noisy.slow = !noisy.slow;
        let mean_ms = if noisy.slow {
            spec.slow_ms
        } else {
            spec.normal_ms
        };
        let lasts_ns = exponential(&mut noisy.rng) * mean_ms * NS_PER_MS as f64;
        let number = noisy.endpoint;
        self.agenda
            .at(self.now_ns + lasts_ns as u64, Event::Noise { source });
        let scenario = Arc::clone(&self.scenario);
        let slowed = self
            .script
            .noise
            .iter()
            .filter(|noisy| noisy.endpoint == number && noisy.slow);
        self.endpoints[number as usize].noise = slowed
            .map(|noisy| scenario.noise[noisy.spec].speed)
            .product();
        self.change_rate(number);
    }

    fn autoscale(&mut self) {
        let scenario = Arc::clone(&self.scenario);
        let Some(autoscale) = &scenario.autoscale else {
            return;
        };
        let every_ns = autoscale.every_ms * NS_PER_MS;
        self.agenda.at(self.now_ns + every_ns, Event::Autoscale);
        let group = self.group_of(&autoscale.group);
        let mut busy_ns = 0.0;
        let mut running = Vec::new();
        for (number, endpoint) in (0..).zip(&mut self.endpoints) {
            if endpoint.group == group {
                busy_ns += endpoint.busy_total_ns(self.now_ns);
                if endpoint.in_set {
                    running.push(number);
                }
            }
        }
        let workers = f64::from(scenario.endpoints[group].workers);
        let count = running.len() as u32;
        let possible_ns = every_ns as f64 * workers * f64::from(count);
        let ratio = (busy_ns - self.script.looked_at.0) / possible_ns / autoscale.target;
        self.script.looked_at = (busy_ns, self.now_ns);
        let present = count + self.script.joining;
        if (ratio - 1.0).abs() <= AUTOSCALE_TOLERANCE || count == 0 {
            return;
        }
        let wanted = (f64::from(count) * ratio).ceil() as u32;
        let wanted = wanted.min(2 * count).clamp(autoscale.min, autoscale.max);
        if wanted > present {
            let count = wanted - present;
            self.script.joining += count;
            let at_ns = self.now_ns + autoscale.delay_ms * NS_PER_MS;
            self.agenda.at(at_ns, Event::Join { count });
        } else if wanted < count && self.script.joining == 0 {
            for &number in &running[wanted as usize..] {
                self.endpoints[number as usize].in_set = false;
            }
            self.publish_set();
        }
    }

    fn join(&mut self, count: u32) {
        let scenario = Arc::clone(&self.scenario);
        self.script.joining -= count;
        if let Some(autoscale) = &scenario.autoscale {
            let group = self.group_of(&autoscale.group);
            for _ in 0..count {
                self.add_endpoint(group, autoscale.cold);
            }
            self.publish_set();
        }
    }

    // --- reports out of band ---------------------------------------------------------------------

    fn tell(&mut self, number: u32) {
        let reports = &self.scenario.reports;
        let now_ns = self.now_ns;
        let endpoint = &mut self.endpoints[number as usize];
        if !endpoint.in_set {
            return;
        }
        let silent = endpoint.down || endpoint.hangs > 0;
        let report = endpoint.report(now_ns, reports, None);
        self.script.out_of_band[number as usize] = report.filter(|_| !silent);
        let every_ns = reports.out_of_band_ms * NS_PER_MS;
        let at_ns = now_ns + self.farthest_ns(number);
        self.agenda.at(at_ns, Event::Deliver { endpoint: number });
        self.agenda
            .at(now_ns + every_ns, Event::OutOfBand { endpoint: number });
    }

    fn deliver(&mut self, number: u32) {
        let report = self.script.out_of_band[number as usize].take();
        if let (Pickers::Sidecars(sidecars), Some(report)) = (&mut self.pickers, report) {
            for sidecar in sidecars {
                sidecar.reported(self.now_ns, number, &report);
            }
        }
    }
}

/// The name of an action whose endpoints picks should avoid while it lasts.
fn avoidable(action: &Action) -> Option<&'static str> {
    match action {
        Action::Slow { .. } => Some("slow"),
        Action::Fail { .. } => Some("fail"),
        Action::Hang { .. } => Some("hang"),
        Action::Restart { .. } => Some("restart"),
        _ => None,
    }
}
