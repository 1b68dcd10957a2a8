"""What rows of a run say: medians, ratios of systems that took turns, shares of the roof."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.lineup import OURS
from benchmarks.roof import INTEGER, MEMORY, MODEL_READ, ModelCost, bytes_of, read_beside
from benchmarks.rows import ROOF, Row


@dataclass(frozen=True)
class Results:
    """One run: its rows and facts. Every figure is a median over rounds."""

    rows: Sequence[Row]
    facts: Mapping[str, Any]

    def points(self) -> list[str]:
        return list(dict.fromkeys(r.point for r in self.rows if r.system != ROOF))

    def families(self) -> list[str]:
        """Rivals in the order of their first row."""
        names = dict.fromkeys(r.family for r in self.rows if r.system != ROOF)
        return [name for name in names if name != OURS]

    def settings(self, point: str, family: str) -> list[str]:
        """The systems of a family at a point, the fastest first."""
        systems = {r.system for r in self.rows if r.point == point and r.family == family}
        return sorted(systems, key=lambda system: (-self._median(point, system), system))

    def best(self, point: str, family: str) -> str | None:
        """The fastest setting of a family at a point."""
        return next(iter(self.settings(point, family)), None)

    def rate(self, point: str, system: str) -> float | None:
        """Units per second; of a family name its best setting's."""
        chosen = system if self._rows(point, system) else self.best(point, system)
        return None if chosen is None else self._median(point, chosen)

    def rates(self, point: str, system: str) -> list[float]:
        """The same of every round; nothing where it was not measured."""
        chosen = system if self._rows(point, system) else self.best(point, system)
        return [] if chosen is None else [r.rate for r in self._rows(point, chosen)]

    def ratio(self, point: str, ours: str, other: str) -> float | None:
        """The median of per-round ratios of two systems, or of families at their best settings."""
        first = ours if self._rows(point, ours) else self.best(point, ours)
        second = other if self._rows(point, other) else self.best(point, other)
        if first is None or second is None:
            return None
        mine = {r.round: r.rate for r in self._rows(point, first)}
        theirs = {r.round: r.rate for r in self._rows(point, second)}
        pairs = [mine[n] / theirs[n] for n in mine if n in theirs]
        return statistics.median(pairs) if pairs else None

    def share(self, point: str, system: str = OURS) -> float | None:
        """Of the bandwidth roof for decode, of the integer roof for prefill, per round."""
        chosen = system if self._rows(point, system) else self.best(point, system)
        if chosen is None:
            return None
        command = self.facts["points"].get(point, {})
        roofs = self._beside(point, chosen) or self._roofs(command.get("do"))
        shares = [
            self._demand(command, row) / roofs[row.round]
            for row in self._rows(point, chosen)
            if row.round in roofs
        ]
        return statistics.median(shares) if shares else None

    def seconds(self, point: str, system: str = OURS) -> float | None:
        """Seconds of one step: of one sampled token per sequence, or of one verified draft."""
        rows = self._rows(point, self.best(point, system) or system)
        command = self.facts["points"].get(point, {})
        steps = int(command.get("tokens", 1)) if command.get("do") != "prefill" else 1
        return statistics.median(r.seconds / steps for r in rows) if rows else None

    def contended(self) -> int:
        return sum(r.contended for r in self.rows)

    def _rows(self, point: str, system: str) -> list[Row]:
        return [r for r in self.rows if r.point == point and r.system == system]

    def _median(self, point: str, system: str) -> float:
        return statistics.median(r.rate for r in self._rows(point, system))

    def _beside(self, point: str, system: str) -> dict[int, float]:
        """Round -> bytes per second that were read right before and after a row."""
        rates: dict[int, list[float]] = {}
        for row in self._rows(read_beside(point, system), ROOF):
            rates.setdefault(row.round, []).append(row.rate)
        return {number: statistics.fmean(found) for number, found in rates.items()}

    def _roofs(self, do: str | None) -> dict[int, float]:
        """Round -> bytes or operations per second that bound a kind of point."""
        names = {"decode": (MODEL_READ, MEMORY), "prefill": (INTEGER,)}.get(do or "", ())
        for name in names:
            found = {r.round: r.rate for r in self._rows(name, ROOF)}
            if found:
                return found
        return {}

    def _demand(self, command: Mapping[str, Any], row: Row) -> float:
        """Bytes or operations per second that a row needed at least."""
        cost = ModelCost(**self.facts["cost"])
        if command["do"] == "prefill":
            return cost.ops_per_token * row.rate
        return bytes_of(cost, command, row.system) * int(command["tokens"]) / row.seconds
