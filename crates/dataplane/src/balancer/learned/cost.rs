//! What a call costs on an endpoint, from values that were read (`algorithms.md` 3.4).
//!
//! Pure functions of f32 in a fixed order, without fused multiply-add, exponentials by short
//! polynomials: the same values give the same bits on any machine, so that a recorded pick can be
//! computed again. Values stand in arrays per field, a block of endpoints at a time, and every step
//! is free of branches, so that the compiler takes several endpoints at once. (A table with
//! interpolation is as exact, but nothing can look up several places at once.)

/// Endpoints of a block.
pub const LANES: usize = 16;

/// Shares in which the ratios believe what was expected.
const RATIO_PRIOR: f32 = 10.0;
const KIND_RATIO_PRIOR: f32 = 3.0;

const RATIO_MIN: f32 = 0.2;
const RATIO_MAX: f32 = 10.0;
const UTILIZATION_MAX: f32 = 0.95;

/// Smoothness of the bend where waiting begins: with a fresh report, and more without one.
const BEND: f32 = 0.15;
const BEND_STALE: f32 = 0.5;

/// An age that stands for "never": e^-x of it is nothing at every time constant.
pub const NEVER_S: f32 = 1e9;

/// Added and taken away again, it rounds to a whole number, which then stands in the low bits.
const ROUND: f32 = 12_582_912.0;

/// Exponent of 2 beyond which a power counts as this one: the least that is a normal number, less
/// one for a fraction below 1.
const POWER_MAX: f32 = 125.0;

/// The lesser; `most` where `value` is no number. (One instruction; `f32::min` takes five.)
#[inline(always)]
fn at_most(value: f32, most: f32) -> f32 {
    if value < most {
        value
    } else {
        most
    }
}

/// The greater; `least` where `value` is no number.
#[inline(always)]
fn at_least(value: f32, least: f32) -> f32 {
    if value > least {
        value
    } else {
        least
    }
}

/// 2^-x for x >= 0, within 2e-4 of itself.
#[inline(always)]
fn half_power(x: f32) -> f32 {
    let power = at_most(x, POWER_MAX);
    let rounded = power + ROUND;
    let rest = power - (rounded - ROUND);
    // The cubic of the least relative error on [-1/2, 1/2] among those that are 1 at 0.
    let fraction = 1.0 - rest * (0.693_282_97 - rest * (0.242_211_01 - rest * 0.055_008_61));
    // Whole powers are taken off the exponent; the bits of ROUND are shifted out.
    f32::from_bits(fraction.to_bits().wrapping_sub(rounded.to_bits() << 23))
}

/// ln(1 + e^-x) for x >= 0, within 3e-4 of itself.
#[inline(always)]
fn soft(x: f32) -> f32 {
    let t = half_power(x * std::f32::consts::LOG2_E);
    // ln(1 + t)/t by the quartic of the least relative error on [0, 1].
    let tail = 0.306_301_24 - t * (0.157_427_45 - t * 0.041_347_33);
    t * (0.999_943_3 - t * (0.496_977_93 - t * tail))
}

/// What the cost of a call on an endpoint hangs on, `L` endpoints at once. Times in seconds; ages
/// are times since, [`NEVER_S`] where there was nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Read<const L: usize> {
    /// o: own calls in flight.
    pub own: [f32; L],
    /// n_rep - o_rep of the last report.
    pub surplus: [f32; L],
    /// o_rep.
    pub own_reported: [f32; L],
    /// mo.
    pub others: [f32; L],
    /// a.
    pub report_age_s: [f32; L],
    /// Reported; 0: none.
    pub utilization: [f32; L],
    /// A and B, and the age of their last sample.
    pub measured_s: [f32; L],
    /// B.
    pub expected_s: [f32; L],
    /// Age of the last sample of both.
    pub ratio_age_s: [f32; L],
    /// A of the kind.
    pub kind_measured_s: [f32; L],
    /// B of the kind.
    pub kind_expected_s: [f32; L],
    /// Age of the last sample of both.
    pub kind_age_s: [f32; L],
    /// e as of the last answer.
    pub errors: [f32; L],
    /// Age of that answer.
    pub answer_age_s: [f32; L],
    /// rtt.
    pub rtt_s: [f32; L],
    /// S.
    pub cost_s: [f32; L],
    /// sbar.
    pub mean_service_s: [f32; L],
    /// c.
    pub concurrency: [f32; L],
    /// Static weight, less what slow start holds back.
    pub weight: [f32; L],
}

impl<const L: usize> Read<L> {
    /// One of them alone.
    #[must_use]
    pub fn lane(&self, lane: usize) -> Read<1> {
        Read {
            own: [self.own[lane]],
            surplus: [self.surplus[lane]],
            own_reported: [self.own_reported[lane]],
            others: [self.others[lane]],
            report_age_s: [self.report_age_s[lane]],
            utilization: [self.utilization[lane]],
            measured_s: [self.measured_s[lane]],
            expected_s: [self.expected_s[lane]],
            ratio_age_s: [self.ratio_age_s[lane]],
            kind_measured_s: [self.kind_measured_s[lane]],
            kind_expected_s: [self.kind_expected_s[lane]],
            kind_age_s: [self.kind_age_s[lane]],
            errors: [self.errors[lane]],
            answer_age_s: [self.answer_age_s[lane]],
            rtt_s: [self.rtt_s[lane]],
            cost_s: [self.cost_s[lane]],
            mean_service_s: [self.mean_service_s[lane]],
            concurrency: [self.concurrency[lane]],
            weight: [self.weight[lane]],
        }
    }
}

impl<const L: usize> Default for Read<L> {
    /// Endpoints of which nothing is known.
    fn default() -> Self {
        Self {
            own: [0.0; L],
            surplus: [0.0; L],
            own_reported: [0.0; L],
            others: [0.0; L],
            report_age_s: [NEVER_S; L],
            utilization: [0.0; L],
            measured_s: [0.0; L],
            expected_s: [0.0; L],
            ratio_age_s: [NEVER_S; L],
            kind_measured_s: [0.0; L],
            kind_expected_s: [0.0; L],
            kind_age_s: [NEVER_S; L],
            errors: [0.0; L],
            answer_age_s: [NEVER_S; L],
            rtt_s: [0.0; L],
            cost_s: [0.0; L],
            mean_service_s: [0.0; L],
            concurrency: [1.0; L],
            weight: [1.0; L],
        }
    }
}

/// Numbers of a pick that are the same for every endpoint.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Factors {
    /// What others are taken to have begun for each own call: 0.25 (M - 1).
    pub peers: f32,
    /// 1 / 0.1 s.
    pub report_fade: f32,
    /// 1 / 4 s; 0: no ratios.
    pub ratio_fade: f32,
    /// 1 / 20 s.
    pub error_fade: f32,
    /// Share of errors up to which they cost nothing.
    pub error_threshold: f32,
    /// Seconds.
    pub error_penalty_s: f32,
    /// Weight of utilization.
    pub utilization: f32,
    /// Weight of the cube by sbar.
    pub queue: f32,
    /// Weight of the cube by S.
    pub class_queue: f32,
    /// Whether r is 1.
    pub no_ratio: bool,
    /// Whether r_m is r.
    pub no_kind_ratio: bool,
}

/// The cost and what it is made of, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs<const L: usize> {
    /// n.
    pub calls: [f32; L],
    /// p.
    pub latency_s: [f32; L],
    /// r.
    pub ratio: [f32; L],
    /// r_m.
    pub kind_ratio: [f32; L],
    /// Share of errors as read.
    pub errors: [f32; L],
    /// r_m S.
    pub service_s: [f32; L],
    /// r (p - S).
    pub wait_s: [f32; L],
    /// Utilization.
    pub utilization_s: [f32; L],
    /// 0.3 sbar (n/c)^3.
    pub queue_s: [f32; L],
    /// r_m S (n/c)^3.
    pub class_queue_s: [f32; L],
    /// Errors.
    pub error_s: [f32; L],
    /// The sum, rtt included.
    pub cost_s: [f32; L],
    /// That divided by the weight: the least one wins, but for the jitter.
    pub weighted_s: [f32; L],
}

impl Read<1> {
    /// Names of the values, in the order of [`Read::values`].
    pub const NAMES: &'static [&'static str] = &[
        "own",
        "surplus",
        "own_reported",
        "others",
        "report_age_s",
        "utilization",
        "measured_s",
        "expected_s",
        "ratio_age_s",
        "kind_measured_s",
        "kind_expected_s",
        "kind_age_s",
        "errors",
        "answer_age_s",
        "rtt_s",
        "cost_s",
        "mean_service_s",
        "concurrency",
        "weight",
    ];

    /// The values, as records have them.
    #[must_use]
    pub fn values(&self) -> [f32; Self::NAMES.len()] {
        [
            self.own[0],
            self.surplus[0],
            self.own_reported[0],
            self.others[0],
            self.report_age_s[0],
            self.utilization[0],
            self.measured_s[0],
            self.expected_s[0],
            self.ratio_age_s[0],
            self.kind_measured_s[0],
            self.kind_expected_s[0],
            self.kind_age_s[0],
            self.errors[0],
            self.answer_age_s[0],
            self.rtt_s[0],
            self.cost_s[0],
            self.mean_service_s[0],
            self.concurrency[0],
            self.weight[0],
        ]
    }

    /// From as many values in that order.
    #[must_use]
    pub fn of_values(values: &[f32]) -> Self {
        let mut values = values.iter().map(|value| [*value]);
        let mut next = || values.next().unwrap_or_default();
        Self {
            own: next(),
            surplus: next(),
            own_reported: next(),
            others: next(),
            report_age_s: next(),
            utilization: next(),
            measured_s: next(),
            expected_s: next(),
            ratio_age_s: next(),
            kind_measured_s: next(),
            kind_expected_s: next(),
            kind_age_s: next(),
            errors: next(),
            answer_age_s: next(),
            rtt_s: next(),
            cost_s: next(),
            mean_service_s: next(),
            concurrency: next(),
            weight: next(),
        }
    }
}

impl Costs<1> {
    /// Names of the values, in the order of [`Costs::values`].
    pub const NAMES: &'static [&'static str] = &[
        "calls",
        "latency_s",
        "ratio",
        "kind_ratio",
        "errors",
        "service_s",
        "wait_s",
        "utilization_s",
        "queue_s",
        "class_queue_s",
        "error_s",
        "cost_s",
        "weighted_s",
    ];

    /// The values, as explanations have them.
    #[must_use]
    pub fn values(&self) -> [f32; Self::NAMES.len()] {
        [
            self.calls[0],
            self.latency_s[0],
            self.ratio[0],
            self.kind_ratio[0],
            self.errors[0],
            self.service_s[0],
            self.wait_s[0],
            self.utilization_s[0],
            self.queue_s[0],
            self.class_queue_s[0],
            self.error_s[0],
            self.cost_s[0],
            self.weighted_s[0],
        ]
    }
}

/// (A d + prior x)/(B d + prior), in [0.2, 10].
#[inline(always)]
fn ratio(measured: f32, expected: f32, kept: f32, prior_s: f32, of: f32) -> f32 {
    let found = (measured * kept + prior_s * of) / (expected * kept + prior_s);
    at_most(at_least(found, RATIO_MIN), RATIO_MAX)
}

/// A value for each place.
#[inline(always)]
pub(super) fn each<const L: usize>(value: impl Fn(usize) -> f32) -> [f32; L] {
    let mut out = [0.0; L];
    for (i, out) in out.iter_mut().enumerate() {
        *out = value(i);
    }
    out
}

/// Whether all values are this one, bit for bit: then what is done to them can be spared.
#[inline(always)]
fn all_are<const L: usize>(values: &[f32; L], value: f32) -> bool {
    let differing = |found: u32, one: &f32| found | (one.to_bits() ^ value.to_bits());
    values.iter().fold(0, differing) == 0
}

/// e^-(age x fade), place by place.
#[inline(always)]
fn faded<const L: usize>(ages_s: &[f32; L], fade: f32) -> [f32; L] {
    let fade = fade * std::f32::consts::LOG2_E;
    each(|i| half_power(ages_s[i] * fade))
}

/// n, n/c, and how long a call waits, before anything was measured.
#[inline(always)]
fn waits<const L: usize>(read: &Read<L>, factors: &Factors) -> [[f32; L]; 3] {
    let fresh = faded(&read.report_age_s, factors.report_fade);
    let calls: [f32; L] = each(|i| {
        let others = fresh[i] * read.surplus[i] + (1.0 - fresh[i]) * read.others[i];
        let grown = at_least(read.own[i] - read.own_reported[i], 0.0);
        read.own[i] + (at_least(others, 0.0) + factors.peers * grown)
    });
    let bend: [f32; L] = each(|i| BEND + BEND_STALE * (1.0 - fresh[i]));
    let above: [f32; L] = each(|i| calls[i] - read.concurrency[i] + 1.0);
    let bent: [f32; L] = each(|i| soft(above[i].abs() / bend[i]));
    let turns: [f32; L] = each(|i| 1.0 / read.concurrency[i]);
    let wait = each(|i| {
        let queue = at_least(above[i], 0.0) + bend[i] * bent[i];
        queue * turns[i] * read.mean_service_s[i]
    });
    [calls, each(|i| calls[i] * turns[i]), wait]
}

/// r and r_m.
#[inline(always)]
fn ratios<const L: usize>(read: &Read<L>, factors: &Factors) -> [[f32; L]; 2] {
    let mut all = [1.0; L];
    if !factors.no_ratio {
        let kept = faded(&read.ratio_age_s, factors.ratio_fade);
        all = each(|i| {
            let prior_s = RATIO_PRIOR * read.mean_service_s[i];
            ratio(
                read.measured_s[i],
                read.expected_s[i],
                kept[i],
                prior_s,
                1.0,
            )
        });
    }
    if factors.no_kind_ratio {
        return [all, all];
    }
    let kept = faded(&read.kind_age_s, factors.ratio_fade);
    let of_kind = each(|i| {
        let prior_s = KIND_RATIO_PRIOR * read.mean_service_s[i];
        let (measured_s, expected_s) = (read.kind_measured_s[i], read.kind_expected_s[i]);
        ratio(measured_s, expected_s, kept[i], prior_s, all[i])
    });
    [all, of_kind]
}

/// Shares of errors as they count now, and their cost.
#[inline(always)]
fn errors<const L: usize>(read: &Read<L>, factors: &Factors) -> [[f32; L]; 2] {
    if all_are(&read.errors, 0.0) {
        return [[0.0; L]; 2];
    }
    let kept = faded(&read.answer_age_s, factors.error_fade);
    let errors: [f32; L] = each(|i| read.errors[i] * kept[i]);
    let cost_s = each(|i| {
        let costly = errors[i] > factors.error_threshold;
        if costly {
            factors.error_penalty_s * errors[i]
        } else {
            0.0
        }
    });
    [errors, cost_s]
}

/// The costs of a block.
///
/// Step by step over the whole block: one chain from the first step to the last is some hundred
/// cycles long, and the processor would spend most of the time on waiting for it.
#[inline(always)]
#[must_use]
pub fn costs<const L: usize>(read: &Read<L>, factors: &Factors) -> Costs<L> {
    let [calls, load, wait] = waits(read, factors);
    let [ratio, kind_ratio] = ratios(read, factors);
    let [errors, error_s] = errors(read, factors);
    let service_s: [f32; L] = each(|i| kind_ratio[i] * read.cost_s[i]);
    let wait_s: [f32; L] = each(|i| ratio[i] * wait[i]);
    let mut utilization_s = [0.0; L];
    if !all_are(&read.utilization, 0.0) {
        utilization_s = each(|i| {
            let busy = at_most(read.utilization[i], UTILIZATION_MAX);
            factors.utilization * service_s[i] * (busy / (1.0 - busy))
        });
    }
    let cube: [f32; L] = each(|i| load[i] * load[i] * load[i]);
    let queue_s: [f32; L] = each(|i| factors.queue * read.mean_service_s[i] * cube[i]);
    let class_queue_s: [f32; L] = each(|i| factors.class_queue * service_s[i] * cube[i]);
    let cost_s: [f32; L] = each(|i| {
        read.rtt_s[i]
            + service_s[i]
            + wait_s[i]
            + utilization_s[i]
            + queue_s[i]
            + class_queue_s[i]
            + error_s[i]
    });
    let mut weighted_s = cost_s;
    if !all_are(&read.weight, 1.0) {
        weighted_s = each(|i| cost_s[i] / read.weight[i]);
    }
    Costs {
        latency_s: each(|i| read.cost_s[i] + wait[i]),
        weighted_s,
        calls,
        ratio,
        kind_ratio,
        errors,
        service_s,
        wait_s,
        utilization_s,
        queue_s,
        class_queue_s,
        error_s,
        cost_s,
    }
}

#[cfg(test)]
mod tests {
    use std::f64::consts::LOG2_E;

    use super::{all_are, at_least, at_most, half_power, soft};

    #[test]
    fn exponentials_are_within_a_thousandth() {
        for step in 0..60_000 {
            let x = f64::from(step) * 1e-3;
            let found = f64::from(half_power((x * LOG2_E) as f32)) / libm::exp(-x) - 1.0;
            assert!(found.abs() < 2e-4, "e^-{x}: {found}");
            let found = f64::from(soft(x as f32)) / libm::log1p(libm::exp(-x)) - 1.0;
            assert!(found.abs() < 3e-4, "soft {x}: {found}");
        }
        for x in [100.0, 1e3, 1e10, f32::MAX, f32::INFINITY] {
            assert!((0.0..1e-29).contains(&half_power(x)), "{x}");
            assert!((0.0..1e-29).contains(&soft(x)), "{x}");
        }
        assert_eq!(half_power(0.0), 1.0);
        assert!(half_power(125.0).is_normal());
    }

    #[test]
    fn what_is_no_number_gives_way_to_the_bound() {
        assert_eq!([at_most(1.0, 2.0), at_most(3.0, 2.0)], [1.0, 2.0]);
        assert_eq!([at_least(1.0, 2.0), at_least(3.0, 2.0)], [2.0, 3.0]);
        assert_eq!([at_most(f32::NAN, 2.0), at_least(f32::NAN, 2.0)], [2.0; 2]);
    }

    #[test]
    fn one_that_differs_is_seen() {
        let mut values = [1.0; 16];
        assert!(all_are(&values, 1.0));
        values[15] = 1.0 + f32::EPSILON;
        assert!(!all_are(&values, 1.0));
    }
}
