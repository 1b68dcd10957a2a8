"""Names of models as users write them, checked before anything is looked up."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.errors import ModelNotFoundError

MAX_NAME_LEN = 4096
MAX_API_NAME_LEN = 256
DEFAULT_REVISION = "main"
# The first that a repository has is taken when no quantization is named.
PREFERRED_QUANTS = (
    "Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "Q5_K_M", "Q5_K_S", "Q6_K", "Q8_0", "Q5_1", "Q5_0",
    "BF16", "F16", "F32",
)  # fmt: skip
_HUB_NAME = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95})"
    r"(?:@(?P<revision>[\w.-][\w./-]{0,127}))?"
    r"(?::(?P<quant>[\w.-]{1,128}))?",
    re.ASCII,
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/|file:", re.IGNORECASE)
_SHARD = re.compile(r"-(\d{5})-of-(\d{5})$")


@dataclass(frozen=True, slots=True)
class HubRef:
    """A model of the Hub. `quant` is a quantization or a whole file name, "" for the default."""

    repo: str
    revision: str = DEFAULT_REVISION
    quant: str = ""

    def __str__(self) -> str:
        revision = "" if self.revision == DEFAULT_REVISION else f"@{self.revision}"
        return f"{self.repo}{revision}{':' if self.quant else ''}{self.quant}"


def check_name(name: str, *, from_api: bool) -> None:
    """Refuse what is no name. Raises ModelNotFoundError that does not repeat hostile bytes."""
    limit = MAX_API_NAME_LEN if from_api else MAX_NAME_LEN
    if not 0 < len(name) <= limit:
        raise ModelNotFoundError(f"A model name has 1 to {limit} characters.")
    if not name.isprintable() or "\\" in name:
        raise ModelNotFoundError("A model name holds no control characters and no backslash.")
    if _SCHEME.match(name):
        raise ModelNotFoundError("A model name is not a URL; give a path or a Hub repository.")
    if from_api and (name.startswith(("/", "~")) or ".." in name):
        raise ModelNotFoundError("A model name in a request is not a path.")


def parse_hub_name(name: str) -> HubRef | None:
    """`org/repo[@revision][:QUANT]`, or None if the name is not of that form."""
    match = _HUB_NAME.fullmatch(name)
    if match is None or ".." in name or "--" in match["repo"]:
        return None
    return HubRef(match["repo"], match["revision"] or DEFAULT_REVISION, match["quant"] or "")


def pick_gguf(files: Iterable[str], quant: str) -> list[str]:
    """The files (all shards, in order) of the wanted quantization; empty if there is none."""
    groups: dict[str, list[str]] = {}
    for file in sorted(files):
        stem = file.rpartition("/")[2].removesuffix(".gguf")
        if file.endswith(".gguf") and not stem.startswith("mmproj"):
            groups.setdefault(_SHARD.sub("", stem), []).append(file)
    if not quant:
        candidates: tuple[str, ...] = PREFERRED_QUANTS
    else:
        candidates = (quant.removesuffix(".gguf"),)
    for candidate in candidates:
        pattern = re.compile(rf"(?:.*[-._])?{re.escape(candidate)}", re.IGNORECASE)
        for stem, group in groups.items():
            if pattern.fullmatch(_SHARD.sub("", stem)):
                return group
    return []


def quant_names(files: Iterable[str]) -> list[str]:
    """The known quantizations among the files, for messages."""
    names = list(files)
    return [quant for quant in PREFERRED_QUANTS if pick_gguf(names, quant)]
