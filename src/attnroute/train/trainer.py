"""The training loop, in sight: one sample a scrape, some steps of AdamW, and what came of it.

Each cycle first judges the network on the new scrape, as a sidecar's gate will, then trains on it
and on others of the last while. A cycle is a function of the samples, the seed and the state, so a
run that was killed goes on from its state file as if nothing had happened.

Routing health is watched beside it: where the probabilities collapse onto few endpoints, the next
cycles also pull them towards the fluid split, the one that spreads the load best.
"""

from __future__ import annotations

import math
import os
from collections import deque
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from attnroute.errors import AttnrouteError
from attnroute.features.schema import schema_hash
from attnroute.features.split import solve
from attnroute.features.table import Array
from attnroute.model.loss import Losses, Target, losses
from attnroute.model.network import Routed, Router, RouterConfig
from attnroute.scoring.guardrail import Gate, quasi_loss
from attnroute.train.gates import Health, HealthLimits, HealthWatch
from attnroute.train.replay import Sample

__all__ = ["Cycle", "StateError", "Training", "TrainingConfig", "inputs_of", "target_of"]


class StateError(AttnrouteError):
    """A state file that this training cannot go on from."""


@dataclass(frozen=True)
class TrainingConfig:
    """Hyper-parameters of training."""

    seed: int = 0
    learning_rate: float = 3e-3
    weight_decay: float = 1e-3
    clip: float = 1.0
    steps: int = 25
    """A cycle."""
    replay: int = 60
    """Scrapes that are kept; each step takes the newest and two others."""
    drawn: int = 2
    temperature_min: float = 0.5
    temperature_decay: float = 0.995
    balance_pull: float = 0.5
    """Weight of KL(fluid split, P) while the routing is not healthy."""
    health: HealthLimits = field(default_factory=HealthLimits)


@dataclass(frozen=True)
class Cycle:
    """What one cycle found."""

    number: int
    gain: float
    """QL(S0) - QL(S) on the new scrape, before it was trained on; NaN without calls."""
    gate: float
    """w of a gate over these gains."""
    loss: float
    """Mean over the steps."""
    health: Health
    rebalanced: bool


def inputs_of(sample: Sample) -> dict[str, Tensor]:
    """What the router takes."""
    return {name: torch.from_numpy(value) for name, value in sample.matrices.tensors().items()}


def target_of(sample: Sample) -> Target:
    """What its loss takes."""

    def tensor(values: Array) -> Tensor:
        return torch.from_numpy(values.astype(np.float32))

    return Target(
        calls=tensor(sample.calls),
        x_s=tensor(sample.x_s),
        buckets=tensor(sample.buckets),
        wait_s=tensor(sample.wait_s),
        rtt_s=torch.from_numpy(sample.matrices.rtt_s),
        rate=tensor(sample.rate),
        concurrency=tensor(sample.concurrency),
        mean_s=sample.mean_s,
    )


class Training:
    """Router, optimiser and the last scrapes of one service."""

    def __init__(self, router: Router, config: TrainingConfig | None = None) -> None:
        self.router = router
        self.config = config or TrainingConfig()
        self.optimiser = torch.optim.AdamW(
            router.parameters(),
            lr=self.config.learning_rate,
            weight_decay=self.config.weight_decay,
        )
        self.cycles = 0
        self.gate = Gate()
        self.watch = HealthWatch(self.config.health)
        self.rebalancings = 0
        self._samples: deque[Sample] = deque(maxlen=self.config.replay)

    def remember(self, sample: Sample) -> None:
        """Keeps a sample without training on it: what a run that goes on had seen before."""
        self._samples.append(sample)

    def cycle(self, sample: Sample) -> Cycle:
        """Judges the router on a new sample and trains on it."""
        gain, health = self._judge(sample)
        self._samples.append(sample)
        self.cycles += 1
        rebalance = self.watch.observe(health)
        self.rebalancings += rebalance
        rng = np.random.default_rng((self.config.seed, self.cycles))
        older = len(self._samples) - 1
        total = 0.0
        for _ in range(self.config.steps):
            drawn = rng.integers(0, older, self.config.drawn).tolist() if older else []
            batch = [sample, *(self._samples[place] for place in drawn)]
            total += self.step(batch, self.config.balance_pull if rebalance else 0.0)
        with torch.no_grad():
            self.router.score.temperature.fill_(self._temperature())
        loss = total / max(1, self.config.steps)
        return Cycle(self.cycles, gain, self.gate.weight, loss, health, rebalance)

    def step(self, batch: list[Sample], balance_pull: float = 0.0) -> float:
        """One step over some samples; returns their mean loss."""
        self.optimiser.zero_grad()
        found = 0.0
        for sample in batch:
            loss = self.loss(sample, balance_pull) / len(batch)
            torch.autograd.backward(loss)
            found += loss.item()
        torch.nn.utils.clip_grad_norm_(self.router.parameters(), self.config.clip)
        self.optimiser.step()
        return found

    def loss(self, sample: Sample, balance_pull: float = 0.0) -> Tensor:
        """Of one sample, with a pull towards the fluid split."""
        routed: Routed = self.router(**inputs_of(sample))
        terms: Losses = losses(routed, target_of(sample))
        if balance_pull <= 0:
            return terms.total
        split = torch.from_numpy(_fluid(sample, routed).astype(np.float32))
        rate = torch.from_numpy(sample.rate.astype(np.float32))
        # From the logits: a softmax that has collapsed has no gradient left in its own values.
        chosen = torch.log_softmax(routed.logits, dim=1)
        rows = (split * (torch.log(split.clamp_min(1e-9)) - chosen)).sum(dim=1)
        return terms.total + balance_pull * (rate * rows).sum() / rate.sum().clamp_min(1e-9)

    def _temperature(self) -> float:
        c = self.config
        return max(c.temperature_min, c.temperature_decay**self.cycles)

    def _judge(self, sample: Sample) -> tuple[float, Health]:
        with torch.no_grad():
            routed: Routed = self.router(**inputs_of(sample))
        seen = sample.calls > 0
        calls, x_s = sample.calls[seen], sample.x_s[seen]
        table_s = sample.matrices.table_cost_s[seen].astype(np.float64)
        cost_s = routed.cost_s.numpy()[seen].astype(np.float64)
        gain = math.nan
        if len(calls):
            gain = quasi_loss(calls, x_s, table_s) - quasi_loss(calls, x_s, cost_s)
            self.gate.observe(calls, x_s, table_s, cost_s)
        return gain, Health.of(routed.probability.numpy(), sample.rate)

    # --- to go on after a kill ----------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Writes the state whole or not at all."""
        state = {
            "schema": schema_hash(),
            "router": self.router.state_dict(),
            "shape": asdict(self.router.config),
            "optimiser": self.optimiser.state_dict(),
            "cycles": self.cycles,
            "gd": self.gate.gd,
            "unhealthy": self.watch.sustained,
            "rebalancings": self.rebalancings,
        }
        fresh = path.with_name(f".{path.name}.new")
        with fresh.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)

    @classmethod
    def load(cls, path: Path, config: TrainingConfig | None = None) -> Training:
        """Goes on from a state file; the samples of before are remembered by the caller.

        Raises StateError if it is not whole or of other features.
        """
        try:
            state = torch.load(path, weights_only=True)
            schema, shape = state["schema"], RouterConfig(**state["shape"])
        except Exception as error:
            raise StateError(
                f"{path}: this is no whole state of a training: {error}; remove it to begin anew"
            ) from error
        if schema != schema_hash():
            raise StateError(
                f"{path}: made for the features `{schema}`, these are `{schema_hash()}`; remove it "
                "to begin anew"
            )
        training = cls(Router(shape), config)
        training.router.load_state_dict(state["router"])
        training.optimiser.load_state_dict(state["optimiser"])
        training.cycles = state["cycles"]
        training.gate = Gate(start=state["gd"])
        training.watch.sustained = state["unhealthy"]
        training.rebalancings = state["rebalancings"]
        return training


def _fluid(sample: Sample, routed: Routed) -> Array:
    """The split that makes time and queues least for what the router thinks, [C, E]."""
    cost_s = routed.cost_s.detach().numpy().astype(np.float64)
    split = solve(
        calls=sample.rate[None],
        service_s=cost_s,
        rtt_s=sample.matrices.rtt_s[None].astype(np.float64),
        concurrency=sample.concurrency,
        # Not from P: it has collapsed, and what is nearly 0 takes long to come back.
        begun=np.full((1, *cost_s.shape), 1.0 / cost_s.shape[1]),
    )
    return np.asarray(split[0], dtype=np.float64)
