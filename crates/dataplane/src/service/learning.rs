//! What a service tells whoever learns from its calls, and takes from there: request classes and
//! the windows of their counters.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use super::{Service, Snapshot, Writer};
use crate::attempt::{Attempt, RequestClass, Sample};
use crate::cells::{EndpointState, Window};
use crate::class::{ClassSet, Classifier, Newcomers, Traits};
use crate::config::ServiceConfig;
use crate::endpoint::{Endpoint, Outcome};
use crate::grpc::Code;
use crate::ledger::{Ended, Expected, Pace};
use crate::orca::LoadReport;

/// Time in which a load report gives way to the mean of those before it.
pub(crate) const REPORT_FADE_NS: f64 = 1e8;

/// Calls that each other sidecar is taken to have begun for each of ours since the last report.
const PEER_SHARE: f64 = 0.25;

/// How the calls of a service are told apart and followed.
#[derive(Debug)]
pub struct Tracking {
    /// Gives calls their class.
    pub classifier: Classifier,
    pub(crate) pace: Pace,
    pub(crate) peer_share: f64,
    pub(crate) fade_ns: f64,
    pub(crate) max_classes: usize,
    /// Calls that an endpoint works on at a time, where the operator knows.
    pub(crate) concurrency: Option<u32>,
}

impl Tracking {
    /// `None` where nobody asked for it.
    pub(super) fn new(config: &ServiceConfig) -> Option<Self> {
        let classes = config.request_class.as_ref()?;
        Some(Self {
            classifier: Classifier::new(classes),
            pace: Pace::default(),
            peer_share: PEER_SHARE,
            fade_ns: REPORT_FADE_NS,
            max_classes: classes.max_classes,
            concurrency: config.concurrency,
        })
    }
}

impl Snapshot {
    /// What is expected of an endpoint as it is now, the call to be placed not counted; `None` where
    /// nobody learns from it.
    pub(crate) fn expected(&self, now_ns: u64, endpoint: &Endpoint) -> Option<Expected> {
        let tracking = self.settings.tracking.as_ref()?;
        let peers = tracking.peer_share * f64::from(self.sidecars.saturating_sub(1));
        let own = endpoint.live.unanswered();
        Some(Expected {
            calls: endpoint.ledger.calls(now_ns, own, peers, tracking.fade_ns),
            latency_s: 0.0,
        })
    }
}

impl Service {
    /// The class of a call, by what is known of it at its pick. The second value: it shares that
    /// of all others, for lack of room.
    #[must_use]
    pub fn classify(&self, snapshot: &Snapshot, traits: &Traits<'_>) -> (RequestClass, bool) {
        match &snapshot.settings.tracking {
            None => (RequestClass::default(), false),
            Some(tracking) => {
                self.newcomers
                    .classify(&snapshot.classes, &tracking.classifier, traits)
            }
        }
    }

    /// The classes in force.
    #[must_use]
    pub fn classes(&self) -> Arc<ClassSet> {
        Arc::clone(&self.snapshot().classes)
    }

    /// Counters of classes that wait, were folded or made room.
    #[must_use]
    pub fn newcomers(&self) -> &Newcomers {
        &self.newcomers
    }

    /// Takes what the calls since the last time add up to. For one taker: each call is handed out
    /// once. Rows agree with the epochs that stand beside them.
    #[must_use]
    pub fn take_window(&self, now_ns: u64) -> Window {
        let mut writer = self.writer.lock();
        let current = self.snapshot();
        let mut window = Window {
            endpoint_epoch: current.epoch,
            class_epoch: current.classes.epoch(),
            length_ns: now_ns.saturating_sub(writer.window_ns),
            ..Window::default()
        };
        writer.window_ns = writer.window_ns.max(now_ns);
        let mut usable = vec![false; current.members.len()];
        for index in &current.usable {
            usable[*index as usize] = true;
        }
        let mut calls = vec![0; current.classes.entries().len()];
        for (index, (member, usable)) in current.members.iter().zip(usable).enumerate() {
            let endpoint = &member.endpoint;
            let state = EndpointState {
                id: endpoint.id,
                started_s: endpoint.incarnation.started_s(),
                usable,
                ejected: endpoint.outlier.is_ejected(),
                concurrency: f32::NAN,
                rtt_s: f32::NAN,
            };
            let rows = (&mut window.endpoints, &mut window.cells);
            endpoint
                .ledger
                .drain(now_ns, index as u32, state, rows, &mut calls);
        }
        if let Some(tracking) = &current.settings.tracking {
            let (most, count) = (tracking.max_classes, current.members.len());
            writer.interner.count(&calls, most, count);
        }
        window
    }

    /// Admits the classes that were answered meanwhile.
    pub(super) fn admit(&self) {
        if self.newcomers.is_due() {
            let mut writer = self.writer.lock();
            let current = self.snapshot.load();
            self.republish(&mut writer, &current);
        }
    }

    /// Brings the classes up to date, for a snapshot of that many endpoints.
    pub(super) fn next_classes(
        &self,
        writer: &mut Writer,
        tracking: Option<&Tracking>,
        members: &[crate::endpoint::Member],
    ) -> Arc<ClassSet> {
        let Some(tracking) = tracking else {
            return Arc::clone(writer.interner.set());
        };
        if let Some(concurrency) = tracking.concurrency {
            for member in members {
                member.endpoint.ledger.set_concurrency(concurrency as f32);
            }
        }
        let interner = &mut writer.interner;
        let moved = interner.update(&self.newcomers, tracking.max_classes, members.len());
        let set = Arc::clone(interner.set());
        if let Some(moved) = moved.filter(|moved| !moved.classes.is_empty()) {
            for member in members {
                let ledger = &member.endpoint.ledger;
                ledger.moved(set.epoch(), &moved.classes, &moved.kinds);
            }
        }
        set
    }

    /// Enters the end of an attempt, or of its sample, in its endpoint's ledger.
    pub(super) fn enter(
        &self,
        snapshot: &Snapshot,
        attempt: &mut Attempt,
        now_ns: u64,
        sample: &Sample<'_>,
    ) {
        let Some(expected) = attempt.take_expected() else {
            return;
        };
        let (endpoint, class) = (attempt.endpoint(), attempt.request().class);
        let Some(tracking) = &snapshot.settings.tracking else {
            return endpoint.ledger.leave(Some(now_ns));
        };
        if class.unknown != 0 {
            if let Outcome::Answered(code) = sample.outcome {
                self.newcomers
                    .answered(class.unknown, code != Code::Unimplemented);
            }
        }
        let ended = Ended {
            now_ns,
            class: snapshot.classes.place(class),
            class_epoch: snapshot.classes.epoch(),
            outcome: sample.outcome,
            latency_ns: sample.latency_ns,
            expected,
            report: sample.report,
            ping_ns: endpoint.live.rtt_ns.load(Relaxed),
        };
        endpoint.ledger.ended(&ended, &tracking.pace);
    }

    /// Enters a load report.
    pub(super) fn enter_report(
        &self,
        snapshot: &Snapshot,
        endpoint: &Endpoint,
        now_ns: u64,
        report: &LoadReport,
    ) {
        if let Some(tracking) = &snapshot.settings.tracking {
            let own = endpoint.live.unanswered();
            endpoint
                .ledger
                .reported(now_ns, report, own, &tracking.pace);
        }
    }
}
