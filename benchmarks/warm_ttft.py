"""Shared prefixes over HTTP: a warm prompt's first token, and a crowd that begins alike.

    python -m benchmarks.warm_ttft MODEL.gguf --rivals FOLDER --rounds 5 --out rows.csv

Servers take turns; those whose idle threads spin are stopped meanwhile. Every prompt is new text,
of words that are one token each, so that all servers get the same tokens as ids or as text.

  alone   a prompt of 32 tokens: time to the first event
  warm    the same behind a prefix of 2,005 tokens that the server has seen
  crowd   32 prompts at once with a common beginning of 1,000 tokens that the server has not seen,
          32 of their own each, 32 tokens out: until all have ended

The bound of `warm` is the time of `alone`, and that of the 32 rows' attention over the prefix at
half the rate of float32 multiply-adds of this machine. Of a rival's settings, the faster counts.
A point that others disturbed is measured again (benchmarks.machine).
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import machine
from benchmarks.arguments import count
from benchmarks.lineup import OURS
from benchmarks.machine import MAX_ATTEMPTS, Attempted, undisturbed
from benchmarks.process import UnavailableError
from benchmarks.rivals.environment import default_folder
from benchmarks.rows import Figure, medians, write_figures
from benchmarks.servers import Launch, Prompt, Server, launches
from benchmarks.speed import say
from headrace.bench.load.prompts import WORDS
from headrace.bench.roof import Roof
from headrace.models.config import ModelConfig
from headrace.text.base import Tokenizer
from headrace.text.tokenizer import load_tokenizer
from headrace.weights.open import open_source

PREFIX_LEN, NEW_LEN = 2005, 32
CROWD, CROWD_PREFIX_LEN, CROWD_TOKENS = 32, 1000, 32
SAMPLES = 5
FIRST_PORT = 8780

Measured = dict[str, Attempted[float]]  # by point, seconds


class Words:
    """Prompts of so many tokens."""

    def __init__(self, tokenizer: Tokenizer, seed: str) -> None:
        self._rng = random.Random(seed)
        found = {f" {word}": tokenizer.encode(f" {word}", add_special=False) for word in WORDS}
        self._ids = {word: ids[0] for word, ids in found.items() if len(ids) == 1}
        self._tokenizer = tokenizer

    def take(self, length: int) -> Prompt:
        words = self._rng.choices(list(self._ids), k=length)
        prompt = Prompt(tuple(self._ids[word] for word in words), "".join(words))
        assert tuple(self._tokenizer.encode(prompt.text, add_special=False)) == prompt.ids
        return prompt


@dataclass(frozen=True)
class Model:
    """What this program has to know of a model."""

    config: ModelConfig
    tokenizer: Tokenizer

    @classmethod
    def of(cls, path: Path) -> Model:
        source = open_source(path)
        try:
            return cls(source.config, load_tokenizer(source.tokenizer, source.config.vocab_size))
        finally:
            source.close()

    def attention_ops(self, rows: int, context: int) -> int:
        """Multiplications and additions of some rows' attention over a context and themselves."""
        seen = sum(context + row + 1 for row in range(rows))
        config = self.config
        return 4 * seen * config.num_heads * config.head_dim * config.num_layers


def alone(server: Server, words: Words) -> float:
    """Seconds to the first token of a short prompt."""
    return statistics.median(
        server.ask([words.take(NEW_LEN)], 1).first_s[0] for _ in range(SAMPLES)
    )


def warm(server: Server, words: Words) -> float:
    """The same behind a prefix that the server has seen."""
    prefix = words.take(PREFIX_LEN)
    server.ask([prefix + words.take(NEW_LEN)], 1)
    return statistics.median(
        server.ask([prefix + words.take(NEW_LEN)], 1).first_s[0] for _ in range(SAMPLES)
    )


def crowd(server: Server, words: Words) -> float:
    """Seconds until all of a crowd that begins alike have been answered."""
    common = words.take(CROWD_PREFIX_LEN)
    prompts = [common + words.take(NEW_LEN) for _ in range(CROWD)]
    return server.ask(prompts, CROWD_TOKENS).end_s


# Point -> what is measured, and its unit.
POINTS: dict[str, tuple[Callable[[Server, Words], float], str]] = {
    "alone": (alone, "ms"),
    "warm": (warm, "ms"),
    "crowd": (crowd, "s"),
}


def measure(server: Server, words: Words, attempts: int) -> Measured:
    """Seconds of every point, by one server. A point that others disturbed is measured again, with
    other prompts."""
    server.resume()
    try:
        server.ask([words.take(NEW_LEN)], 4)  # it has slept
        return {
            point: undisturbed(partial(take, server, words), attempts, server.session)
            for point, (take, _) in POINTS.items()
        }
    finally:
        server.pause()


def figures_of(number: int, found: Mapping[str, Measured], attention_s: float) -> Iterator[Figure]:
    """Of a round: every system's points, ours over its bound, and each rival over ours."""
    for system, points in found.items():
        for point, (_, unit) in POINTS.items():
            got = points[point]
            value = got.value * (1e3 if unit == "ms" else 1.0)
            yield Figure(
                number, f"{system}, {point}", value, unit, got.attempts, int(got.contended)
            )
    ours = {point: got.value for point, got in found[OURS].items()}
    yield Figure(number, "attention at half the roof", 1e3 * attention_s, "ms")
    over = ours["warm"] / (ours["alone"] + attention_s)
    yield Figure(number, f"{OURS}, warm over its bound", over, "x")
    families = dict.fromkeys(name.partition(" ")[0] for name in found if name != OURS)
    for family in families:
        settings = [points for name, points in found.items() if name.partition(" ")[0] == family]
        for point in POINTS:
            best = min(points[point].value for points in settings)
            yield Figure(number, f"{point}, {family} over {OURS}", best / ours[point], "x")


def start_servers(args: argparse.Namespace, model: Model) -> list[Server]:
    """One after the other; who does not get ready, or does not answer, is left out with a word."""
    servers: list[Server] = []
    eos_ids = sorted(model.tokenizer.eos_ids)
    words = Words(model.tokenizer, "warm-up")
    rivals = None if args.ours else args.rivals
    for launch in launches(args.model, args.threads, rivals, args.only, eos_ids):
        try:
            servers.append(_warm_server(launch, FIRST_PORT + len(servers), words))
        except UnavailableError as error:
            say(f"{launch.name} is left out: {error}")
    return servers


def _warm_server(launch: Launch, port: int, words: Words) -> Server:
    server = Server(launch, port)
    try:
        # Shapes are compiled when they are first met.
        for _ in range(2):
            measure(server, words, attempts=1)
    except BaseException:
        server.close()
        raise
    say(f"{launch.name} is ready")
    return server


def run(args: argparse.Namespace) -> list[Figure]:
    """All rounds; the figures are written after each."""
    model = Model.of(args.model)
    ops = model.attention_ops(NEW_LEN, PREFIX_LEN)
    servers, attempts = start_servers(args, model), 1 if args.busy else MAX_ATTEMPTS
    figures: list[Figure] = []
    try:
        if not any(server.name == OURS for server in servers):
            raise SystemExit(f"{OURS} cannot be measured; the reason is above.")
        for number in range(args.rounds):
            rate = Roof(threads=args.threads).compute("fma", 3).together * 1e9
            found = {
                server.name: measure(
                    server, Words(model.tokenizer, f"{number} {server.name}"), attempts
                )
                for server in _in_turn(servers, number)
            }
            figures += figures_of(number, found, 2 * ops / rate)
            if args.out is not None:
                write_figures(args.out, figures)
            say(f"round {number + 1}/{args.rounds}")
    finally:
        for server in servers:
            server.close()
    return figures


def _in_turn(servers: Sequence[Server], number: int) -> list[Server]:
    """Another one begins in every round."""
    at = number % len(servers)
    return [*servers[at:], *servers[:at]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--threads", type=count, default=machine.usable_cores())
    parser.add_argument("--rivals", type=Path, default=default_folder())
    parser.add_argument("--only", action="append", default=[], help="a rival; may be repeated")
    parser.add_argument("--busy", action="store_true", help="measure although others are busy")
    parser.add_argument("--ours", action="store_true", help="without rivals")
    parser.add_argument("--out", type=Path, default=None)
    figures = run(parser.parse_args())
    print(json.dumps({name: round(value, 4) for name, (value, _, _) in medians(figures).items()}))


if __name__ == "__main__":
    main()
