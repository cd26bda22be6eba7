//! What people see of the scores in force, class by class.

use super::{route, Age, Ask, Learned};
use crate::balancer::View;
use crate::reason::Reason;

/// One class; endpoints in index order.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassScores {
    /// Its canonical string.
    pub class: Box<str>,
    /// Routing probabilities over who is usable; they sum to 1.
    pub weights: Box<[f32]>,
    /// Latency that one more call would be expected to have now, in seconds.
    pub predicted_s: Box<[f32]>,
    /// Spread of that prediction (sigma of its logarithm); empty where nothing was published.
    pub spread: Box<[f32]>,
}

/// Everything that picks go by.
#[derive(Debug, Clone, PartialEq)]
pub struct InForce {
    /// 0: nothing is published.
    pub table_epoch: u64,
    /// `None` without a table.
    pub table_age_s: Option<f64>,
    /// Empty: scores are measured latencies alone.
    pub model: Box<str>,
    /// Why picks go where they go, rules apart.
    pub reason: Reason,
    /// In index order; empty while the fallback picks.
    pub classes: Box<[ClassScores]>,
}

impl Learned {
    /// The scores in force, for the usable endpoints of a view.
    #[must_use]
    pub fn in_force(&self, view: View<'_>, now_ns: u64) -> InForce {
        let table = self.table();
        let age = self.age(now_ns);
        let mut ask = Ask {
            view,
            now_ns,
            row: None,
            kind: 0,
            age,
        };
        let entries = self.learning.classes.entries();
        let shown = entries.iter().enumerate().map(|(index, entry)| {
            ask.row = table.row(index as u32);
            ask.kind = entry.kind;
            self.class_scores(&ask, &entry.names.class)
        });
        let classes = if age == Age::Expired {
            Box::default()
        } else {
            shown.collect()
        };
        let age_s = now_ns.saturating_sub(table.published_ns) as f64 * 1e-9;
        InForce {
            table_epoch: table.epoch,
            table_age_s: (table.epoch > 0).then_some(age_s),
            model: table.model.as_str().into(),
            reason: match age {
                Age::Expired => Reason::FallbackExpired,
                _ => self.reason(&ask),
            },
            classes,
        }
    }

    fn class_scores(&self, ask: &Ask<'_>, class: &str) -> ClassScores {
        let count = ask.view.members.len();
        let mut weights = vec![0.0; count];
        route(ask.view, ask.row, &mut weights);
        let predicted_s = (0..count as u32).map(|index| {
            let examined = self.examine_one(ask, index);
            let [rtt_s] = examined.read.rtt_s;
            rtt_s + examined.costs.service_s[0] + examined.costs.wait_s[0]
        });
        ClassScores {
            class: class.into(),
            weights: weights.into(),
            predicted_s: predicted_s.collect(),
            spread: ask.row.map_or_else(Box::default, |row| row.spread.clone()),
        }
    }
}
