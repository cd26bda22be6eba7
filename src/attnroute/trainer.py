"""The trainer process: the fleet exchange, the data to train on, and the registry of bundles.

One asyncio loop. The exchange ticks each second; the source is looked at each interval and what
went up since is kept, so many intervals of it. A source that fails costs nothing but its data: the
last good intervals stay, and a metric says that they are stale. No sidecar waits for this process.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import signal
import socket
import ssl
import uuid
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from attnroute import __version__, logs
from attnroute.admin.http import HttpServer, Readiness, make_app
from attnroute.admin.trainer_metrics import TrainerMetrics
from attnroute.bundle import BundleLimits
from attnroute.bundle.signature import load_signing_key
from attnroute.clock import Clock, SystemClock
from attnroute.errors import (
    AttnrouteError,
    BundleError,
    InvalidFileError,
    RegistryError,
    StartError,
)
from attnroute.fleet.messages import ModelReport
from attnroute.fleet.server import FleetLimits, FleetServer, FleetSettings
from attnroute.logs import fields
from attnroute.parameters import split_parameters, table_parameters
from attnroute.policy.trainer import (
    LoadedTrainer,
    PrometheusServer,
    RegistryKeys,
    TrainingKeys,
    load_trainer,
)
from attnroute.process import StopSignals, announce_ports, keep_running
from attnroute.publishing import Publisher, PublishRules
from attnroute.registry.server import RegistryServer, ServerLimits
from attnroute.registry.store import Store
from attnroute.telemetry.fetch import Credentials, Fetcher, FetchLimits, TlsFiles
from attnroute.telemetry.increases import IncreaseBook, Increases, LabelRules, Page
from attnroute.telemetry.prometheus import PrometheusSource
from attnroute.telemetry.scrape import DirectSource
from attnroute.train.messages import Candidate, Look, Refused, Settings
from attnroute.train.process import TrainingProcess

__all__ = ["Options", "Trainer", "run"]

logger = logging.getLogger(__name__)

EXIT_OK = 0
EXIT_INTERRUPTED = 130
STALE_INTERVALS = 3
JUDGE_S = 2.0
"""How often what gates say is looked at, and the leader's place kept."""


@dataclass(frozen=True)
class Options:
    """How the process was called."""

    config: Path
    ports_file: Path | None = None
    log_format: str = "json"


class PageSource(Protocol):
    """Where pages of sidecars come from."""

    name: str

    async def pages(self) -> tuple[list[Page], Mapping[str, int]]: ...
    async def close(self) -> None: ...


def run(options: Options) -> int:
    """Runs a trainer until it is told to stop; returns the exit code."""
    logs.configure(options.log_format)
    return asyncio.run(_main(options))


async def _main(options: Options) -> int:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(
        ThreadPoolExecutor(max_workers=4, thread_name_prefix="attnroute-work")
    )
    stops = StopSignals(loop)
    try:
        loaded = await asyncio.to_thread(load_trainer, options.config)
        logger.info("trainer starts", extra=fields(version=__version__, file=str(loaded.path)))
        trainer = Trainer(
            loaded,
            SystemClock(),
            ports_file=options.ports_file,
            log_format=options.log_format,
        )
        try:
            await stops.unless_stopped(trainer.start())
            number = await stops.first()
        finally:
            await trainer.close()
    except InvalidFileError as error:
        for problem in error.problems:
            logger.error("%s", problem)
        return error.exit_code
    except AttnrouteError as error:
        logger.error("%s", error)
        return error.exit_code
    logger.info("trainer stopped", extra=fields(signal=number.name))
    return EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_OK


class Trainer:
    """Everything of one process; made and used on one event loop."""

    def __init__(
        self,
        loaded: LoadedTrainer,
        clock: Clock,
        *,
        ports_file: Path | None = None,
        log_format: str = "json",
    ) -> None:
        self._loaded = loaded
        self._clock = clock
        self._ports_file = ports_file
        self._ready = False
        self._closing = False
        self._metrics = TrainerMetrics(__version__)
        exchange = loaded.file.fleet
        self._models = None
        if loaded.file.registry is not None:
            self._models = _Models(loaded, loaded.file.registry, clock, self._metrics, log_format)
        self._fleet = FleetServer(
            trainer=os.urandom(16),
            clock=clock,
            limits=FleetLimits(
                streams=exchange.max_streams,
                services=exchange.max_services,
                classes=exchange.max_classes,
                endpoints=exchange.max_endpoints,
            ),
            events=self._metrics,
            settings=FleetSettings(
                table_parameters(exchange.table), split_parameters(exchange.split)
            ),
            services=() if self._models is None else (self._models.server.handler,),
        )
        self._http = HttpServer(make_app(self, __version__, process="trainer"))
        self._source, self._interval_s = _source(loaded, clock, self._fleet.pages)
        self._book = IncreaseBook()
        self._dropped: Counter[str] = Counter()
        self._failing: set[str] = set()
        self._good_s = clock.now_s()
        self.kept: deque[Increases] = deque(maxlen=loaded.file.keep)
        """The last intervals, oldest first."""
        self._tasks: list[asyncio.Task[None]] = []
        self._metrics.watch_staleness(self._stale)

    def readiness(self) -> Readiness:
        """attnroute.admin.http.HttpView."""
        waiting = () if self._ready else ("start",)
        return Readiness(
            ready=self._ready and not self._closing, draining=self._closing, waiting_for=waiting
        )

    def exposition(self) -> bytes:
        """attnroute.admin.http.HttpView."""
        return self._metrics.render()

    async def start(self) -> None:
        """Brings everything up; returns when it serves. Raises StartError."""
        if self._ports_file is not None:
            self._ports_file.unlink(missing_ok=True)
        file = self._loaded.file
        bound = {
            "fleet": self._fleet.bind(
                file.fleet.address, self._loaded.position("fleet", "address")
            ),
            "http": self._http.bind(file.http, self._loaded.position("http")),
        }
        if self._models is not None:
            await self._models.start(self._fleet.reports)
        await self._fleet.start()
        await self._http.start()
        self._tasks.append(asyncio.create_task(keep_running(self._look_forever)))
        self._ready = True
        if self._ports_file is not None:
            await announce_ports(self._ports_file, bound)
        logger.info("ready", extra=fields(**bound))

    async def look(self) -> Increases:
        """Looks at the source once; what went up since the last look is also kept."""
        pages, failures = await self._source.pages()
        now_s = self._clock.now_s()
        self._book.take(pages, now_s)
        increases = self._book.gather()
        if not pages and not failures:
            # Nobody to look at: there is nothing to miss either.
            self._good_s = now_s
            return increases
        result = "failed" if not increases.pages else "partial" if failures else "good"
        self._metrics.source_looked(self._source.name, result, failures)
        if set(failures) != self._failing:
            # Once when it begins and once when it ends, not every few seconds in between.
            self._failing = set(failures)
            extra = fields(source=self._source.name, failures=dict(failures))
            if failures:
                logger.warning("the source of training data fails", extra=extra)
            else:
                logger.info("the source of training data is whole again", extra=extra)
        for reason, count in self._book.dropped.items():
            if count > self._dropped[reason]:
                self._metrics.samples_dropped(reason, count - self._dropped[reason])
        self._dropped = self._book.dropped.copy()
        self._metrics.source_state(calls=increases.calls, sidecars=self._book.targets)
        if increases.pages:
            # No data is not zero: an interval without pages is no interval.
            self._good_s = now_s
            self.kept.append(increases)
            if self._models is not None:
                self._models.feed(self._clock.wall_s(), increases)
        return increases

    async def close(self) -> None:
        """Stops everything that was started."""
        self._closing = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._models is not None:
            await self._models.stop()
        await self._fleet.stop()
        await self._http.stop()
        await self._source.close()

    def _stale(self) -> bool:
        return self._clock.now_s() - self._good_s > STALE_INTERVALS * self._interval_s

    async def _look_forever(self) -> None:
        next_s = self._clock.now_s()
        while True:
            await self.look()
            next_s = max(next_s + self._interval_s, self._clock.now_s())
            await asyncio.sleep(max(0.0, next_s - self._clock.now_s()))


class _Models:
    """Bundles: kept, served, published, and moved by what gates say."""

    def __init__(
        self,
        loaded: LoadedTrainer,
        keys: RegistryKeys,
        clock: Clock,
        metrics: TrainerMetrics,
        log_format: str,
    ) -> None:
        self._log_format = log_format
        self._loaded = loaded
        self._keys = keys
        directory = loaded.resolve(keys.directory)
        assert directory is not None, "the key is required"
        self.store = Store(directory, limits=BundleLimits(keys.max_bytes))
        self.server = RegistryServer(
            self.store,
            limits=ServerLimits(keys.max_streams),
            events=metrics,
            allow_changes=keys.allow_changes,
        )
        self._clock = clock
        self._metrics = metrics
        self._reports: Callable[[], Sequence[ModelReport]] = tuple
        self._publisher: Publisher | None = None
        self._training: TrainingProcess | None = None
        self._candidates: asyncio.Queue[Candidate | Refused] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, reports: Callable[[], Sequence[ModelReport]]) -> None:
        """reports: what the gates of the fleet say now. Raises StartError."""
        self._reports = reports
        try:
            self._publisher = await asyncio.to_thread(self._make_publisher)
        except (BundleError, RegistryError) as error:
            place = self._loaded.position("registry")
            raise StartError(f"{place}: {error}") from error
        self.server.start()
        self._tasks.append(asyncio.create_task(keep_running(self._look_forever)))
        if self._loaded.file.training is not None:
            self._training = self._make_training(self._loaded.file.training)
            self._training.start()
            self._tasks.append(asyncio.create_task(keep_running(self._publish_forever)))

    def feed(self, at_s: float, increases: Increases) -> None:
        """Gives the training process what a look brought. at_s: Unix time."""
        if self._training is not None:
            self._training.feed(Look(at_s, increases))

    async def stop(self) -> None:
        """Ends streams, and leaves publishing to another trainer."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._training is not None:
            await self._training.stop()
        if self._publisher is not None:
            await asyncio.to_thread(self._publisher.close)
        await self.server.stop()

    def _make_publisher(self) -> Publisher:
        keys, rules = self._keys, self._loaded.file.publishing
        key_file = self._loaded.resolve(keys.signing_key)
        publisher = Publisher(
            self.store,
            keys.name,
            PublishRules(
                interval_s=rules.interval.total_seconds(),
                keep=keys.keep,
                first=rules.channel,
                windows=rules.windows,
                reports=rules.reports,
            ),
            self._clock,
            self._metrics,
            holder=uuid.uuid4().hex,
            who=f"{socket.gethostname()}:{os.getpid()}",
            key=None if key_file is None else load_signing_key(key_file),
        )
        publisher.prepare()
        return publisher

    async def _look_forever(self) -> None:
        while True:
            assert self._publisher is not None, "it was made before this began"
            await asyncio.to_thread(self._publisher.renew)
            await asyncio.to_thread(self._publisher.judge, self._reports())
            training = self._training
            # Exporting costs: only what could be published now is asked for.
            if training is not None and not await asyncio.to_thread(self._publisher.refusal):
                training.want()
            await asyncio.sleep(JUDGE_S)

    async def _publish_forever(self) -> None:
        while True:
            found = await self._candidates.get()
            assert self._publisher is not None, "it was made before this began"
            self._metrics.candidate_judged(good=isinstance(found, Candidate))
            if isinstance(found, Refused):
                logger.debug("no bundle to publish", extra=fields(reason=found.reason))
                continue
            await asyncio.to_thread(self._publisher.publish, found.bundle)

    def _make_training(self, keys: TrainingKeys) -> TrainingProcess:
        if importlib.util.find_spec("torch") is None:
            raise StartError(
                f"{self._loaded.position('training')}: training needs torch, which is not "
                "installed; install `attnroute[train]`, or take `training` out of the file"
            )
        directory = self._loaded.resolve(keys.directory)
        assert directory is not None, "it has a default"
        settings = Settings(
            directory=directory,
            name=self._keys.name,
            seed=keys.seed,
            steps=keys.steps,
            replay=keys.replay,
            threads=keys.threads,
            dataset_bytes=keys.max_dataset,
            start=self._loaded.resolve(keys.start),
            log_format=self._log_format,
        )
        return TrainingProcess(
            settings,
            self._metrics,
            memory_bytes=keys.max_memory,
            candidate=self._candidates.put_nowait,
        )


def _source(
    loaded: LoadedTrainer, clock: Clock, pages: Callable[[], Sequence[str]]
) -> tuple[PageSource, float]:
    """The source that the file names, and its interval. pages: of the sidecars that take part."""
    source = loaded.file.source
    if source.prometheus is not None:
        server = source.prometheus
        return _prometheus(server, loaded, clock), server.interval.total_seconds()
    scrape = source.scrape
    assert scrape is not None, "a source has one key"
    # A page that fails is due again in a moment anyway.
    limits = FetchLimits(scrape.timeout.total_seconds(), scrape.max_page_bytes, retries=0)
    addresses = (lambda: scrape.sidecars) if scrape.sidecars else pages
    return (
        DirectSource(addresses, Fetcher(limits), clock.now_s),
        scrape.interval.total_seconds(),
    )


def _prometheus(server: PrometheusServer, loaded: LoadedTrainer, clock: Clock) -> PrometheusSource:
    basic = server.basic_auth
    credentials = Credentials(
        bearer_token_file=loaded.resolve(server.bearer_token_file),
        username="" if basic is None else basic.username,
        password_file=None if basic is None else loaded.resolve(basic.password_file),
    )
    limits = FetchLimits(
        server.timeout.total_seconds(), server.max_answer_bytes, retries=server.retries
    )
    tls = None
    if server.tls is not None:
        tls = TlsFiles(
            loaded.resolve(server.tls.ca_file),
            loaded.resolve(server.tls.cert_file),
            loaded.resolve(server.tls.key_file),
        )
    try:
        fetcher = Fetcher(limits, credentials=credentials, tls=tls)
    except (OSError, ssl.SSLError) as error:
        place = loaded.position("source", "prometheus", "tls")
        raise StartError(
            f"{place}: the files of `tls` cannot be used: {error}; expected PEM files"
        ) from error
    return PrometheusSource(
        server.url,
        fetcher,
        clock.now_s,
        interval_s=server.interval.total_seconds(),
        selector=server.selector,
        rules=LabelRules(frozenset(server.replica_labels), dict(server.labels)),
    )
