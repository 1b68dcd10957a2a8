"""Names of distributions, for the command line: nothing else is imported to parse one."""

from __future__ import annotations

from enum import StrEnum


class Lengths(StrEnum):
    """How the lengths of made requests are distributed around their mean."""

    FIXED = "fixed"
    UNIFORM = "uniform"
    LOGNORMAL = "lognormal"
