"""Encodings of feature rows that are kept until the features change: the K/V table.

An endpoint's features come in steps (`features.extract`), so from one scoring run to the next most
rows are the same bytes, and an encoding is a pure function of its row: what is kept is exactly what
the graph would say again. Rows that are new are encoded in one run. At most `capacity` rows are
kept, those used last; a set of endpoints that is larger is encoded all the same, only not kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

__all__ = ["Encodings", "KvTable"]

Matrix = npt.NDArray[np.float32]

Encodings = tuple[Matrix, ...]
"""Outputs of an encoder, [n, ...] each."""


class KvTable:
    """Rows of features to rows of encodings.

    encode: [n, F] to its encodings, row by row the same whatever stands beside it.
    """

    def __init__(self, encode: Callable[[Matrix], Encodings], capacity: int) -> None:
        self.hits = 0
        self.misses = 0
        self.evicted = 0
        """Rows that made place for others."""
        self.epoch = 0
        """Rises whenever a row of those asked for last was encoded anew."""
        self._encode = encode
        self._capacity = capacity
        self._rows: OrderedDict[bytes, Encodings] = OrderedDict()

    @property
    def usage(self) -> float:
        """Rows kept over those that may be, 0 to 1."""
        return len(self._rows) / self._capacity

    def __len__(self) -> int:
        return len(self._rows)

    def look_up(self, features: Matrix) -> Encodings:
        """[n, F] to its encodings; raises what `encode` raises, and keeps what it had."""
        keys = [row.tobytes() for row in np.ascontiguousarray(features)]
        missing = {
            key: place for place, key in enumerate(keys) if key not in self._rows
        }  # one of each, however often it stands there
        fresh: dict[bytes, Encodings] = {}
        if missing or not keys:
            encoded = self._encode(features[list(missing.values())])
            fresh = {key: tuple(one[at] for one in encoded) for at, key in enumerate(missing)}
            self.epoch += bool(missing)
            if not keys:
                return encoded
        self.misses += len(missing)
        self.hits += len(keys) - len(missing)
        found = [fresh[key] if key in fresh else self._rows[key] for key in keys]
        self._keep(keys, fresh)
        return tuple(np.stack(column) for column in zip(*found, strict=True))

    def _keep(self, keys: list[bytes], fresh: dict[bytes, Encodings]) -> None:
        self._rows |= fresh
        for key in keys:
            self._rows.move_to_end(key)
        while len(self._rows) > self._capacity:
            self._rows.popitem(last=False)
            self.evicted += 1
