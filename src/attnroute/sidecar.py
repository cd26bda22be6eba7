"""The sidecar process: builds everything, owns start, reload, drain and stop.

The data plane forwards on threads of its own; this module is the control side, one asyncio loop on
the main thread. Order of a start: policy, endpoint sources, data plane, first endpoint sets,
listeners, admin, ports file, ready. Order of a stop: not ready, drain, sources, admin, data plane;
metrics are served until the drain is over. A reload is all or nothing: until the data plane took
the new policy, nothing of the old one is touched.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import signal
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

from attnroute import __version__, logs
from attnroute.admin.http import HttpServer, Readiness, make_app
from attnroute.admin.learning_metrics import LearningMetrics
from attnroute.admin.metrics import ControlMetrics, join
from attnroute.admin.model_metrics import ModelMetrics
from attnroute.admin.server import AdminServer
from attnroute.admin.service import AdminService, ConfigInfo, ServiceInfo
from attnroute.clock import Clock, SystemClock
from attnroute.dataplane import BindError, ConfigError, DataPlane, DataPlaneError
from attnroute.discovery.overrides import Overrides
from attnroute.discovery.own import OwnAddresses
from attnroute.discovery.sources import Sources
from attnroute.errors import AttnrouteError, InvalidFileError, PolicyError, Problem, StartError
from attnroute.fleet.client import Identity
from attnroute.learning import Learning
from attnroute.logs import fields
from attnroute.policy.compile import compile_policy
from attnroute.policy.load import (
    POLICY_LIMITS,
    LoadedPolicy,
    effective_yaml,
    load_policy,
)
from attnroute.policy.schema import Service
from attnroute.policy.watch import FileWatcher, watch_policy
from attnroute.process import StopSignals, allow_open_files, announce_ports, keep_running
from attnroute.resolvers import Resolvers
from attnroute.scorers import Prepared, Scorers
from attnroute.scoring.loop import ScorePlane
from attnroute.telemetry.orca import OrcaPlan, OutOfBandReports
from attnroute.telemetry.picks import PickHistory
from attnroute.telemetry.snapshot import SAMPLE_INTERVAL_S, Telemetry
from attnroute.telemetry.traces import Collector, Exporter, Traces

__all__ = ["Options", "run"]

logger = logging.getLogger(__name__)

EXIT_OK = 0
EXIT_INTERRUPTED = 130

FIRST_ANSWERS_TIMEOUT_S = 5.0
"""How long the listeners wait for the sources' first answers; what is missing then is waited for
in `/readyz`, so that a slow source of one service does not keep the others from serving."""

# Stands for a file that could not be read; no content has this hash.
_NO_CONTENT = "0" * 64

MILLISECOND = timedelta(milliseconds=1)
READY_POLL_S = 1.0
# What a running process cannot change: sockets of admin, and the number of data threads.
_FIXED = (
    ("admin", "grpc"),
    ("admin", "socket"),
    ("admin", "http"),
    ("data_plane", "threads"),
    ("data_plane", "busy_poll"),
)


@dataclass(frozen=True)
class Options:
    """How the process was called."""

    config: Path
    ports_file: Path | None = None
    log_format: str = "json"


class Plane(ScorePlane, Protocol):
    """What the sidecar uses of the data plane (attnroute._dataplane.DataPlane)."""

    def start(self) -> dict[str, str]: ...
    def apply_policy(self, config: bytes) -> int: ...
    def bound(self) -> dict[str, str]: ...
    def apply_endpoints(self, service: str, endpoints: bytes) -> int: ...
    def endpoints(self, service: str) -> tuple[int, bytes]: ...
    def snapshot(self, service: str) -> tuple[int, bytes]: ...
    def reported(self, service: str, endpoint: str, report: bytes) -> bool: ...
    def metrics(self) -> bytes: ...
    def take_spans(self, max_rows: int) -> bytes: ...
    def recorded_picks(self, service: str, after: int, count: int) -> tuple[bytes, int, int]: ...
    def explain(self, service: str, question: bytes) -> bytes: ...
    def scores_in_force(self, service: str) -> bytes: ...
    def reopen_logs(self) -> None: ...
    def pending(self) -> list[str]: ...
    def drain(self, linger_ms: int, limit_ms: int) -> bool: ...
    def stop(self) -> None: ...


def run(options: Options) -> int:
    """Runs a sidecar until it is told to stop; returns the exit code."""
    logs.configure(options.log_format)
    return asyncio.run(_main(options))


async def _main(options: Options) -> int:
    loop = asyncio.get_running_loop()
    workers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="attnroute-work")
    loop.set_default_executor(workers)
    stops = StopSignals(loop)
    try:
        loaded = await asyncio.to_thread(load_policy, options.config)
        logger.info(
            "sidecar starts",
            extra=fields(version=__version__, policy=str(loaded.path), sha256=loaded.sha256),
        )
        listeners = len(loaded.policy.listeners)
        allow_open_files(listeners * loaded.policy.limits.max_connections)
        plane = _make_plane(loaded, options.log_format)
        sidecar = Sidecar(options, loaded, plane, SystemClock())
        try:
            await stops.unless_stopped(sidecar.start())
            number = await stops.first()
            await sidecar.drain(number, stops)
        finally:
            await sidecar.close()
    except InvalidFileError as error:
        for problem in error.problems:
            logger.error("%s", problem)
        return error.exit_code
    except AttnrouteError as error:
        logger.error("%s", error)
        return error.exit_code
    logger.info("sidecar stopped", extra=fields(signal=number.name))
    return EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_OK


def _make_plane(loaded: LoadedPolicy, log_format: str) -> DataPlane:
    seed = int.from_bytes(os.urandom(8), "little")
    try:
        return DataPlane(compile_policy(loaded), seed, log_format)
    except ConfigError as error:
        raise _refused(loaded, error) from error


class Sidecar:
    """Everything of one process; made and used on one event loop."""

    def __init__(self, options: Options, loaded: LoadedPolicy, plane: Plane, clock: Clock) -> None:
        self._options = options
        self._loaded = loaded
        self._plane = plane
        self._clock = clock
        self._generation = 0
        self._applied_at_s = 0.0
        self._rejected = ""
        self._ready = False
        self._draining = False
        self._bound = False
        self._admin_bound: dict[str, str | None] = {}
        self._state_changed = asyncio.Event()
        self._reload_wanted = asyncio.Event()
        self._new_content: bytes | None = None
        # Hash of the content that was looked at last, in force or not.
        self._considered = loaded.sha256
        self._watcher = FileWatcher()
        self._tasks: list[asyncio.Task[None]] = []
        self._watching: asyncio.Task[None] | None = None
        self._metrics = ControlMetrics(__version__)
        self._telemetry = Telemetry(plane, clock)
        self._own = OwnAddresses()
        self._resolvers = Resolvers(self._watcher.follow, self._own, clock)
        self._overrides = Overrides(plane, clock)
        self._sources = Sources(
            self._overrides, self._metrics, self._state_changed.set, own=self._own
        )
        self._picks = PickHistory(plane)
        self._reports = OutOfBandReports(plane, self._metrics)
        self._traces = Traces(plane, self._metrics)
        self._learning_metrics = LearningMetrics()
        self._model_metrics = ModelMetrics()
        self._scorers = Scorers(clock, self._model_metrics)
        self._model_metrics.watch(self._scorers.state)
        self._learning = Learning(
            plane,
            loaded,
            clock,
            self._learning_metrics,
            Identity(os.urandom(16), __version__),
            self._metrics.tick_duration.observe,
            self._scorers,
            self._scorers.reports,
        )
        service = AdminService(
            self,
            self._telemetry,
            self._overrides,
            self._picks,
            self._plane,
            clock,
            models=self._scorers,
            on_limit_hit=lambda limit: self._metrics.admin_limit_hits.labels(limit).inc(),
        )
        self._metrics.watch_streams(lambda: service.watches)
        self._admin = AdminServer(service)
        self._http = HttpServer(make_app(self, __version__, training=self._learning.page))

    # What admin and the HTTP pages see.

    def services(self) -> list[ServiceInfo]:
        """attnroute.admin.service.ControlView."""
        return [
            self._service_info(name, service)
            for name, service in self._loaded.policy.services.items()
        ]

    def config(self) -> ConfigInfo:
        """attnroute.admin.service.ControlView."""
        return ConfigInfo(
            policy_yaml=effective_yaml(self._loaded.policy),
            sha256=self._loaded.sha256,
            source=str(self._loaded.path),
            generation=self._generation,
            applied_at_s=self._applied_at_s,
            rejected=self._rejected,
        )

    def allow_changes(self) -> bool:
        """attnroute.admin.service.ControlView."""
        return self._loaded.policy.admin.allow_changes

    def readiness(self) -> Readiness:
        """Ready stays ready until the drain: a source that is lost later costs no readiness."""
        ready = self._ready and not self._draining
        waiting = () if self._ready or self._draining else tuple(self._waiting_for())
        return Readiness(ready=ready, draining=self._draining, waiting_for=waiting)

    def exposition(self) -> bytes:
        """attnroute.admin.http.HttpView."""
        own = (
            self._metrics.render(),
            self._learning_metrics.render(),
            self._model_metrics.render(),
        )
        return join((self._plane.metrics(), *own))

    def _service_info(self, name: str, service: Service) -> ServiceInfo:
        status = self._sources.status(name)
        return ServiceInfo(
            name=name,
            authorities=tuple(service.authorities),
            balancer=service.balancer.type,
            source=status.name,
            source_error=status.error,
        )

    def _waiting_for(self) -> list[str]:
        waiting = self._plane.pending()
        if not self._bound and "listeners" not in waiting:
            waiting = ["listeners", *waiting]
        reasons = []
        for item in waiting:
            error = self._sources.status(item.removeprefix("endpoints of ")).error
            reasons.append(f"{item}: {error}" if error else item)
        return reasons

    # Start.

    async def start(self) -> None:
        """Brings everything up; returns when it serves, ready or not. Raises StartError."""
        if self._options.ports_file is not None:
            self._options.ports_file.unlink(missing_ok=True)
        self._traces.use(await self._exporter_of(self._loaded))
        scorers = await asyncio.to_thread(self._scorers.prepare, self._loaded)
        self._in_force(self._loaded)
        self._sources.replace(self._resolvers.plans(self._loaded))
        await self._sources.first_answers(FIRST_ANSWERS_TIMEOUT_S)
        try:
            listeners = await asyncio.to_thread(self._plane.start)
        except BindError as error:
            raise _cannot_bind(error) from error
        except DataPlaneError as error:
            raise StartError(f"cannot start the data threads: {error}") from error
        self._bound = True
        await self._start_admin()
        self._know_own_addresses()
        logger.info("listening", extra=fields(listeners=listeners, admin=self._admin_bound))
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._hang_up)
        self._watch_again()
        await self._learn(scorers)
        tasks = (self._become_ready, self._tick, self._reload_when_wanted)
        works = (*tasks, self._traces.run, self._learning.run, self._scorers.run)
        for work in works:
            self._tasks.append(asyncio.create_task(keep_running(work)))

    async def _start_admin(self) -> None:
        admin = self._loaded.policy.admin
        grpc = self._admin.bind(admin.grpc, self._position("admin", "grpc"))
        socket = None
        if admin.socket is not None:
            path = f"unix:{admin.socket.removeprefix('unix:')}"
            socket = self._admin.bind(path, self._position("admin", "socket"))
        http = self._http.bind(admin.http, self._position("admin", "http"))
        self._admin_bound = {"grpc": grpc, "socket": socket, "http": http}
        await self._admin.start()
        await self._http.start()

    async def _become_ready(self) -> None:
        while True:
            self._state_changed.clear()
            waiting = self._waiting_for()
            if not waiting:
                break
            try:
                await asyncio.wait_for(self._state_changed.wait(), READY_POLL_S)
            except TimeoutError:
                continue
        self._ready = True
        await self._admin.set_ready(True)
        if self._options.ports_file is not None:
            ports = {"listeners": self._plane.bound(), "admin": self._admin_bound}
            await announce_ports(self._options.ports_file, ports)
        logger.info("ready")

    # While it runs.

    async def _tick(self) -> None:
        while True:
            began_s = time.perf_counter()
            self._overrides.expire()
            self._telemetry.sample(self._loaded.policy.services)
            self._reports.replace(self._report_plans())
            self._metrics.tick_duration.observe(time.perf_counter() - began_s)
            await asyncio.sleep(SAMPLE_INTERVAL_S)

    def _report_plans(self) -> Mapping[str, OrcaPlan]:
        """Who is asked for load reports between calls: an endpoint that is new waits one tick."""
        return {
            name: OrcaPlan(
                asked.interval,
                asked.max_endpoints,
                tuple(endpoint.address for endpoint in self._telemetry.read(name).endpoints),
            )
            for name, service in self._loaded.policy.services.items()
            if (asked := service.load_reports.out_of_band) is not None
        }

    def _watch_again(self) -> None:
        """Follows the policy file from the content that was looked at last. Begun anew whenever a
        signal made us look: a watcher that missed a content in between would take the return to
        an older one for no change, and an error that was mended would stay on display."""
        if self._watching is not None:
            self._watching.cancel()
        self._watching = asyncio.create_task(keep_running(self._watch_file))

    async def _watch_file(self) -> None:
        changes = watch_policy(
            self._options.config,
            known_sha256=self._considered or _NO_CONTENT,
            watcher=self._watcher,
        )
        async with aclosing(changes):
            async for content in changes:
                self._want_reload(content)

    def _hang_up(self) -> None:
        self._plane.reopen_logs()  # whoever moved the access log away wants it begun anew
        self._want_reload(None)

    def _want_reload(self, content: bytes | None) -> None:
        """The newest wish wins: an older content has no claim to be in force."""
        self._new_content = content
        self._reload_wanted.set()

    async def _reload_when_wanted(self) -> None:
        while True:
            await self._reload_wanted.wait()
            self._reload_wanted.clear()
            await self._reload(self._new_content)

    async def _reload(self, seen: bytes | None) -> None:
        """Brings the policy file into force, or says why not and changes nothing.

        seen: what the watcher saw, empty for a file that is gone; None reads the file.
        """
        content = seen or await asyncio.to_thread(_read_policy, self._options.config)
        digest = "" if content is None else hashlib.sha256(content).hexdigest()
        if seen is not None and digest == self._considered:
            return  # a signal was faster than the watcher
        self._considered = digest
        if seen is None:
            self._watch_again()
        try:
            loaded = await asyncio.to_thread(load_policy, self._options.config, content)
            if loaded.sha256 == self._loaded.sha256:
                self._rejected = ""
                self._metrics.policy_reloaded("unchanged")
                logger.info("policy unchanged", extra=fields(sha256=loaded.sha256))
                return
            _refuse_fixed_changes(self._loaded, loaded)
            compiled = await asyncio.to_thread(compile_policy, loaded)
            exporter = await self._exporter_of(loaded)
            scorers = await asyncio.to_thread(self._scorers.prepare, loaded)
            try:
                # On the loop, so that no admin call sees the new data plane with the old policy.
                self._plane.apply_policy(compiled)
            except ConfigError as error:
                raise _refused(loaded, error) from error
            except BindError as error:
                raise _cannot_bind(error) from error
        except AttnrouteError as error:
            self._rejected = str(error)
            self._metrics.policy_reloaded("rejected")
            logger.error(
                "policy rejected; the last good one stays in force",
                extra=fields(problems=str(error).splitlines(), in_force=self._loaded.sha256),
            )
            return
        self._in_force(loaded)
        self._metrics.policy_reloaded("applied")
        self._overrides.keep(loaded.policy.services)
        self._traces.use(exporter)
        self._sources.replace(self._resolvers.plans(loaded))
        await self._learn(scorers)

    async def _learn(self, scorers: Prepared) -> None:
        """What learns follows the policy in force."""
        await self._scorers.use(scorers)
        await self._learning.configure(self._loaded, self._admin_bound["http"] or "")

    async def _exporter_of(self, loaded: LoadedPolicy) -> Exporter | None:
        """What spans go to by a policy. Raises StartError if that cannot be."""
        tracing = loaded.policy.tracing
        if tracing is None:
            return await self._traces.prepare(None)
        headers = {key: secret.get_secret_value() for key, secret in tracing.headers.items()}
        return await self._traces.prepare(Collector(tracing.otlp, __version__, headers))

    def _in_force(self, loaded: LoadedPolicy) -> None:
        self._loaded = loaded
        self._generation += 1
        self._applied_at_s = self._clock.wall_s()
        self._rejected = ""
        self._know_own_addresses()
        self._metrics.policy_applied(loaded.sha256, self._generation, self._applied_at_s)
        logger.info(
            "policy in force", extra=fields(generation=self._generation, sha256=loaded.sha256)
        )

    def _know_own_addresses(self) -> None:
        """What no source may name: what is bound, and what the policy says will be."""
        policy = self._loaded.policy
        admin = [policy.admin.grpc, policy.admin.http]
        if policy.admin.socket is not None:
            admin.append(f"unix:{policy.admin.socket.removeprefix('unix:')}")
        # An inbound listener leads to its server, in no circle.
        listeners = {one.name: one.address for one in policy.listeners if one.mode != "inbound"}
        bound = self._plane.bound() if self._bound else {}
        taken = [bound[name] for name in listeners.keys() & bound.keys()]
        admin_bound = [address for address in self._admin_bound.values() if address]
        self._own.replace([*admin, *listeners.values(), *taken, *admin_bound])

    def _position(self, *keys: str | int) -> str:
        line, column = self._loaded.position(keys)
        return f"{self._loaded.path}:{line}:{column}"

    # Stop.

    async def drain(self, number: signal.Signals, stops: StopSignals) -> None:
        """Lets calls finish as the policy says; a second signal ends them now."""
        settings = self._loaded.policy.drain
        linger_ms, limit_ms = settings.linger // MILLISECOND, settings.limit // MILLISECOND
        self._draining = True
        await self._admin.set_ready(False)
        logger.info(
            "draining",
            extra=fields(signal=number.name, linger_ms=linger_ms, limit_ms=limit_ms),
        )
        # Threads of its own: two drains may run at once, and neither may wait behind other work.
        with ThreadPoolExecutor(max_workers=2, thread_name_prefix="attnroute-drain") as threads:
            loop = asyncio.get_running_loop()
            drained = loop.run_in_executor(threads, self._plane.drain, linger_ms, limit_ms)
            hurried = asyncio.ensure_future(stops.second())
            either: set[asyncio.Future[Any]] = {drained, hurried}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if drained.done():
                hurried.cancel()
                finished = drained.result()
            else:
                logger.warning("second signal; calls that are open end now")
                finished = await loop.run_in_executor(threads, self._plane.drain, 0, 0)
                # Once its connections are gone the first drain ends within its quiet second.
                await drained
        if finished:
            logger.info("drained; every call finished")
        else:
            logger.warning("drain is over; calls that were still open ended UNAVAILABLE")

    async def close(self) -> None:
        """Stops everything that was started; the data plane last."""
        tasks = [*self._tasks, *([self._watching] if self._watching else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._sources.close()
        await self._reports.close()
        await self._learning.close()
        await self._scorers.close()
        await self._admin.stop()
        await self._http.stop()
        await asyncio.to_thread(self._plane.stop)
        await self._traces.close()


def _read_policy(path: Path) -> bytes | None:
    """The file's bytes, a little more than its limit at most; None if it cannot be read, for
    `load_policy` to say why."""
    try:
        with path.open("rb") as file:
            return file.read(POLICY_LIMITS.bytes_max + 1)
    except OSError:
        return None


def _refuse_fixed_changes(old: LoadedPolicy, new: LoadedPolicy) -> None:
    """Raises PolicyError if `new` changes what only a restart can."""
    problems = []
    for part, key in _FIXED:
        before = getattr(getattr(old.policy, part), key)
        after = getattr(getattr(new.policy, part), key)
        if before != after:
            line, column = new.position((part, key))
            problems.append(
                Problem(
                    str(new.path),
                    line,
                    column,
                    f"`{part}.{key}` changes from `{before}` to `{after}`, which needs a restart; "
                    f"restart the sidecar or change it back",
                )
            )
    if problems:
        raise PolicyError(problems)


def _refused(loaded: LoadedPolicy, error: ConfigError) -> PolicyError:
    """The data plane checks again; what only it refuses has no better position than the file."""
    place, reason = error.args
    message = f"the data plane refuses `{place}`: {reason}"
    return PolicyError([Problem(str(loaded.path), 1, 1, message)])


def _cannot_bind(error: BindError) -> StartError:
    name, address, source, reason = error.args
    return StartError(
        f"{source}: cannot bind listener `{name}` to `{address}`: {reason}; free the address or "
        f"configure another"
    )
