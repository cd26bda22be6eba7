"""Training on several processes, started by torchrun, each with a part of the services.

    torchrun --standalone --nproc-per-node 2 -m attnroute.train.distributed LOG... --out FILE

`ddp`: every step's samples are shared out, gradients are averaged, so that the processes together
do what one would; a communication hook may make them smaller on the way (`fp16`, `powersgd`).
`local`: each process steps by itself and their numbers are averaged every so many steps, which
sends less and trains a little otherwise. All of it is torch.distributed's; nothing of the loss, the
network or the optimiser is another than in one process. Sources: Li et al. 2020 (DDP), Vogels et
al. 2019 (PowerSGD), Lin et al. 2020 (local SGD).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel

from attnroute.model.network import Router, RouterConfig
from attnroute.train.dataset import ScrapeLog
from attnroute.train.replay import Sample, samples
from attnroute.train.trainer import Training, TrainingConfig

__all__ = ["HOOKS", "DistributedConfig", "main", "train"]

HOOKS = ("none", "fp16", "powersgd")


@dataclass(frozen=True)
class DistributedConfig:
    """How the processes train together."""

    steps: int = 40
    batch: int = 4
    """Samples of a step, over all processes: a multiple of their number."""
    hook: str = "none"
    """Of HOOKS."""
    local_steps: int = 1
    """Above 1: local steps between two averages, instead of averaged gradients."""
    seed: int = 0


@dataclass(frozen=True)
class Trained:
    """What came of it, the same in every process but for the time."""

    losses: tuple[float, ...]
    """Of each step, mean over its samples."""
    sent_bytes: int
    """What one process gave to all-reduce."""
    seconds: float


class _Loss(nn.Module):
    """The loss as a module: what DistributedDataParallel wraps."""

    def __init__(self, training: Training) -> None:
        super().__init__()
        self.router = training.router
        self._training = training

    def forward(self, batch: Sequence[Sample]) -> Tensor:
        found = [self._training.loss(sample) for sample in batch]
        return torch.stack(found).mean()


class _Sent:
    """A communication hook that counts what another one sends."""

    def __init__(self, hook: str, group: dist.ProcessGroup) -> None:
        self.bytes = 0
        self._group = group
        self._hook = hook
        # From the second step on: its first ones build the buckets anew.
        self._power = powerSGD_hook.PowerSGDState(
            group, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=1.5
        )

    def __call__(self, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        size = bucket.buffer().numel()
        if self._hook == "powersgd":
            before = self._power.total_numel_after_compression
            whole = self._power.iter < self._power.start_powerSGD_iter
            future = powerSGD_hook.powerSGD_hook(self._power, bucket)
            sent = size if whole else self._power.total_numel_after_compression - before
            self.bytes += 4 * sent
            return future
        if self._hook == "fp16":
            self.bytes += 2 * size
            return default_hooks.fp16_compress_hook(self._group, bucket)
        self.bytes += 4 * size
        return default_hooks.allreduce_hook(self._group, bucket)


def drawn(
    services: Sequence[Sequence[Sample]], config: DistributedConfig, step: int
) -> list[Sample]:
    """The samples of a step, the same in every process."""
    rng = np.random.default_rng((config.seed, step))
    chosen = [services[int(place)] for place in rng.integers(0, len(services), config.batch)]
    return [service[int(rng.integers(len(service)))] for service in chosen]


def train(
    services: Sequence[Sequence[Sample]], config: DistributedConfig
) -> tuple[Router, Trained]:
    """Trains over the process group if there is one, else alone. services: samples of each."""
    together = dist.is_initialized()
    rank, world = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)
    if config.batch % world:
        raise ValueError(f"a batch of {config.batch} cannot be shared out to {world} processes")
    training = Training(Router(RouterConfig(), config.seed), TrainingConfig(seed=config.seed))
    module: nn.Module = _Loss(training)
    averager, sent = None, None
    if together and config.local_steps > 1:
        averager = PeriodicModelAverager(period=config.local_steps)
    elif together:
        assert dist.group.WORLD is not None, "the group was made"
        wrapped = DistributedDataParallel(module)
        sent = _Sent(config.hook, dist.group.WORLD)
        # The check of a hook's signature wants none or resolved annotations.
        wrapped.register_comm_hook(sent, lambda hook, bucket: hook(bucket))
        module = wrapped
    size = sum(value.numel() for value in training.router.parameters())
    found, bytes_sent, began = [], 0, time.perf_counter()
    for step in range(config.steps):
        batch = drawn(services, config, step)[rank::world]
        training.optimiser.zero_grad()
        loss = module(batch)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(training.router.parameters(), training.config.clip)
        training.optimiser.step()
        if averager is not None:
            averager.average_parameters(training.router.parameters())
            bytes_sent += 4 * size * (step % config.local_steps == 0)
        found.append(_mean(loss.detach(), world))
    seconds = time.perf_counter() - began
    if sent is not None:
        bytes_sent = sent.bytes
    return training.router, Trained(tuple(found), bytes_sent, seconds)


def _mean(loss: Tensor, world: int) -> float:
    """Over the processes: for the record, not for training."""
    if world > 1:
        loss = loss.clone()
        dist.all_reduce(loss)
    return loss.item() / world


def main(arguments: list[str] | None = None) -> int:
    """One process of torchrun, or the only one."""
    parser = argparse.ArgumentParser(prog="attnroute.train.distributed")
    parser.add_argument("logs", type=Path, nargs="+", help="logs of scrapes, a service each")
    parser.add_argument("--out", type=Path, required=True, help="JSON of losses, bytes, seconds")
    parser.add_argument("--steps", type=int, default=DistributedConfig().steps)
    parser.add_argument("--batch", type=int, default=DistributedConfig().batch)
    parser.add_argument("--hook", choices=HOOKS, default="none")
    parser.add_argument("--local-steps", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    services = []
    for place in given.logs:
        with ScrapeLog(place) as log:
            services.append([one for one in samples(log.read()) if one.calls.sum() > 0])
    config = DistributedConfig(given.steps, given.batch, given.hook, given.local_steps, given.seed)
    _, trained = train([one for one in services if one], config)
    if not dist.is_initialized() or dist.get_rank() == 0:
        given.out.write_text(json.dumps(vars(trained)), encoding="utf-8")
    if dist.is_initialized():
        dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
