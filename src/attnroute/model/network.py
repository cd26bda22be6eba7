"""The attention router: request classes attend to endpoints, and correct the table.

Read from top to bottom. C request classes, E endpoints, H heads of width D, V values. The table's
S0 is what the network starts from and what it is bounded by: its last layer begins at zero, so an
untrained router answers S = S0, and a trained one is within a factor of e^2.5 of it.

Three modules, one per graph of a bundle: a sidecar keeps what `EncodeEndpoints` and `EncodeClasses`
say until a feature changes, and runs `Score` for all live classes at once. Source of the attention:
Vaswani et al. 2017; of the bounded residual and the constants: docs/model.md, "Network".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from attnroute.features.schema import CLASS_FEATURES, ENDPOINT_FEATURES, PAIR_FEATURES

__all__ = ["EncodeClasses", "EncodeEndpoints", "Routed", "Router", "RouterConfig", "Score"]

_RESIDUAL = len(PAIR_FEATURES) - 1
"""The last column of `pair` switches the correction off, for the class `other`."""


@dataclass(frozen=True)
class RouterConfig:
    """Hyper-parameters."""

    heads: int = 4
    head_width: int = 8
    values: int = 8
    hidden: int = 32
    """Of the endpoint encoder."""
    decision: int = 24
    """Of the decision layer."""
    delta_max: float = 2.5
    """S is within e^delta_max of S0."""
    log_sigma_start: float = -0.5
    log_sigma_min: float = -3.0
    log_sigma_max: float = 1.0
    time_exponent_start: float = 1.5
    """b: how steeply routing probabilities fall with time."""
    explore: float = 0.03
    """Share of the probabilities that is uniform over usable endpoints."""


class EncodeEndpoints(nn.Module):
    """Endpoint features to keys and values: the rows of the K/V table."""

    def __init__(self, config: RouterConfig) -> None:
        super().__init__()
        self.shape = (config.heads, config.head_width)
        self.first = nn.Linear(len(ENDPOINT_FEATURES), config.hidden)
        self.second = nn.Linear(config.hidden, config.hidden)
        self.key = nn.Linear(config.hidden, config.heads * config.head_width)
        self.value = nn.Linear(config.hidden, config.values)

    def forward(self, endpoint: Tensor) -> tuple[Tensor, Tensor]:
        h = functional.silu(self.first(endpoint))  # [E, Fe] -> [E, 32]
        h = functional.silu(self.second(h))  # [E, 32]
        key = self.key(h).reshape(-1, *self.shape)  # [E, H, D]
        return key, self.value(h)  # [E, V]


class EncodeClasses(nn.Module):
    """Request class features to queries."""

    def __init__(self, config: RouterConfig) -> None:
        super().__init__()
        self.shape = (config.heads, config.head_width)
        self.query = nn.Linear(len(CLASS_FEATURES), config.heads * config.head_width)

    def forward(self, request_class: Tensor) -> Tensor:
        query: Tensor = self.query(request_class)  # [C, Fc] -> [C, H*D]
        return query.reshape(-1, *self.shape)  # [C, H, D]


@dataclass(frozen=True)
class Routed:
    """What the router says, and what its loss needs besides; [C, E] each."""

    cost_s: Tensor
    """S."""
    spread: Tensor
    """sigma: standard deviation of the logarithm of the latency."""
    probability: Tensor
    """P; rows sum to 1."""
    delta: Tensor
    """The correction before its bound."""
    log_sigma: Tensor
    logits: Tensor
    """Of P, before its uniform share."""


class Score(nn.Module):
    """Queries, keys, values and what the table knows of each pair to times and probabilities."""

    temperature: Tensor
    """tau, [1]: part of the graph, so that a bundle has the one it was trained at."""

    def __init__(self, config: RouterConfig) -> None:
        super().__init__()
        self.config = config
        width = config.heads + config.values + len(PAIR_FEATURES)
        self.first = nn.Linear(width, config.decision)
        self.decide = nn.Linear(config.decision, 2)
        self.route = nn.Parameter(torch.zeros(config.heads + config.values, 1))  # w
        self.time_exponent = nn.Parameter(torch.full((1,), config.time_exponent_start))  # b
        self.register_buffer("temperature", torch.ones(1))

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        pair: Tensor,
        table_cost_s: Tensor,
        rtt_s: Tensor,
        mask: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        routed = self.routed(query, key, value, pair, table_cost_s, rtt_s, mask)
        return routed.cost_s, routed.spread, routed.probability

    def routed(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        pair: Tensor,
        table_cost_s: Tensor,
        rtt_s: Tensor,
        mask: Tensor,
    ) -> Routed:
        """The forward pass with its inner values."""
        c = self.config
        # [H, C, D] @ [H, D, E] -> [H, C, E] -> [C, E, H]
        attention = query.permute(1, 0, 2) @ key.permute(1, 2, 0) / math.sqrt(c.head_width)
        attention = attention.permute(1, 2, 0)
        values = value.unsqueeze(0).expand(attention.shape[0], -1, -1)  # [C, E, V]
        seen = torch.cat((attention, values), dim=2)  # [C, E, H + V]

        # Flat, so that a layer is one product with its weights as they are stored: the exported
        # graph must have a place for them.
        told = torch.cat((seen, pair), dim=2).flatten(0, 1)  # [C*E, H + V + Fp]
        h = functional.silu(self.first(told))  # [C*E, 24]
        decided = self.decide(h).reshape(*table_cost_s.shape, 2)  # [C, E, 2]
        delta, log_sigma = decided[:, :, 0], decided[:, :, 1]
        bounded = c.delta_max * torch.tanh(delta / c.delta_max) * pair[:, :, _RESIDUAL]
        cost_s = table_cost_s * torch.exp(bounded)
        log_sigma = log_sigma.clamp(c.log_sigma_min, c.log_sigma_max)

        # The probabilities follow the predicted time, they do not bend it.
        time_s = rtt_s.unsqueeze(0) + cost_s.detach() + 1e-9
        preferred = (seen.flatten(0, 1) @ self.route).reshape(table_cost_s.shape)
        logits = preferred - self.time_exponent * torch.log(time_s)
        # With nobody usable, everybody counts.
        usable = torch.where(mask.sum() > 0, mask, torch.ones_like(mask)).unsqueeze(0)  # [1, E]
        logits = torch.where(usable > 0, logits / self.temperature, torch.full_like(logits, -1e9))
        chosen = torch.softmax(logits, dim=1)
        probability = (1.0 - c.explore) * chosen + c.explore * usable / usable.sum()
        return Routed(cost_s, torch.exp(log_sigma), probability, delta, log_sigma, logits)


class Router(nn.Module):
    """The three of them. seed: of the projections."""

    def __init__(self, config: RouterConfig | None = None, seed: int = 0) -> None:
        super().__init__()
        self.config = config or RouterConfig()
        self.encode_endpoints = EncodeEndpoints(self.config)
        self.encode_classes = EncodeClasses(self.config)
        self.score = Score(self.config)
        generator = torch.Generator().manual_seed(seed)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight, generator=generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        # An untrained router is the table: no correction, no preference but for what is fast (w
        # begins at zero, too).
        nn.init.zeros_(self.score.decide.weight)
        with torch.no_grad():
            self.score.decide.bias.copy_(torch.tensor([0.0, self.config.log_sigma_start]))

    def forward(
        self,
        endpoint: Tensor,
        request_class: Tensor,
        pair: Tensor,
        table_cost_s: Tensor,
        rtt_s: Tensor,
        mask: Tensor,
    ) -> Routed:
        key, value = self.encode_endpoints(endpoint)
        query = self.encode_classes(request_class)
        return self.score.routed(query, key, value, pair, table_cost_s, rtt_s, mask)
