//! The scores in force: what a call of a class costs on an endpoint, as the control side publishes
//! it, in the order of the classes and endpoints of one snapshot.
//!
//! Values cannot land elsewhere: what is published names the epochs that it was computed for, and
//! when classes or endpoints change afterwards, rows are carried over by their names.

use std::collections::HashMap;
use std::sync::Arc;

use crate::class::{ClassSet, OTHER};
use crate::rng::Rng;

/// Service time while nobody has told any, in seconds.
pub const UNKNOWN_S: f32 = 0.02;

/// What a new endpoint costs against the mean of the others.
const NEW_FACTOR: f32 = 3.0;

/// By how much a row of probabilities may miss 1.
const SUM_SLACK: f64 = 1e-3;

/// Most seconds that a score may be: more is a mistake, and powers of it would overflow.
const SECONDS_MAX: f32 = 1e6;

/// A mean service time counts as at least this.
const SECONDS_MIN: f32 = 1e-6;

/// Most calls that an endpoint may work on at a time.
const CONCURRENCY_MAX: f32 = 1e6;

/// What the control side publishes, C classes by E endpoints, row by row.
#[derive(Debug, Clone, Copy)]
pub struct Scores<'a> {
    /// Endpoint set that columns are in the order of.
    pub endpoint_epoch: u64,
    /// Classes that rows are in the order of.
    pub class_epoch: u64,
    /// S `[C, E]`, seconds.
    pub cost_s: &'a [f32],
    /// S0 `[C, E]`, seconds.
    pub table_cost_s: &'a [f32],
    /// sigma `[C, E]`.
    pub spread: &'a [f32],
    /// P `[C, E]`; each row sums to 1.
    pub probability: &'a [f32],
    /// sbar `[E]`, seconds.
    pub mean_service_s: &'a [f32],
    /// c `[E]`, at least 1.
    pub concurrency: &'a [f32],
    /// Sidecars that call the service, this one included.
    pub sidecars: u32,
    /// The model behind S; empty: S is the table's.
    pub model: &'a str,
}

/// Why scores were not taken; the ones before stay.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScoresError {
    /// The classes or the endpoints have changed since they were computed.
    #[error("the {what} epoch is {current}, the scores are for {given}; take a new window")]
    Stale {
        /// `endpoint` or `class`.
        what: &'static str,
        /// In force.
        current: u64,
        /// Of the scores.
        given: u64,
    },
    /// A value cannot be.
    #[error("{0}")]
    Invalid(String),
}

/// One class.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// S.
    pub cost_s: Box<[f32]>,
    /// S0.
    pub table_cost_s: Box<[f32]>,
    /// sigma.
    pub spread: Box<[f32]>,
    /// P.
    pub probability: Box<[f32]>,
    /// Draws by P; only where there are too many endpoints to compare all.
    alias: Option<Alias>,
}

/// The scores of a snapshot.
#[derive(Debug)]
pub struct ScoreTable {
    /// Rises with what is published; 0: nothing yet.
    pub epoch: u64,
    /// When it was published, on the clock of the picks.
    pub published_ns: u64,
    /// The model behind S; empty: S is the table's.
    pub model: String,
    rows: Box<[Option<Arc<Row>>]>,
    /// sbar.
    pub mean_service_s: Box<[f32]>,
    /// c.
    pub concurrency: Box<[f32]>,
    classes: Arc<ClassSet>,
    ids: Arc<[u64]>,
    /// Endpoints up to which nobody draws.
    scan_max: usize,
}

/// Draws an index with given probabilities in constant time (Walker, 1977; Vose, 1991).
#[derive(Debug, Clone, PartialEq)]
struct Alias {
    /// Probability to stay at a place, and where to go else.
    places: Box<[(f32, u32)]>,
}

impl Alias {
    fn new(probability: &[f32]) -> Self {
        let count = probability.len();
        let sum: f64 = probability.iter().map(|one| f64::from(*one)).sum();
        let scale = count as f64 / sum.max(f64::MIN_POSITIVE);
        let mut left: Vec<_> = probability
            .iter()
            .map(|one| f64::from(*one) * scale)
            .collect();
        let mut places: Vec<_> = (0..count as u32).map(|index| (1.0, index)).collect();
        let (mut small, mut large): (Vec<usize>, Vec<usize>) =
            (0..count).partition(|index| left[*index] < 1.0);
        while let (Some(less), Some(more)) = (small.pop(), large.last().copied()) {
            places[less] = (left[less] as f32, more as u32);
            left[more] -= 1.0 - left[less];
            if left[more] < 1.0 {
                large.pop();
                small.push(more);
            }
        }
        Self {
            places: places.into(),
        }
    }

    fn draw(&self, rng: &mut Rng) -> u32 {
        let place = rng.below(self.places.len() as u32);
        let (stay, other) = self.places[place as usize];
        if rng.unit_f32() < stay {
            place
        } else {
            other
        }
    }
}

impl Row {
    /// The same for other endpoints: `from` has for each its place here, `None` for a new one.
    fn carried(&self, from: &[Option<usize>], draws: bool) -> Self {
        let filled = |values: &[f32], factor: f32| -> Box<[f32]> {
            let new = mean(values) * factor;
            let value = |place: &Option<usize>| place.map_or(new, |place| values[place]);
            from.iter().map(value).collect()
        };
        let mut probability: Box<[f32]> = from
            .iter()
            .map(|place| place.map_or(1.0 / from.len() as f32, |place| self.probability[place]))
            .collect();
        let sum: f32 = probability.iter().sum();
        if sum > 0.0 {
            probability.iter_mut().for_each(|one| *one /= sum);
        } else {
            probability.fill(1.0 / from.len() as f32);
        }
        Self {
            cost_s: filled(&self.cost_s, NEW_FACTOR),
            table_cost_s: filled(&self.table_cost_s, NEW_FACTOR),
            spread: filled(&self.spread, 1.0),
            alias: draws.then(|| Alias::new(&probability)),
            probability,
        }
    }
}

fn mean(values: &[f32]) -> f32 {
    if values.is_empty() {
        return 0.0;
    }
    let sum: f64 = values.iter().map(|value| f64::from(*value)).sum();
    (sum / values.len() as f64) as f32
}

impl ScoreTable {
    /// Before anything was published: every endpoint and class alike.
    #[must_use]
    pub fn unknown(classes: Arc<ClassSet>, ids: Arc<[u64]>, scan_max: usize) -> Self {
        let count = ids.len();
        Self {
            epoch: 0,
            published_ns: 0,
            model: String::new(),
            rows: vec![None; classes.entries().len()].into(),
            mean_service_s: vec![UNKNOWN_S; count].into(),
            concurrency: vec![1.0; count].into(),
            classes,
            ids,
            scan_max,
        }
    }

    /// The row of a class; without one, calls cost what they do in the mean.
    #[must_use]
    pub fn row(&self, class: u32) -> Option<&Row> {
        self.rows.get(class as usize)?.as_deref()
    }

    /// Endpoints, in index order.
    #[must_use]
    pub fn ids(&self) -> &[u64] {
        &self.ids
    }

    /// Draws an endpoint by the probabilities of a row; `None` where nothing is prepared for it.
    pub(crate) fn draw(&self, row: Option<&Row>, rng: &mut Rng) -> Option<u32> {
        Some(row?.alias.as_ref()?.draw(rng))
    }

    /// The same scores for the classes and endpoints of another snapshot. Rows follow the names of
    /// their classes and columns the ids of their endpoints; a new class has no row, a new endpoint
    /// costs three times the mean, so that it has to show what it can. `concurrency`: what the
    /// operator says of it.
    #[must_use]
    pub fn carried(
        self: &Arc<Self>,
        classes: &Arc<ClassSet>,
        ids: &Arc<[u64]>,
        scan_max: usize,
        concurrency: Option<f32>,
    ) -> Arc<Self> {
        let same_ids = self.ids == *ids && self.scan_max == scan_max;
        let known = |known: f32| self.concurrency.iter().all(|one| *one == known);
        let same = same_ids && self.classes.epoch() == classes.epoch();
        if same && concurrency.is_none_or(known) {
            return Arc::clone(self);
        }
        let places: HashMap<u64, usize> = self.ids.iter().copied().zip(0..).collect();
        let from: Vec<_> = ids.iter().map(|id| places.get(id).copied()).collect();
        let carry = |row: &Arc<Row>| {
            if same_ids {
                Arc::clone(row)
            } else {
                Arc::new(row.carried(&from, ids.len() > scan_max))
            }
        };
        let names = self.classes.entries().iter();
        let names: HashMap<_, _> = names.map(|entry| &entry.names.class).zip(0..).collect();
        let row_of = |class: &Arc<str>| {
            let row = self.rows.get(*names.get(class)? as usize)?;
            row.as_ref().map(carry)
        };
        let entries = classes.entries().iter();
        let (mean_s, least) = (self.mean_of_means(), self.least_concurrency());
        let column = |values: &[f32], new: f32| -> Box<[f32]> {
            from.iter()
                .map(|place| place.map_or(new, |place| values[place]))
                .collect()
        };
        let new_s = if self.epoch == 0 {
            UNKNOWN_S
        } else {
            mean_s * NEW_FACTOR
        };
        Arc::new(Self {
            epoch: self.epoch,
            published_ns: self.published_ns,
            model: self.model.clone(),
            rows: entries.map(|entry| row_of(&entry.names.class)).collect(),
            mean_service_s: column(&self.mean_service_s, new_s),
            concurrency: match concurrency {
                Some(known) => vec![known; ids.len()].into(),
                None => column(&self.concurrency, least),
            },
            classes: Arc::clone(classes),
            ids: Arc::clone(ids),
            scan_max,
        })
    }

    fn mean_of_means(&self) -> f32 {
        if self.mean_service_s.is_empty() {
            UNKNOWN_S
        } else {
            mean(&self.mean_service_s)
        }
    }

    /// Too low a concurrency costs next to nothing, too high a one much.
    fn least_concurrency(&self) -> f32 {
        let least = self.concurrency.iter().copied().reduce(f32::min);
        least.unwrap_or(1.0)
    }

    /// The table after this one, from what was published for its classes and endpoints.
    ///
    /// # Errors
    /// Something in it cannot be.
    pub fn published(&self, scores: &Scores<'_>, now_ns: u64) -> Result<Self, ScoresError> {
        let (classes, endpoints) = (self.classes.entries().len(), self.ids.len());
        scores.check(classes, endpoints)?;
        let draws = endpoints > self.scan_max;
        let row = |index: usize| {
            let part = |matrix: &[f32]| -> Box<[f32]> {
                matrix[index * endpoints..(index + 1) * endpoints].into()
            };
            let probability = part(scores.probability);
            Some(Arc::new(Row {
                cost_s: part(scores.cost_s),
                table_cost_s: part(scores.table_cost_s),
                spread: part(scores.spread),
                alias: draws.then(|| Alias::new(&probability)),
                probability,
            }))
        };
        Ok(Self {
            epoch: self.epoch + 1,
            published_ns: now_ns,
            model: scores.model.to_owned(),
            rows: (0..classes).map(row).collect(),
            // Never 0: ratios to it are taken.
            mean_service_s: at_least(scores.mean_service_s, SECONDS_MIN),
            concurrency: scores.concurrency.into(),
            classes: Arc::clone(&self.classes),
            ids: Arc::clone(&self.ids),
            scan_max: self.scan_max,
        })
    }

    /// The row of calls that have no class of their own.
    #[must_use]
    pub fn other(&self) -> Option<&Row> {
        self.row(OTHER)
    }
}

fn at_least(values: &[f32], least: f32) -> Box<[f32]> {
    values.iter().map(|value| value.max(least)).collect()
}

impl Scores<'_> {
    fn check(&self, classes: usize, endpoints: usize) -> Result<(), ScoresError> {
        let cells = classes * endpoints;
        for (name, values, expected, least, most) in [
            ("cost_s", self.cost_s, cells, 0.0, SECONDS_MAX),
            ("table_cost_s", self.table_cost_s, cells, 0.0, SECONDS_MAX),
            ("spread", self.spread, cells, 0.0, SECONDS_MAX),
            (
                "probability",
                self.probability,
                cells,
                0.0,
                1.0 + SUM_SLACK as f32,
            ),
            (
                "mean_service_s",
                self.mean_service_s,
                endpoints,
                0.0,
                SECONDS_MAX,
            ),
            (
                "concurrency",
                self.concurrency,
                endpoints,
                1.0,
                CONCURRENCY_MAX,
            ),
        ] {
            if values.len() != expected {
                return Err(ScoresError::Invalid(format!(
                    "`{name}` has {} values, expected {expected} for {classes} classes and \
                     {endpoints} endpoints",
                    values.len()
                )));
            }
            let wrong = values
                .iter()
                .position(|value| !(least..=most).contains(value));
            if let Some(index) = wrong {
                return Err(ScoresError::Invalid(format!(
                    "`{name}` has {} at {index}, expected {least} to {most}",
                    values[index]
                )));
            }
        }
        let rows = self.probability.chunks_exact(endpoints.max(1));
        for (index, row) in rows.enumerate() {
            let sum: f64 = row.iter().map(|one| f64::from(*one)).sum();
            if (sum - 1.0).abs() > SUM_SLACK {
                return Err(ScoresError::Invalid(format!(
                    "row {index} of `probability` sums to {sum}, expected 1"
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
