"""`python -m attnroute.train COMMAND`: models without a trainer process.

pretrain DIRECTORY    plays random worlds, trains on them, writes a bundle that knows no service yet
recorded LOG          trains on a log of scrapes, as a trainer does, and says what was gained
untrained DIRECTORY   writes a bundle whose answers are those of the table
"""

from __future__ import annotations

import argparse
import json
import logging
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from attnroute.bundle import Bundle, read, write
from attnroute.errors import AttnrouteError
from attnroute.features.schema import schema_hash
from attnroute.model.export import bundle_of, with_int8
from attnroute.model.network import Router
from attnroute.train.card import card
from attnroute.train.dataset import ScrapeLog
from attnroute.train.plots import draw_cycles, draw_losses
from attnroute.train.pretrain import (
    PretrainConfig,
    World,
    gain_over,
    load_worlds,
    pretrain,
)
from attnroute.train.replay import samples
from attnroute.train.trainer import Training, TrainingConfig

__all__ = ["main"]

logger = logging.getLogger(__name__)

BAR = 30


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; returns the exit code."""
    given = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    torch.set_num_threads(1)
    command: Callable[[argparse.Namespace], None] = given.run
    try:
        command(given)
    except AttnrouteError as error:
        logger.error("%s", error)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    defaults = PretrainConfig()
    parser = argparse.ArgumentParser(prog="python -m attnroute.train", description=__doc__)
    commands = parser.add_subparsers(required=True)

    made = commands.add_parser("pretrain", help="a model trained on random worlds")
    made.add_argument("directory", type=Path, help="where bundles stand, as `models`")
    made.add_argument("--name", default="default")
    made.add_argument("--version", default="1.0.0")
    made.add_argument("--worlds", type=int, default=defaults.worlds)
    made.add_argument("--seconds", type=float, default=defaults.duration_s, help="of each world")
    made.add_argument("--steps", type=int, default=defaults.steps)
    made.add_argument("--heads", type=int, default=defaults.heads)
    made.add_argument("--seed", type=int, default=defaults.seed)
    made.add_argument("--cache", type=Path, default=Path(".cache/worlds"), help="played worlds")
    made.add_argument("--plot", type=Path, help="a PNG of the losses")
    made.add_argument("--graphs", type=Path, help="a bundle whose graphs take the new numbers")
    made.set_defaults(run=_pretrain)

    recorded = commands.add_parser("recorded", help="trains on a log of scrapes")
    recorded.add_argument("log", type=Path)
    recorded.add_argument("--service", help="which; needed where the log has several")
    recorded.add_argument("--state", type=Path, help="goes on from it, and writes it each scrape")
    recorded.add_argument("--plot", type=Path, help="a PNG of losses, gate and usage")
    recorded.add_argument("--steps", type=int, default=TrainingConfig().steps)
    recorded.add_argument("--seed", type=int, default=0)
    recorded.set_defaults(run=_recorded)

    untrained = commands.add_parser("untrained", help="a bundle whose answers are the table's")
    untrained.add_argument("directory", type=Path)
    untrained.add_argument("--name", default="untrained")
    untrained.add_argument("--version", default="1.0.0")
    untrained.set_defaults(run=_untrained)
    return parser


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _bar(what: str) -> Callable[..., None]:
    """A line of progress on stderr: told how many are done, of how many, and a figure."""
    began_s = time.monotonic()
    terminal = sys.stderr.isatty()

    def show(done: int, of: int, figure: float | None = None) -> None:
        if not terminal and done % max(1, of // 10) and done != of:
            return
        full = BAR * done // max(1, of)
        left_s = (time.monotonic() - began_s) / done * (of - done)
        text = f"{what} [{'#' * full}{'.' * (BAR - full)}] {done}/{of}, {left_s:4.0f} s left"
        if figure is not None:
            text += f", loss {figure:.4f}"
        sys.stderr.write(
            ("\r" if terminal else "") + text + ("" if terminal and done < of else "\n")
        )
        sys.stderr.flush()

    return show


def _pretrain(given: argparse.Namespace) -> None:
    config = PretrainConfig(
        seed=given.seed,
        worlds=given.worlds,
        duration_s=given.seconds,
        steps=given.steps,
        heads=given.heads,
    )
    worlds = load_worlds(given.cache, config, _bar("worlds"))
    router, losses = pretrain(worlds, config, _bar("steps"))
    bundle = _bundle(given, config, router, worlds)
    where = write(given.directory, bundle)
    if given.plot is not None:
        draw_losses(losses, given.plot)
    size = sum(path.stat().st_size for path in where.iterdir())
    _say(f"{where}: {size} bytes; {json.dumps(dict(bundle.manifest.metrics))}")


def _bundle(
    given: argparse.Namespace, config: PretrainConfig, router: Router, worlds: list[World]
) -> Bundle:
    gains = gain_over(router, worlds)
    held = [gain for seed, gain in gains.items() if seed % config.held_out == config.held_out - 1]
    seen = [gain for seed, gain in gains.items() if seed % config.held_out != config.held_out - 1]
    metrics = {
        "gain_held_out": float(np.mean(held)) if held else 0.0,
        "gain_held_out_min": float(np.min(held)) if held else 0.0,
        "gain_trained": float(np.mean(seen)),
    }
    command = (
        f"python -m attnroute.train pretrain {given.directory} --name {given.name} "
        f"--version {given.version} --worlds {given.worlds} --seconds {given.seconds:g} "
        f"--steps {given.steps} --heads {given.heads} --seed {given.seed}"
    )
    graphs = None
    if given.graphs is not None:
        graphs = read(given.graphs, expected_schema=schema_hash()).graphs
    probe = next(one for world in reversed(worlds) for one in world.samples)
    bundle = bundle_of(
        router,
        name=given.name,
        version=given.version,
        trained={"command": command, **asdict(config)},
        metrics=metrics,
        card="",
        graphs=graphs,
        probe_inputs=probe.matrices.tensors(),
    )
    whole, _ = with_int8(bundle)
    text = card(whole.manifest, len(held), len(seen))
    return Bundle(whole.manifest, whole.graphs, whole.probe, text)


def _recorded(given: argparse.Namespace) -> None:
    with ScrapeLog(given.log) as log:
        scrapes = [one for one in log.read() if given.service in (None, one.service)]
    services = {one.service for one in scrapes}
    if len(services) != 1:
        raise AttnrouteError(
            f"{given.log}: found scrapes of {sorted(services) or 'no service'}; name one with "
            "`--service`"
        )
    config = TrainingConfig(seed=given.seed, steps=given.steps)
    known = given.state is not None and given.state.exists()
    training = Training.load(given.state, config) if known else Training(Router(), config)
    data = list(samples(scrapes))
    begun = min(training.cycles, len(data))
    for sample in data[:begun][-config.replay :]:
        training.remember(sample)
    show, cycles, began_s = _bar("scrapes"), [], time.process_time()
    for sample in data[begun:]:
        cycles.append(training.cycle(sample))
        show(len(cycles), len(data) - begun, cycles[-1].loss)
        if given.state is not None:
            training.save(given.state)
    spent_s = time.process_time() - began_s
    if given.plot is not None:
        draw_cycles(cycles, given.plot)
    gains = [one.gain for one in cycles if np.isfinite(one.gain)]
    _say(
        json.dumps(
            {
                "scrapes": len(cycles),
                "gain": float(np.mean(gains)) if gains else None,
                "gate": training.gate.weight,
                "rebalancings": training.rebalancings,
                "seconds_a_cycle": spent_s / max(1, len(cycles)),
                "rss_bytes_max": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            }
        )
    )


def _untrained(given: argparse.Namespace) -> None:
    bundle = bundle_of(
        Router(),
        name=given.name,
        version=given.version,
        trained={"command": "python -m attnroute.train untrained"},
        metrics={},
        card="# Untrained\n\nIts last layer is zero, so its S is the table's.\n",
    )
    _say(str(write(given.directory, bundle)))


if __name__ == "__main__":
    sys.exit(main())
