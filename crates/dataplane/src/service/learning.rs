//! What a service tells whoever learns from its calls, and takes from there: request classes and
//! the windows of their counters.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::Arc;

use super::{Service, Snapshot, Writer};
use crate::attempt::{Attempt, RequestClass, RequestInfo, Sample};
use crate::balancer::{Balancer, Learned, Learning};
use crate::cells::{EndpointState, Window};
use crate::class::{ClassSet, Classifier, Newcomers, Traits};
use crate::config::{BalancerConfig, LearnedConfig, ServiceConfig};
use crate::endpoint::{Endpoint, Member, Outcome};
use crate::grpc::Code;
use crate::ledger::{Ended, Expected, Pace};
use crate::orca::LoadReport;
use crate::score_table::{Scores, ScoresError};

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
    /// Usable endpoints up to which nobody draws by the routing probabilities.
    pub(crate) scan_max: usize,
}

impl Tracking {
    /// `None` where nobody learns from the calls.
    pub(super) fn new(config: &ServiceConfig) -> Option<Self> {
        let learned = match &config.balancer {
            BalancerConfig::Learned(learned) => Some(learned),
            _ => None,
        };
        let classes = match (&config.request_class, learned) {
            (None, None) => return None,
            (classes, _) => classes.clone().unwrap_or_default(),
        };
        let default = LearnedConfig::default();
        let learned = learned.unwrap_or(&default);
        let ns = |ms: u64| ms as f64 * 1e6;
        Some(Self {
            classifier: Classifier::new(&classes),
            pace: Pace {
                ratio_ns: ns(learned.ratio_decay_ms),
                errors_ns: ns(learned.error_decay_ms),
                others_ns: ns(learned.others_decay_ms),
            },
            peer_share: learned.peer_share,
            fade_ns: ns(learned.report_fade_ms),
            max_classes: classes.max_classes,
            concurrency: config.concurrency,
            scan_max: Learned::scan_max(learned),
        })
    }
}

impl Snapshot {
    /// What is expected of an endpoint as it is now, the call to be placed not counted; `None` where
    /// nobody learns from it.
    pub(crate) fn expected(
        &self,
        now_ns: u64,
        request: RequestInfo,
        index: u32,
    ) -> Option<Expected> {
        let tracking = self.settings.tracking.as_ref()?;
        let expected = self.balancer.expected(self.view(), now_ns, request, index);
        expected.or_else(|| {
            let endpoint = &self.members[index as usize].endpoint;
            let peers = tracking.peer_share * f64::from(self.sidecars.saturating_sub(1));
            let own = endpoint.live.unanswered();
            Some(Expected {
                calls: endpoint.ledger.calls(now_ns, own, peers, tracking.fade_ns),
                latency_s: 0.0,
            })
        })
    }
}

impl Snapshot {
    /// The time within which an attempt that has just begun is answered with that probability, as
    /// published scores have it. `None` where none say so: a classic balancer, no model, a class
    /// without scores of its own, an endpoint that has left or moved in the set.
    pub(crate) fn tail_ns(&self, now_ns: u64, attempt: &Attempt, quantile: f64) -> Option<u64> {
        let Balancer::Learned(rule) = &self.balancer else {
            return None;
        };
        let index = attempt.index();
        let member = self.members.get(index as usize)?;
        if member.endpoint.id != attempt.endpoint().id {
            return None;
        }
        let class = attempt.request().class;
        let tail_s = rule.tail_s(self.view(), now_ns, class, index, quantile)?;
        Some((tail_s * 1e9) as u64)
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
                    .classify(&snapshot.learning.classes, &tracking.classifier, traits)
            }
        }
    }

    /// The classes in force.
    #[must_use]
    pub fn classes(&self) -> Arc<ClassSet> {
        Arc::clone(&self.snapshot().learning.classes)
    }

    /// The name of a class as it counts now; `None` where classes are not told apart.
    pub(crate) fn class_name(&self, class: RequestClass) -> Option<Arc<str>> {
        let snapshot = self.snapshot();
        snapshot.settings.tracking.as_ref()?;
        let classes = &snapshot.learning.classes;
        let entry = classes.entries().get(classes.place(class).0 as usize)?;
        Some(Arc::clone(&entry.names.class))
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
            class_epoch: current.learning.classes.epoch(),
            length_ns: now_ns.saturating_sub(writer.window_ns),
            ..Window::default()
        };
        writer.window_ns = writer.window_ns.max(now_ns);
        let mut usable = vec![false; current.members.len()];
        for index in &current.usable {
            usable[*index as usize] = true;
        }
        let mut calls = vec![0; current.learning.classes.entries().len()];
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

    /// Classes and scores for the next snapshot: brought up to date, and in the order of its
    /// members.
    pub(super) fn next_learning(
        &self,
        writer: &mut Writer,
        tracking: Option<&Tracking>,
        members: &[Member],
        previous: &Snapshot,
    ) -> Arc<Learning> {
        let Some(tracking) = tracking else {
            return Arc::clone(&previous.learning);
        };
        let interner = &mut writer.interner;
        let moved = interner.update(&self.newcomers, tracking.max_classes, members.len());
        let classes = Arc::clone(interner.set());
        if let Some(moved) = moved.filter(|moved| !moved.classes.is_empty()) {
            for member in members {
                let ledger = &member.endpoint.ledger;
                ledger.moved(classes.epoch(), &moved.classes, &moved.kinds);
            }
        }
        let ids = members.iter().map(|member| member.endpoint.id).collect();
        let concurrency = tracking.concurrency.map(|calls| calls as f32);
        let table = writer
            .table
            .carried(&classes, &ids, tracking.scan_max, concurrency);
        for (member, concurrency) in members.iter().zip(&table.concurrency) {
            member.endpoint.ledger.set_concurrency(*concurrency);
        }
        writer.table = Arc::clone(&table);
        Arc::new(Learning {
            table,
            classes,
            reported_ns: Arc::clone(&previous.learning.reported_ns),
        })
    }

    /// Takes scores over, from the next pick on. Returns the epoch of the table.
    ///
    /// # Errors
    /// Classes or endpoints have changed since they were computed, or a value cannot be; the scores
    /// before stay in force.
    pub fn publish_scores(&self, scores: &Scores<'_>, now_ns: u64) -> Result<u64, ScoresError> {
        let mut writer = self.writer.lock();
        let current = self.snapshot.load();
        if current.settings.tracking.is_none() {
            let message = format!("service `{}` has no request classes", self.name);
            return Err(ScoresError::Invalid(message));
        }
        let class_epoch = current.learning.classes.epoch();
        for (what, current, given) in [
            ("endpoint", current.epoch, scores.endpoint_epoch),
            ("class", class_epoch, scores.class_epoch),
        ] {
            if current != given {
                return Err(ScoresError::Stale {
                    what,
                    current,
                    given,
                });
            }
        }
        let table = current.learning.table.published(scores, now_ns)?;
        let epoch = table.epoch;
        writer.table = Arc::new(table);
        writer.sidecars = Some(scores.sidecars.max(1));
        self.republish(&mut writer, &current);
        Ok(epoch)
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
            class: snapshot.learning.classes.place(class),
            class_epoch: snapshot.learning.classes.epoch(),
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
            let pace = &tracking.pace;
            if endpoint.ledger.reported(now_ns, report, own, pace) {
                let reported_ns = &snapshot.learning.reported_ns;
                reported_ns.store(now_ns.max(1), Relaxed);
            }
        }
    }
}
