"""The policies by name."""

from __future__ import annotations

from headrace.kv.lookahead.base import Allocation, AllocationPolicy
from headrace.kv.lookahead.lookahead import Lookahead
from headrace.kv.lookahead.on_demand import OnDemand
from headrace.kv.lookahead.reserve_max import ReserveMax


def make_policy(name: Allocation) -> AllocationPolicy:
    """A policy with its defaults."""
    if name is Allocation.ON_DEMAND:
        return OnDemand()
    if name is Allocation.RESERVE_MAX:
        return ReserveMax()
    return Lookahead()
