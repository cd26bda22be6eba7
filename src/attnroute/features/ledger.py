"""Sums of the table by name, so that what two processes count can be put together.

Inside a process classes and endpoints are indices that an epoch gives meaning to; between processes
they are the class's canonical string and the endpoint's address with its incarnation, the start
time of the process that answers there. A ledger keeps those names and, over the same names, some
layers of sums: the trainer has one, a sidecar has what the fleet says and what it has seen since.

A change of incarnation drops an endpoint's sums: another process answers there now.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from attnroute.features.table import OTHER, Attribution, Index, Sums, kinds_of
from attnroute.features.window import ServiceWindow

__all__ = ["LEFT_OUT", "Ledger", "Restarts"]

LEFT_OUT = -1
"""The column of an endpoint whose numbers do not count."""

Restarts = Literal["any", "newer", "never"]
"""What another incarnation than the known one means. `any`: who says so sees the endpoint, it was
restarted. `newer`: several say so, and the one that has not heard yet names the older start.
`never`: what belongs to another incarnation than the known one is left out, as with a window of
before."""

CELLS_MAX = 1 << 20
"""Classes times endpoints; beyond it names go that have sums but are not in use: 50 MB in all."""

STALE_S = 10.0
"""An incarnation that nobody has named for so long gives way to an older one, too: an endpoint's
clock may have been set back."""

# Below this a sum is nothing: 4 minutes after 100 calls.
_FLOOR = 1e-9


_LISTS_MAX = 8


def _remember(lists: dict[tuple[str, ...], Index], listed: tuple[str, ...], found: Index) -> None:
    if len(lists) >= _LISTS_MAX:
        lists.clear()
    found.flags.writeable = False
    lists[listed] = found


class Ledger:
    """Names and layers of sums over them.

    layers: names of the layers. classes_max: of classes; one more is counted in `other`.
    endpoints_max: of endpoints; one more is left out. Both are counted.
    """

    def __init__(self, *layers: str, classes_max: int, endpoints_max: int) -> None:
        self.classes: list[str] = []
        self.endpoints: list[str] = []
        self.incarnation = np.zeros(0)
        self.folded = 0
        self.left_out = 0
        self._classes_max = classes_max
        self._endpoints_max = endpoints_max
        self._rows: dict[str, int] = {}
        self._columns: dict[str, int] = {}
        self._named_s = np.zeros(0)
        self._layers = {name: Sums.empty(0, 0) for name in layers}
        self._kinds: Index | None = None
        # The same lists come again and again, second by second.
        self._listed_rows: dict[tuple[str, ...], Index] = {}
        self._listed_columns: dict[tuple[str, ...], Index] = {}

    def layer(self, name: str) -> Sums:
        """Sums of a layer, [C, E] and [E] in the order of `classes` and `endpoints`."""
        self._fit()
        return self._layers[name]

    def kinds(self) -> Index:
        """[C]: numbers of the classes' kinds."""
        if self._kinds is None or len(self._kinds) != len(self.classes):
            self._kinds = kinds_of(self.classes)
        return self._kinds

    def rows(self, classes: Sequence[str]) -> Index:
        """[n]: places of classes, new ones at the end."""
        listed = tuple(classes)
        found = self._listed_rows.get(listed)
        if found is None:
            folded = self.folded
            found = np.array([self._row(name) for name in listed], dtype=np.intp)
            if self.folded == folded:
                _remember(self._listed_rows, listed, found)
        return found

    def columns(
        self,
        addresses: Sequence[str],
        incarnations: npt.NDArray[np.float64],
        now_s: float,
        restarts: Restarts,
    ) -> tuple[Index, list[int]]:
        """Places of endpoints, [n], new ones at the end, LEFT_OUT where the numbers do not count;
        and the places whose endpoint was restarted, now without sums.

        incarnations: [n], Unix start time in seconds, 0 where unknown. now_s: monotonic.
        """
        listed = tuple(addresses)
        known = self._listed_columns.get(listed)
        if known is None:
            known = np.array([self._column(address) for address in listed], dtype=np.intp)
            if not (known == LEFT_OUT).any():
                _remember(self._listed_columns, listed, known)
        told = (known != LEFT_OUT) & np.isfinite(incarnations) & (incarnations > 0)
        if not told.any():
            return known, []
        before = self.incarnation[known[told]]
        if ((before == 0) | (before == incarnations[told])).all():
            self.incarnation[known[told]] = incarnations[told]
            self._named_s[known[told]] = now_s
            return known, []
        places, restarted = known.copy(), []
        for index in np.flatnonzero(told):
            column, again = self._incarnate(
                int(known[index]), float(incarnations[index]), now_s, restarts
            )
            if again:
                restarted.append(column)
            places[index] = column
        return places, restarted

    def add(
        self,
        layer: str,
        window: ServiceWindow,
        attribution: Attribution,
        columns: Index,
        weight: float = 1.0,
    ) -> tuple[Index, Index]:
        """Adds a window to a layer, but for endpoints that are left out.

        columns: of the window's endpoints. Returns the places of the cells that were added.
        """
        cells, rows = window.cells, self.rows(window.classes)
        sums = self.layer(layer)
        at = columns[cells.endpoint]
        counted = at != LEFT_OUT
        places = rows[cells.request_class][counted], at[counted]
        sums.add(*places, attribution.x_s[counted], cells.calls[counted], weight)
        known = columns != LEFT_OUT
        sums.add_endpoints(
            columns[known], attribution.busy_s[known], attribution.calls[known], weight
        )
        return places

    def decay(self, factor: float) -> None:
        """Decays every layer."""
        for sums in self._layers.values():
            sums.decay(factor)

    def prune(
        self, keep_classes: Collection[str], keep_endpoints: Collection[str]
    ) -> tuple[Index, Index] | None:
        """Drops names whose sums have decayed to nothing, and beyond CELLS_MAX all, but for those
        to keep.

        Returns the old places of the classes and of the endpoints that stay, in their new order;
        None if all stay.
        """
        self._fit()
        crowded = len(self.classes) * len(self.endpoints) > CELLS_MAX
        row_use = np.zeros(len(self.classes))
        column_use = np.zeros(len(self.endpoints))
        for sums in self._layers.values():
            row_use += sums.den.sum(axis=1)
            column_use += sums.den.sum(axis=0) + sums.calls
        rows = [
            row
            for row, name in enumerate(self.classes)
            if (row_use[row] > _FLOOR and not crowded) or name in keep_classes
        ]
        columns = [
            column
            for column, name in enumerate(self.endpoints)
            if (column_use[column] > _FLOOR and not crowded) or name in keep_endpoints
        ]
        if len(rows) == len(self.classes) and len(columns) == len(self.endpoints):
            return None
        kept = np.array(rows, dtype=np.intp), np.array(columns, dtype=np.intp)
        self._keep(*kept)
        return kept

    def _keep(self, rows: Index, columns: Index) -> None:
        self.classes = [self.classes[row] for row in rows]
        self.endpoints = [self.endpoints[column] for column in columns]
        self._rows = {name: row for row, name in enumerate(self.classes)}
        self._columns = {name: column for column, name in enumerate(self.endpoints)}
        self.incarnation, self._named_s = self.incarnation[columns], self._named_s[columns]
        self._kinds = None
        self._listed_rows.clear()
        self._listed_columns.clear()
        for name, sums in self._layers.items():
            self._layers[name] = Sums(
                sums.num_s[np.ix_(rows, columns)],
                sums.den[np.ix_(rows, columns)],
                sums.busy_s[columns],
                sums.calls[columns],
            )

    def _row(self, name: str) -> int:
        row = self._rows.get(name)
        if row is not None:
            return row
        # `other` itself always has a place.
        if len(self.classes) >= self._classes_max and name != OTHER:
            self.folded += 1
            return self._row(OTHER)
        self._rows[name] = len(self.classes)
        self.classes.append(name)
        return len(self.classes) - 1

    def _column(self, address: str) -> int:
        column = self._columns.get(address)
        if column is not None:
            return column
        if len(self.endpoints) >= self._endpoints_max:
            self.left_out += 1
            return LEFT_OUT
        self._columns[address] = len(self.endpoints)
        self.endpoints.append(address)
        self.incarnation = np.append(self.incarnation, 0.0)
        self._named_s = np.append(self._named_s, -np.inf)
        return len(self.endpoints) - 1

    def _incarnate(
        self, column: int, incarnation: float, now_s: float, restarts: Restarts
    ) -> tuple[int, bool]:
        """The column or LEFT_OUT, and whether its endpoint was restarted; incarnation: above 0."""
        known = float(self.incarnation[column])
        if incarnation == known or known == 0:
            self.incarnation[column] = incarnation
            self._named_s[column] = now_s
            return column, False
        older = incarnation < known and now_s - self._named_s[column] < STALE_S
        if restarts == "never" or (restarts == "newer" and older):
            return LEFT_OUT, False
        self._fit()
        for sums in self._layers.values():
            sums.forget_endpoint(column)
        self.incarnation[column] = incarnation
        self._named_s[column] = now_s
        return column, True

    def _fit(self) -> None:
        """Makes every layer as large as there are names."""
        shape = (len(self.classes), len(self.endpoints))
        for name, sums in self._layers.items():
            if sums.den.shape != shape:
                grown = Sums.empty(*shape)
                rows, columns = sums.den.shape
                grown.num_s[:rows, :columns] = sums.num_s
                grown.den[:rows, :columns] = sums.den
                grown.busy_s[:columns] = sums.busy_s
                grown.calls[:columns] = sums.calls
                self._layers[name] = grown
