"""The trainer's file: every key, its type, its limits, its default, and the rules between them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field

from attnroute.errors import Problem, TrainerFileError
from attnroute.policy import scalars
from attnroute.policy.fields import Parsed, Strict, duration, size
from attnroute.policy.learning import SplitKeys, TableKeys
from attnroute.policy.listeners import Address
from attnroute.policy.load import load_document
from attnroute.policy.schema import PolicyJsonSchema
from attnroute.policy.sources import FilePath, Text
from attnroute.policy.tree import Tree

__all__ = [
    "Exchange",
    "LoadedTrainer",
    "PrometheusServer",
    "Publishing",
    "RegistryKeys",
    "Scrape",
    "Source",
    "TrainerFile",
    "TrainingKeys",
    "json_schema",
    "load_trainer",
]

_S = timedelta(seconds=1)
_MODEL = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?")
"""Repeats attnroute.bundle.manifest.NAME, since a check of a file need not load numpy; a test holds
them together."""
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


def _parse_host(value: object) -> str:
    address = scalars.parse_target(value)
    if address.startswith("unix:"):
        raise ValueError("expected `host:port`")
    return address


def _parse_url(value: object) -> str:
    expected = "expected a URL such as `http://prometheus:9090`"
    if not isinstance(value, str):
        raise ValueError(f"{expected}; put it in quotes")
    try:
        parts = urlsplit(value)
        good = parts.scheme in ("http", "https") and bool(parts.hostname)
        port = parts.port
    except ValueError:
        raise ValueError(expected) from None
    if not good or parts.query or parts.fragment or port == 0:
        raise ValueError(expected)
    if parts.username is not None or parts.password is not None:
        raise ValueError("a URL does not carry credentials; use `basic_auth` or a token file")
    return value


def _parse_model_name(value: object) -> str:
    if not isinstance(value, str) or not _MODEL.fullmatch(value):
        raise ValueError("expected lower-case letters, digits, `.`, `_`, `-`")
    return value


def _parse_label(value: object) -> str:
    if not isinstance(value, str) or not _LABEL.fullmatch(value):
        raise ValueError("expected the name of a label: letters, digits and `_`")
    return value


Host = Annotated[str, Parsed(_parse_host, {"type": "string", "pattern": "^.+:[0-9]{1,5}$"})]
Url = Annotated[str, Parsed(_parse_url, {"type": "string", "pattern": "^https?://"})]
Label = Annotated[str, Parsed(_parse_label, {"type": "string", "pattern": f"^{_LABEL.pattern}$"})]
Interval = Annotated[timedelta, duration(timedelta(milliseconds=100), timedelta(minutes=5))]
ModelName = Annotated[
    str, Parsed(_parse_model_name, {"type": "string", "pattern": f"^{_MODEL.pattern}$"})
]
BodyBytes = Annotated[int, size(1 << 10, 1 << 30)]


class Exchange(Strict):
    """Where sidecars exchange windows for the sums of the fleet, and what that may hold. Every hit
    is counted in `attnroute_trainer_limit_hits_total{limit}`."""

    address: Address = Field(
        default="127.0.0.1:15020",
        description="Where it is served: `ip:port` (port 0 lets the system pick one) or "
        "`unix:/path`. Whoever reaches it is trusted.",
    )
    max_streams: int = Field(
        default=4_096, ge=1, le=1_000_000, description="Open streams; one a sidecar and service."
    )
    max_services: int = Field(default=256, ge=1, le=100_000, description="Services.")
    max_classes: int = Field(
        default=512,
        ge=1,
        le=65_536,
        description="Request classes of a service; more are counted in `other`.",
    )
    max_endpoints: int = Field(
        default=10_000,
        ge=1,
        le=200_000,
        description="Endpoints of a service; more are left out.",
    )
    table: TableKeys = Field(
        default=TableKeys(),
        description="The table of service times; keep it as in the sidecars' policies.",
    )
    split: SplitKeys | None = Field(
        default=None,
        description="How calls are best shared out; `{}` solves it with these values, by default "
        "nothing is solved.",
    )


class Scrape(Strict):
    """The trainer scrapes the sidecars itself."""

    sidecars: tuple[Host, ...] = Field(
        default=(),
        max_length=10_000,
        description="`admin.http` of each, `host:port`; default those that take part in the "
        "exchange and whose page can be reached from here.",
    )
    interval: Interval = Field(default=5 * _S, description="How often.")
    timeout: Interval = Field(default=4 * _S, description="For each page, to its last byte.")
    max_page_bytes: BodyBytes = Field(default=64 << 20, description="Of an unpacked page.")


class BasicAuth(Strict):
    """HTTP basic authentication."""

    username: Text = Field(description="The name.")
    password_file: FilePath = Field(
        description="A file with the password, relative to the trainer's file; read for each query."
    )


class Tls(Strict):
    """How an `https` server is recognised, and how it recognises the trainer."""

    ca_file: FilePath | None = Field(
        default=None, description="PEM file with its roots; default those of the system."
    )
    cert_file: FilePath | None = Field(
        default=None, description="PEM file with the trainer's certificate."
    )
    key_file: FilePath | None = Field(
        default=None, description="PEM file with its key; default in `cert_file`."
    )


class PrometheusServer(Strict):
    """The trainer asks a Prometheus server, or what speaks its API, that scrapes the sidecars."""

    url: Url = Field(description="Its root, with any prefix before `/api`.")
    selector: Text = Field(
        default="",
        description='More label matchers, as in PromQL: `job="attnroute",env="prod"`.',
    )
    interval: Interval = Field(default=5 * _S, description="How often it is asked.")
    timeout: Interval = Field(default=10 * _S, description="For each try, to the last byte.")
    retries: int = Field(default=2, ge=0, le=10, description="Further tries of one query.")
    max_answer_bytes: BodyBytes = Field(default=256 << 20, description="Of an unpacked answer.")
    replica_labels: tuple[Label, ...] = Field(
        default=("replica", "prometheus_replica"),
        description="Labels that tell copies of the same series apart; each sidecar counts once.",
    )
    labels: dict[Label, Label] = Field(
        default_factory=dict,
        description="Labels that were renamed on the way: attnroute's name to the server's. "
        "`exported_<name>` is known without.",
    )
    bearer_token_file: FilePath | None = Field(
        default=None, description="A file with a token; read for each query."
    )
    basic_auth: BasicAuth | None = Field(default=None, description="Name and password.")
    tls: Tls | None = Field(default=None, description="For `https`.")


class Source(Strict):
    """Where the data to train on comes from: exactly one key."""

    scrape: Scrape | None = Field(default=None, description="From the sidecars themselves.")
    prometheus: PrometheusServer | None = Field(default=None, description="From a server.")


class RegistryKeys(Strict):
    """Where bundles are kept; they are served at `fleet.address`. Hits of limits are counted in
    `attnroute_trainer_limit_hits_total{limit}`."""

    directory: FilePath = Field(
        description="A directory of bundles, `<name>/<version>/`, relative to the trainer's file; "
        "made if it is not there. Several trainers may share it: one of them publishes."
    )
    name: ModelName = Field(
        default="default", description="Name of the model that is trained and published."
    )
    keep: int = Field(
        default=20,
        ge=2,
        le=10_000,
        description="Bundles that stay, besides those that channels hold.",
    )
    max_bytes: Annotated[int, size(1 << 20, 1 << 30)] = Field(
        default=32 << 20, description="Of one bundle."
    )
    max_streams: int = Field(
        default=4_096,
        ge=1,
        le=1_000_000,
        description="Channels that are watched and files that are sent at a time.",
    )
    allow_changes: bool = Field(
        default=False,
        description="Whether whoever reaches `fleet.address` may move channels, as "
        "`attnroute model promote` does. Else they are moved in the directory.",
    )
    signing_key: FilePath | None = Field(
        default=None,
        description="PEM file with an ed25519 key, relative to the trainer's file, that signs what "
        "is published.",
    )


class Publishing(Strict):
    """Which channels move, and when."""

    interval: Annotated[timedelta, duration(_S, timedelta(days=1))] = Field(
        default=60 * _S, description="At least between two bundles."
    )
    channel: ModelName = Field(
        default="canary",
        description="The channel that a bundle comes to first; `stable`: without a trial.",
    )
    windows: int = Field(
        default=3,
        ge=1,
        le=1_000,
        description="Windows that a gate has judged before its word counts.",
    )
    reports: int = Field(
        default=1,
        ge=1,
        le=1_000_000,
        description="Gates, one a sidecar and service, that have to speak before `stable` follows.",
    )


class TrainingKeys(Strict):
    """A process beside the trainer learns from what the source shows; needs `attnroute[train]`."""

    directory: FilePath = Field(
        default="training",
        description="Where its state and its scrapes are, relative to the trainer's "
        "file; made if it is not there. A process that starts goes on from them.",
    )
    start: FilePath | None = Field(
        default=None,
        description="A bundle, a directory relative to the trainer's file, whose weights it begins "
        "with where it has no state; default none: it begins as the table.",
    )
    seed: int = Field(default=0, ge=0, le=1 << 31, description="Of everything drawn.")
    steps: int = Field(default=25, ge=1, le=1_000, description="Of the optimiser, for each look.")
    replay: int = Field(
        default=60, ge=1, le=1_000, description="Looks that each step may draw from."
    )
    threads: int = Field(default=1, ge=1, le=64, description="That a step may use.")
    max_memory: Annotated[int, size(256 << 20, 1 << 40)] = Field(
        default=1200 << 20, description="Of the process, which is started again beyond."
    )
    max_dataset: Annotated[int, size(1 << 20, 1 << 40)] = Field(
        default=256 << 20, description="Of the scrapes on the disk; the oldest go."
    )


class TrainerFile(Strict):
    """The whole file."""

    fleet: Exchange = Field(default=Exchange(), description="The exchange between sidecars.")
    http: Address = Field(
        default="127.0.0.1:15021", description="Address of `/metrics`, `/healthz` and `/readyz`."
    )
    source: Source = Field(
        default=Source(scrape=Scrape()), description="Where the data to train on comes from."
    )
    keep: int = Field(
        default=60, ge=2, le=10_000, description="Intervals of training data that are kept."
    )
    registry: RegistryKeys | None = Field(
        default=None, description="Bundles; default none are kept or served."
    )
    publishing: Publishing = Field(
        default=Publishing(), description="From a trained bundle to the channels."
    )
    training: TrainingKeys | None = Field(
        default=None, description="Training while traffic flows; default none. Needs `registry`."
    )


@dataclass(frozen=True)
class LoadedTrainer:
    """A valid file and where it came from."""

    file: TrainerFile
    path: Path
    tree: Tree

    def resolve(self, path: str | None) -> Path | None:
        """A path in the file, relative to it, as the system takes it."""
        return None if path is None else self.path.parent / path

    def position(self, *keys: str) -> str:
        """`file:line:column` of a value, or of the nearest part around a default."""
        node = self.tree.find(keys)
        return f"{self.path}:{node.line}:{node.column}"


def load_trainer(path: Path) -> LoadedTrainer:
    """Reads and checks a trainer's file. Raises TrainerFileError with every problem of it."""
    file, tree = load_document(path, TrainerFile, lambda tree: list(_rules(tree)), TrainerFileError)
    return LoadedTrainer(file, path, tree)


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the file, for editors and for CI."""
    schema = TrainerFile.model_json_schema(mode="validation", schema_generator=PolicyJsonSchema)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "attnroute trainer",
    } | {key: value for key, value in schema.items() if key != "title"}


def _rules(tree: Tree) -> Iterator[Problem]:
    source = tree.get("source")
    if isinstance(source, dict) and len({"scrape", "prometheus"} & source.keys()) != 1:
        yield tree.problem(
            ("source",), "`source` has one of the keys `scrape` and `prometheus`; write exactly one"
        )
    seen: dict[object, int] = {}
    sidecars = tree.get("source", "scrape", "sidecars")
    for index, address in enumerate(sidecars if isinstance(sidecars, tuple) else ()):
        loc = ("source", "scrape", "sidecars", index)
        if address in seen:
            yield tree.problem(
                loc, f"sidecar `{address}` stands twice, first as entry {seen[address] + 1}; "
                "its calls would count twice; remove one",
            )  # fmt: skip
        seen.setdefault(address, index)
    for key in ("publishing", "training"):
        if tree.has((key,)) and not tree.has(("registry",)):
            yield tree.key_problem(
                (key,), f"`{key}` stands without `registry`; write where bundles are kept"
            )
    server = ("source", "prometheus")
    if tree.has((*server, "bearer_token_file")) and tree.has((*server, "basic_auth")):
        yield tree.key_problem(
            (*server, "basic_auth"),
            "`basic_auth` stands beside `bearer_token_file`; a query carries one of them",
        )
    if tree.has((*server, "tls", "key_file")) and not tree.has((*server, "tls", "cert_file")):
        yield tree.key_problem(
            (*server, "tls", "key_file"), "`key_file` stands without `cert_file`; write both"
        )
