"""Fixtures that every kind of test may use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from hypothesis import settings
from tests.support.sidecar import Sidecar

# The same examples in every run, so that a change is judged by the change, and no limit of time,
# which a busy machine would break. New ground: `pytest --hypothesis-profile=explore`.
settings.register_profile("held", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=2_000, print_blob=True)
settings.load_profile("held")


@pytest.fixture
def start_sidecar(tmp_path: Path) -> Iterator[Callable[..., Sidecar]]:
    """`start_sidecar(policy_text, **options)` gives a ready sidecar that ends with the test.

    Each has a directory of its own below `tmp_path`.
    """
    with ExitStack() as stack:
        started: list[Sidecar] = []

        def start(policy: str | bytes, *, wait_ready: bool = True, **options: object) -> Sidecar:
            directory = tmp_path / f"sidecar-{len(started)}"
            directory.mkdir()
            sidecar = Sidecar(directory, policy, **options)  # type: ignore[arg-type]
            started.append(sidecar)
            stack.callback(sidecar.kill)
            return sidecar.start(wait_ready=wait_ready)

        yield start
