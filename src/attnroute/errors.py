"""Every error that attnroute raises on purpose, in one tree.

AttnrouteError
├── InvalidFileError       a file of the operator says what cannot be done; lists every problem
│   ├── PolicyError
│   ├── EndpointFileError
│   ├── ScenarioError
│   └── TrainerFileError
├── SimulationError        a balancer that does not exist, a run that broke
├── RecordError            a line that is no recorded pick, or one that cannot be computed again
├── BundleError            a model that is refused, or cannot be written
├── RegistryError          bundles and channels cannot be reached, or a change of them was refused
│   └── ConflictError      somebody else was faster
├── StartError             the process cannot start: a busy port, a missing extension
└── AdminError             the admin API cannot be reached or refused a call

The data plane's own errors (`attnroute.dataplane.DataPlaneError`) come from the extension and are
turned into these where a user could have caused them. A message is one sentence that says where,
what was found, what was expected and what to do; commands print it and exit with `exit_code`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

__all__ = [
    "AdminError",
    "AttnrouteError",
    "BundleError",
    "ConflictError",
    "EndpointFileError",
    "InvalidFileError",
    "PolicyError",
    "Problem",
    "RecordError",
    "RegistryError",
    "ScenarioError",
    "SimulationError",
    "StartError",
    "TrainerFileError",
]


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One thing wrong with a file. Line and column count from 1; columns count characters."""

    path: str
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}: {self.message}"


class AttnrouteError(Exception):
    """Base of everything a user of the package may want to catch."""

    exit_code: ClassVar[int] = 1
    """What a command returns when this ends it: 1 the work failed, 2 bad input."""


class InvalidFileError(AttnrouteError):
    """A file was refused as a whole; `problems` lists every reason, sorted by position."""

    exit_code = 2

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(sorted(problems))
        super().__init__("\n".join(str(problem) for problem in self.problems))


class PolicyError(InvalidFileError):
    """A policy file was refused."""


class EndpointFileError(InvalidFileError):
    """A file that lists endpoints was refused."""


class ScenarioError(InvalidFileError):
    """A scenario file, or the trace that it names, was refused."""


class TrainerFileError(InvalidFileError):
    """A trainer's file was refused."""


class SimulationError(AttnrouteError):
    """A simulation cannot be run as it was asked for."""

    exit_code = 2


class RecordError(AttnrouteError):
    """A line that is no recorded pick, or one that cannot be computed again."""

    exit_code = 2


class BundleError(AttnrouteError):
    """A bundle was refused, or cannot be written. The message begins with its path."""

    exit_code = 2


class RegistryError(AttnrouteError):
    """A registry cannot be reached, lacks what was asked for, or refused a change."""


class ConflictError(RegistryError):
    """A channel, a version or the leader's place was taken by somebody else in the meantime."""


class StartError(AttnrouteError):
    """The process cannot start; the message says what stands in the way."""


class AdminError(AttnrouteError):
    """The admin API cannot be reached, or refused the call."""
