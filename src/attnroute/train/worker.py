"""The training process: `python -m attnroute.train.worker FD`, started by the trainer.

A process of its own, since a cycle of training holds an interpreter for a second, and the exchange
between sidecars ticks in the trainer's. It ends when the trainer does, however that ends.
"""

from __future__ import annotations

import logging
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

from attnroute import logs
from attnroute.bundle import Bundle, read
from attnroute.errors import AttnrouteError, BundleError
from attnroute.features.schema import schema_hash
from attnroute.logs import fields
from attnroute.train.messages import (
    Began,
    Candidate,
    Look,
    Refused,
    Settings,
    Trained,
    Wanted,
)

if TYPE_CHECKING:
    from attnroute.train.online import OnlineConfig, OnlineTraining

__all__ = ["main"]

logger = logging.getLogger(__name__)


def main(descriptor: int) -> int:
    """Trains until the other side is gone; returns the exit code."""
    with Connection(descriptor) as connection:
        try:
            settings = connection.recv()
        except EOFError:
            return 0
        assert isinstance(settings, Settings), "the first message"
        logs.configure(settings.log_format)
        try:
            return _serve(connection, settings)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return 0
        except AttnrouteError as error:
            logger.error("%s", error)
            return error.exit_code


def _serve(connection: Connection, settings: Settings) -> int:
    import torch

    from attnroute.train.online import OnlineTraining

    torch.set_num_threads(settings.threads)
    training = OnlineTraining(settings.directory, _config(settings), _start(settings))
    connection.send(Began(training.training.cycles))
    while True:
        message = connection.recv()
        if isinstance(message, Look):
            for trained in _trained(training, message):
                connection.send(trained)
        elif isinstance(message, Wanted):
            bundle, reason = training.candidate(settings.name, time.time())
            connection.send(Refused(reason) if bundle is None else Candidate(bundle))


def _config(settings: Settings) -> OnlineConfig:
    from attnroute.train.online import OnlineConfig
    from attnroute.train.trainer import TrainingConfig

    training = TrainingConfig(seed=settings.seed, steps=settings.steps, replay=settings.replay)
    return OnlineConfig(training=training, bytes_max=settings.dataset_bytes)


def _start(settings: Settings) -> Bundle | None:
    """The bundle to begin with."""
    if settings.start is None:
        return None
    try:
        return read(settings.start, expected_schema=schema_hash())
    except BundleError as error:
        logger.warning(
            "training begins without a bundle to start from", extra=fields(problem=str(error))
        )
        return None


def _trained(training: OnlineTraining, look: Look) -> list[Trained]:
    """What a look brought, one entry a service with calls."""
    began_s = time.perf_counter()
    try:
        cycles = training.take(look.increases, look.at_s)
    except (AttnrouteError, OSError) as error:
        # A full disk, mostly: what serves goes on, and the next look may fare better.
        logger.warning("a look was not trained on", extra=fields(problem=str(error)))
        return []
    seconds = (time.perf_counter() - began_s) / max(1, len(cycles))
    limits = training.config.training.health
    return [
        Trained(
            cycle=cycle.number,
            seconds=seconds,
            loss=cycle.loss,
            gain=cycle.gain,
            gate=cycle.gate,
            collapsed=cycle.health.collapsed(limits),
            rebalanced=cycle.rebalanced,
            rss_bytes=_rss_bytes(),
        )
        for cycle in cycles
    ]


def _rss_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
