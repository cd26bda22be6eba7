"""The one error of the benchmark."""

from __future__ import annotations


class BenchmarkError(Exception):
    """The run cannot go on; the message says where, what was found and what to do."""
