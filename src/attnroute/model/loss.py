"""What training makes small (docs/model.md, "Training"): three terms, on calls not seen before.

The first is the loss of the gate: how far the predicted mean is from the service times. The second
is the likelihood of the latency histogram. The third routes the coming calls by the network's own
probabilities and asks what that would cost: time, queues, and an uneven load. Sources: gamma
quasi-likelihood, Wedderburn 1974; queue term, Sakasegawa 1977; constants, docs/model.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnroute.model.network import Routed
from attnroute.telemetry.training import BOUNDS_S

__all__ = ["Losses", "Target", "losses", "mean_loss", "queue_lengths"]

SCALE_S = 0.02
LIKELIHOOD = 0.3
LIKELIHOOD_MIN = 1e-5
DELTA = 1e-3
QUEUE = 0.6
OVERLOAD = 60.0
LOAD_MAX = 0.95
LOAD_MIN = 1e-4
ENTROPY = 0.02
BALANCE = 0.01


@dataclass(frozen=True)
class Target:
    """The scrape after the features; float32."""

    calls: Tensor
    """[C, E], successes."""
    x_s: Tensor
    """[C, E], sums of their service time."""
    buckets: Tensor
    """[C, B], successes by latency; 0 where unknown."""
    wait_s: Tensor
    """[E]."""
    rtt_s: Tensor
    """[E]."""
    rate: Tensor
    """[C], calls a second."""
    concurrency: Tensor
    """[E]."""
    mean_s: float
    """g."""


@dataclass(frozen=True)
class Losses:
    """The terms, weighted, and their sum."""

    mean: Tensor
    histogram: Tensor
    correction: Tensor
    attention: Tensor
    total: Tensor


def losses(routed: Routed, target: Target) -> Losses:
    """All terms of one scrape."""
    mean = mean_loss(routed.cost_s, target)
    histogram = LIKELIHOOD * histogram_loss(routed, target)
    correction = DELTA * (routed.delta**2).mean()
    attention = attention_loss(routed, target)
    return Losses(mean, histogram, correction, attention, mean + histogram + correction + attention)


def mean_loss(cost_s: Tensor, target: Target) -> Tensor:
    """sum(x/S + cnt ln(S/20 ms))/(sum cnt + 1)."""
    terms = target.x_s / cost_s + target.calls * torch.log(cost_s / SCALE_S)
    return terms.sum() / (target.calls.sum() + 1.0)


def histogram_loss(routed: Routed, target: Target) -> Tensor:
    """Minus the mean log probability of a call's bucket, by class: a class's distribution is that
    of its endpoints, by their calls."""
    row, column = torch.nonzero(target.calls > 0, as_tuple=True)
    total = target.buckets.sum()
    if len(row) == 0 or total <= 0:
        return routed.cost_s.sum() * 0.0
    mean_s = target.rtt_s[column] + routed.cost_s[row, column] + target.wait_s[column]
    sigma = torch.exp(routed.log_sigma[row, column])
    middle = torch.log(mean_s) - sigma**2 / 2
    bounds = torch.log(torch.tensor(BOUNDS_S, dtype=mean_s.dtype))
    below = torch.special.ndtr((bounds[None, :] - middle[:, None]) / sigma[:, None])  # [n, B - 1]
    edge = torch.ones_like(below[:, :1])
    inside = torch.diff(below, dim=1, prepend=0 * edge, append=edge)  # [n, B]
    weight = target.calls[row, column]
    by_class = torch.zeros_like(target.buckets).index_add(0, row, weight[:, None] * inside)
    calls = target.calls.sum(dim=1, keepdim=True).clamp_min(1e-9)
    likely = (by_class / calls).clamp_min(LIKELIHOOD_MIN)
    return -(target.buckets * torch.log(likely)).sum() / total


def queue_lengths(load: Tensor, concurrency: Tensor) -> Tensor:
    """q = c r^e/(1 - r) + 60 max(0, rho - 0.95) with r = rho between 1e-4 and 0.95 and
    e = sqrt(2(c + 1)): how many wait at an endpoint of c places and load rho. [E]."""
    r = load.clamp(LOAD_MIN, LOAD_MAX)
    exponent = torch.sqrt(2.0 * (concurrency + 1.0))
    return concurrency * r**exponent / (1.0 - r) + OVERLOAD * (load - LOAD_MAX).clamp_min(0.0)


def attention_loss(routed: Routed, target: Target) -> Tensor:
    """What the coming calls would cost if they were routed by P; S is taken as it is."""
    cost_s, p = routed.cost_s.detach(), routed.probability
    total = target.rate.sum()
    if total <= 0:
        return p.sum() * 0.0
    routed_rate = target.rate[:, None] * p  # [C, E]
    time = (routed_rate * (target.rtt_s + cost_s)).sum()
    load = (routed_rate * cost_s).sum(dim=0) / target.concurrency  # [E]
    # Calls in service and calls that wait; by Little's law over the rate that is a time.
    spent = (time + QUEUE * queue_lengths(load, target.concurrency).sum()) / (target.mean_s * total)
    entropy = -(target.rate[:, None] * p * torch.log(p.clamp_min(1e-9))).sum() / total
    share = load / load.sum().clamp_min(1e-9)
    balance = len(share) * share.var(correction=0)
    return spent - ENTROPY * entropy + BALANCE * balance
