//! Why an endpoint was chosen.

/// Why an endpoint was chosen; one string in metric labels, records and admin. A fallback has the
/// reason of the rule that really chose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Reason {
    /// The `round_robin` balancer's turn, or that of one that has too little to go by.
    RoundRobin,
    /// The `least_request` balancer's choice.
    LeastRequest,
    /// Drawn by the `random` balancer, or by one that has too little to go by.
    Random,
    /// The `weighted_round_robin` balancer's turn.
    WeightedRoundRobin,
    /// The `peak_ewma` balancer's choice.
    PeakEwma,
    /// The `c3` balancer's choice.
    C3,
    /// The `prequal` balancer's choice from its pool.
    Prequal,
    /// The `latency_observation` balancer's choice.
    LatencyObservation,
    /// The place of the call's key on the ring of `ring_hash`.
    RingHash,
    /// The place of the call's key in the table of `maglev`.
    Maglev,
    /// The `learned` balancer's choice, by a model.
    Learned,
    /// The `learned` balancer's choice by its table alone: there is no model, or it is not trusted,
    /// or what it said is old.
    Table,
    /// The `learned` balancer's choice without load reports of any endpoint.
    NoReports,
    /// The `learned` balancer's choice gave way to one that was drawn, because it was overloaded.
    OverloadSplit,
    /// The choice of `learned`'s fallback: nobody has published scores for too long.
    FallbackExpired,
    /// Pins of an operator or of the route say who may be chosen.
    Pinned,
    /// The place of the call's key, by a rule of the route.
    Sticky,
    /// Tried because it had too few calls, by a rule of the route.
    Explore,
    /// Only one endpoint was usable.
    Single,
    /// No endpoint was usable: all of them were candidates.
    Panic,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 20] = [
        Self::RoundRobin,
        Self::LeastRequest,
        Self::Random,
        Self::WeightedRoundRobin,
        Self::PeakEwma,
        Self::C3,
        Self::Prequal,
        Self::LatencyObservation,
        Self::RingHash,
        Self::Maglev,
        Self::Learned,
        Self::Table,
        Self::NoReports,
        Self::OverloadSplit,
        Self::FallbackExpired,
        Self::Pinned,
        Self::Sticky,
        Self::Explore,
        Self::Single,
        Self::Panic,
    ];

    /// The string that stands everywhere.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::RoundRobin => "round_robin",
            Self::LeastRequest => "least_request",
            Self::Random => "random",
            Self::WeightedRoundRobin => "weighted_round_robin",
            Self::PeakEwma => "peak_ewma",
            Self::C3 => "c3",
            Self::Prequal => "prequal",
            Self::LatencyObservation => "latency_observation",
            Self::RingHash => "ring_hash",
            Self::Maglev => "maglev",
            Self::Learned => "learned",
            Self::Table => "table",
            Self::NoReports => "no_reports",
            Self::OverloadSplit => "overload_split",
            Self::FallbackExpired => "fallback_expired",
            Self::Pinned => "pinned",
            Self::Sticky => "sticky",
            Self::Explore => "explore",
            Self::Single => "single",
            Self::Panic => "panic",
        }
    }
}
