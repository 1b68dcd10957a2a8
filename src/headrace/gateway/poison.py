"""Remembers which requests were in a worker when it died, so that none kills a third one."""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Sequence

import msgspec

from headrace.engine.sampling import SamplingParams

MAX_DEATHS = 2
_MAX_ENTRIES = 4096
_FORGET_S = 600.0


def digest_of(prompt_ids: Sequence[int], params: SamplingParams) -> bytes:
    """Identifies what a request asks of the engine, except its seed (retries may draw another)."""
    digest = hashlib.blake2b(array("q", prompt_ids).tobytes(), digest_size=16)
    digest.update(msgspec.msgpack.encode(msgspec.structs.replace(params, seed=None)))
    return digest.digest()


class PoisonList:
    """Deaths by digest; forgotten when such a request ends well, or after ten minutes."""

    def __init__(self) -> None:
        self._deaths: OrderedDict[bytes, tuple[int, float]] = OrderedDict()

    def note_death(self, digest: bytes, now_s: float) -> int:
        """A worker died with this request in it; returns how many have."""
        deaths = self.num_deaths(digest, now_s) + 1
        self._deaths[digest] = (deaths, now_s)
        self._deaths.move_to_end(digest)
        while len(self._deaths) > _MAX_ENTRIES:
            self._deaths.popitem(last=False)
        return deaths

    def num_deaths(self, digest: bytes, now_s: float) -> int:
        """Recent deaths of workers with this request in them."""
        deaths, noted_s = self._deaths.get(digest, (0, now_s))
        return deaths if now_s - noted_s < _FORGET_S else 0

    def note_success(self, digest: bytes) -> None:
        """It is harmless after all."""
        if self._deaths:
            self._deaths.pop(digest, None)

    @property
    def is_empty(self) -> bool:
        return not self._deaths
