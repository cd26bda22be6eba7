"""Encodings of feature rows that are kept until the features change: the K/V table.

An endpoint's features come in steps (`features.extract`), so from one scoring run to the next many
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

    encode: [n, F] to its encodings, row by row the same whatever stands beside it. capacity: rows
    that are kept, 1 or more.
    """

    def __init__(self, encode: Callable[[Matrix], Encodings], capacity: int) -> None:
        self.hits = 0
        self.misses = 0
        self.evicted = 0
        """Rows that made place for others."""
        self.epoch = 0
        """Rises whenever a row of those asked for was encoded anew."""
        self._encode = encode
        self._capacity = capacity
        # Where the encodings of a row stand, those used last at the end.
        self._places: OrderedDict[bytes, int] = OrderedDict()
        self._kept: Encodings = ()

    @property
    def usage(self) -> float:
        """Rows kept over those that may be, 0 to 1."""
        return len(self._places) / self._capacity

    def __len__(self) -> int:
        return len(self._places)

    def look_up(self, features: Matrix) -> Encodings:
        """[n, F] to its encodings. Raises what `encode` raises, and keeps what it had."""
        keys = [row.tobytes() for row in np.ascontiguousarray(features)]
        if not keys or len(keys) > self._capacity:
            self.misses += len(keys)
            return self._encode(features)
        for key in keys:
            if key in self._places:
                self._places.move_to_end(key)
        missing = {key: row for row, key in enumerate(keys) if key not in self._places}
        if missing:
            self._add(list(missing), self._encode(features[list(missing.values())]))
            self.epoch += 1
        self.misses += len(missing)
        self.hits += len(keys) - len(missing)
        at = [self._places[key] for key in keys]
        return tuple(kept[at] for kept in self._kept)

    def _add(self, keys: list[bytes], encoded: Encodings) -> None:
        """Keeps new rows in the places of those that were not used for longest. Rows that are asked
        for now stand at the end, and there are no more than `capacity` of them."""
        size = len(self._places)
        self._fit(min(size + len(keys), self._capacity), encoded)
        places = []
        for key in keys:
            if size < self._capacity:
                place, size = size, size + 1
            else:
                _, place = self._places.popitem(last=False)
                self.evicted += 1
            self._places[key] = place
            places.append(place)
        for kept, fresh in zip(self._kept, encoded, strict=True):
            kept[places] = fresh

    def _fit(self, size: int, encoded: Encodings) -> None:
        """Makes room for so many rows, at most twice as much as is needed."""
        have = len(self._kept[0]) if self._kept else 0
        if size <= have:
            return
        rows = min(max(size, 2 * have), self._capacity)
        grown = tuple(np.zeros((rows, *one.shape[1:]), np.float32) for one in encoded)
        for into, kept in zip(grown, self._kept, strict=False):
            into[:have] = kept
        self._kept = grown
