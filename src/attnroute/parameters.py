"""Constants of learning, from the keys of the policy and the trainer's file to where they hold."""

from __future__ import annotations

from attnroute.features.split import SplitParameters
from attnroute.features.table import ConcurrencyParameters, TableParameters
from attnroute.policy.learning import GateKeys, SplitKeys, TableKeys
from attnroute.scoring.guardrail import GateParameters

__all__ = ["gate_parameters", "split_parameters", "table_parameters"]


def table_parameters(keys: TableKeys) -> TableParameters:
    """Of the table, in seconds and calls."""
    learned = keys.concurrency
    return TableParameters(
        decay_s=keys.decay.total_seconds(),
        mean_service_start_s=keys.first_mean.total_seconds(),
        cell_prior_calls=keys.cell_prior,
        kind_prior_calls=keys.kind_prior,
        endpoint_prior_calls=keys.endpoint_prior,
        mean_prior_calls=keys.mean_prior,
        class_floor=keys.class_floor,
        cell_floor=keys.cell_floor,
        young_s=keys.young_for.total_seconds(),
        young_calls=keys.young_calls,
        young_factor=keys.young_factor,
        concurrency=ConcurrencyParameters(
            windows=learned.windows,
            windows_min=learned.min_windows,
            calls_min=learned.min_calls,
            slack=learned.slack,
            saturated=learned.saturated,
            quiet=learned.quiet,
        ),
    )


def gate_parameters(keys: GateKeys) -> GateParameters:
    """Of the gate of each scorer."""
    return GateParameters(
        calls_min=keys.min_calls,
        memory=keys.memory,
        loss_max=-keys.loss_max,
        gain_max=keys.gain_max,
        scale=keys.scale,
        conflict_factor=keys.conflict_factor,
        conflict_traffic=keys.conflict_traffic,
        conflict_weight_max=keys.conflict_weight,
        conflict_steps=keys.conflict_steps,
    )


def split_parameters(keys: SplitKeys | None) -> SplitParameters | None:
    """Of the solver; None where there is none."""
    if keys is None:
        return None
    return SplitParameters(
        iterations=keys.iterations,
        start=keys.start,
        step=keys.step,
        step_halves=keys.step_halves,
        exponent_max=keys.exponent_max,
        load_max=keys.load_max,
        queue_weight=keys.queue_weight,
    )
