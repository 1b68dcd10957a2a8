"""The prefix cache as a state machine: the tree does what the naive twin does, block by block; no
interleaving loses a block, shows a wrong one, or keeps one that could be freed."""

from __future__ import annotations

from array import array
from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from headrace.backends.layout import BLOCK_LEN, KVLayout, make_layout
from headrace.kv.pool import BlockPool
from headrace.kv.radix.base import CAUSES, PrefixCache, Retention, RootKey, priority_at
from headrace.kv.radix.naive import Entry, NaiveCache, best_hit
from headrace.kv.radix.node import TOKEN_BYTES
from headrace.kv.radix.order import PLACE_MARGIN
from headrace.kv.radix.tree import MIN_TAIL_LEN, RadixCache
from tests.support.cached_sequences import CacheWorld

KEYS = [RootKey("m"), RootKey("m"), RootKey("m"), RootKey("m", salt="a"), RootKey("m", adapter=1)]
RETENTIONS = [
    Retention(),
    Retention(),
    Retention(priority=80),
    Retention(priority=0),
    Retention(ttl_s=5.0),
    Retention(priority=80, ttl_s=9.0),
]
# Lengths around a block's, all different in their first token or only behind it.
PARTS = [[1] * 16, [1] * 7 + [2] * 9, [2] * 21, [3] * 40, [3] * 5, [1] * 15, [2] * 16 + [4]]
has_live = precondition(lambda self: bool(self.worlds[0].live))


def tree_entries(cache: RadixCache) -> list[Entry]:
    """The tree's content, block by block."""
    entries = []
    prefixes: dict[int, tuple[int, ...]] = {}
    for key, node in cache.nodes():
        above = () if node.parent is None else prefixes[id(node.parent)]
        tokens = above + tuple(array("i", node.tokens))
        prefixes[id(node)] = tokens
        assert len(node.tokens) // TOKEN_BYTES <= len(node) * BLOCK_LEN
        for index in range(len(node)):
            end = min(len(tokens), (node.start + index + 1) * BLOCK_LEN)
            entries.append(Entry(key, tokens[:end], [table[index] for table in node.blocks]))
    return entries


def recording_tree(layout: KVLayout, pool: BlockPool) -> RadixCache:
    return RadixCache(layout, pool, record_events=True)


def aloof_tree(layout: KVLayout, pool: BlockPool) -> RadixCache:
    """One that the pool does not ask for single blocks: where they lie, no twin can know. It finds
    them, however many nodes that takes: nor does the twin know these."""
    cache = recording_tree(layout, pool)
    cache._places.max_nodes = 1 << 20
    pool.reclaim_at = None
    return cache


def evict_at(naive: NaiveCache, key: RootKey, tokens: tuple[int, ...]) -> bool:
    """What the tree does with the block that these tokens end with: it goes with all that follow
    it, if nobody holds one and none is worth half a use more than what would go next."""
    gone = [e for e in naive.entries if e.key == key and e.tokens[: len(tokens)] == tokens]
    priority, least, _ = min(map(naive._order, naive._leaves()), default=(0, 0.0, 0))
    used = [e for e in gone if priority_at(naive._deadlines(e), naive._now) is not None]
    worths = [naive._order(e)[:2] for e in used]
    if any(p > priority or worth > least + PLACE_MARGIN for p, worth in worths):
        return False
    if not naive._leaves() or any(map(naive._held, gone)):
        return False
    for entry in sorted(gone, key=lambda e: -len(e.tokens)):
        naive._drop(entry, "capacity")
    naive._expire()
    return True


class CacheMachine(RuleBasedStateMachine):
    """Sequences begin, run, enter the cache, fork and end, in one or several worlds at once."""

    windows: tuple[int, ...] = (0,)
    num_blocks = 40

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.worlds: list[CacheWorld] = []
        self.cursors: dict[tuple[RootKey, tuple[int, ...]], object] = {}
        self.mirror: dict[int, tuple[RootKey, tuple[int, ...]]] = {}

    def add_world(self, make: Callable[[KVLayout, BlockPool], PrefixCache]) -> None:
        layout = make_layout(self.windows, 1, 8)
        pool = BlockPool(self.num_blocks)
        self.worlds.append(CacheWorld(layout, pool, make(layout, pool)))

    @initialize()
    def begin(self) -> None:
        self.add_world(recording_tree)

    def draw_tokens(self, data: st.DataObject) -> array[int]:
        """Texts out of few parts, so that many begin alike, part inside blocks, and return."""
        tokens = array("i", PARTS[data.draw(st.sampled_from([0, 3]))])
        for part in data.draw(st.lists(st.sampled_from(range(len(PARTS))), max_size=3)):
            tokens.extend(PARTS[part])
        return tokens

    def draw_live(self, data: st.DataObject) -> int:
        return data.draw(st.integers(0, len(self.worlds[0].live) - 1))

    @rule(data=st.data(), key=st.sampled_from(KEYS), short=st.integers(0, 2))
    def begin_sequence(self, data: st.DataObject, key: RootKey, short: int) -> None:
        self.start(data, key, short)

    def start(self, data: st.DataObject, key: RootKey, short: int) -> None:
        tokens = self.draw_tokens(data)
        limit = max(0, len(tokens) - short)
        looks = [w.cache.look(key, tokens, limit) for w in self.worlds]
        # What an earlier look for the same tokens had found may have gone, grown or been cut.
        cursor = self.cursors.get((key, tuple(tokens)))
        again = self.worlds[0].cache.look(key, tokens, limit, cursor)
        assert again == looks[0]
        self.cursors[key, tuple(tokens)] = again.cursor
        assert len({(x.num_tokens, x.depth, x.num_busy) for x in looks}) == 1
        self.check_hit(key, tokens, limit, looks[0].num_tokens)
        found = [world.start(key, tokens, limit) for world in self.worlds]
        assert found == [looks[0].num_tokens] * len(self.worlds)
        assert len({world.live[-1].computed for world in self.worlds}) == 1

    def check_hit(self, key: RootKey, tokens: array[int], limit: int, num_tokens: int) -> None:
        """What a world of its own must find."""

    @has_live
    @rule(data=st.data(), num_rows=st.sampled_from([1, 3, 15, 16, 17, 40]), enter=st.booleans())
    def run_rows(self, data: st.DataObject, num_rows: int, enter: bool) -> None:
        index = self.draw_live(data)
        ran = [world.run(world.live[index], num_rows) for world in self.worlds]
        assert len(set(ran)) == 1
        if enter:
            for world in self.worlds:
                world.insert(world.live[index])
        if ran[0]:
            for world in self.worlds:
                world.trim(world.live[index])

    @rule(data=st.data(), key=st.sampled_from(KEYS), retention=st.sampled_from(RETENTIONS))
    def serve(self, data: st.DataObject, key: RootKey, retention: Retention) -> None:
        """A whole life at once: what most of the content comes from."""
        self.start(data, key, 1)
        seqs = [world.live[-1] for world in self.worlds]
        while seqs[0].computed < len(seqs[0].tokens):
            ran = [world.run(seq, 40) for world, seq in zip(self.worlds, seqs, strict=True)]
            for world, seq in zip(self.worlds, seqs, strict=True):
                world.insert(seq)
                world.trim(seq)
            if not ran[0]:
                break
        for world, seq in zip(self.worlds, seqs, strict=True):
            world.insert(seq, with_tail=True)
            world.end(seq, retention, used=True)

    @has_live
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        index = self.draw_live(data)
        seq = self.worlds[0].live[index]
        more = array("i", [data.draw(st.integers(1, 3))] * data.draw(st.integers(1, 40)))
        tokens = seq.tokens[: seq.computed] + more
        assert len({world.fork(world.live[index], tokens) for world in self.worlds}) == 1

    @has_live
    @rule(
        data=st.data(),
        retention=st.sampled_from(RETENTIONS),
        keep=st.booleans(),
        used=st.booleans(),
    )
    def end(self, data: st.DataObject, retention: Retention, keep: bool, used: bool) -> None:
        index = self.draw_live(data)
        for world in self.worlds:
            if keep:
                world.insert(world.live[index], with_tail=True)
            world.end(world.live[index], retention, used=used)

    @rule(data=st.data(), key=st.sampled_from(KEYS), kept=st.integers(0, 64))
    def abandon(self, data: st.DataObject, key: RootKey, kept: int) -> None:
        tokens = self.draw_tokens(data)
        for world in self.worlds:
            world.cache.abandon(key, tokens, min(kept, len(tokens)))

    @rule(num_blocks=st.integers(1, 9))
    def evict(self, num_blocks: int) -> None:
        for world in self.worlds:
            idle = world.pool.num_idle
            freed = world.cache.evict(num_blocks)
            assert freed >= min(num_blocks, idle), "an idle block could not be evicted"

    @rule(seconds=st.sampled_from([0.0, 2.0, 6.0, 400.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        for world in self.worlds:
            world.cache.advance(self.now)

    @rule(chance=st.integers(0, 9))
    def clear(self, chance: int) -> None:
        if chance:
            return
        assert len({world.cache.clear() for world in self.worlds}) == 1

    @invariant()
    def nothing_is_lost(self) -> None:
        for world in self.worlds:
            world.check()
            counters = world.cache.counters
            gone = sum(counters.num_evicted[cause] for cause in CAUSES)
            assert counters.num_inserted - gone == world.cache.num_blocks

    @invariant()
    def events_tell_the_content(self) -> None:
        """A mirror that knows nothing but the events has every block with its tokens."""
        if not self.worlds or self.windows[0] > 0:
            return
        cache = self.worlds[0].cache
        assert isinstance(cache, RadixCache)
        for event in cache.take_events():
            if event.kind == "evict":
                for block in event.blocks:
                    del self.mirror[block]
                continue
            assert event.key is not None
            path = () if event.parent < 0 else self.mirror[event.parent][1]
            for index, block in enumerate(event.blocks):
                path += event.tokens[index * BLOCK_LEN : (index + 1) * BLOCK_LEN]
                self.mirror[block] = event.key, path
        entries = [e for e in tree_entries(cache) if e.tokens]
        assert self.mirror == {e.blocks[0]: (e.key, e.tokens) for e in entries}

    def teardown(self) -> None:
        for world in self.worlds:
            world.drain()


class TwinMachine(CacheMachine):
    """Full attention: every hit and every victim is the naive twin's."""

    @initialize()
    def begin(self) -> None:
        self.add_world(aloof_tree)
        self.add_world(NaiveCache)

    @rule(data=st.data())
    def evict_in_the_middle(self, data: st.DataObject) -> None:
        """Of a block that nobody holds, wherever it is in the tree."""
        tree, naive = (world.cache for world in self.worlds)
        assert isinstance(tree, RadixCache)
        assert isinstance(naive, NaiveCache)
        pool = self.worlds[0].pool
        entries = [e for e in tree_entries(tree) if e.tokens and pool.count(e.blocks[-1]) == 1]
        if entries:
            entry = data.draw(st.sampled_from(entries))
            is_gone = tree.evict_at(entry.blocks[-1])
            assert is_gone == evict_at(naive, entry.key, entry.tokens)
            assert is_gone == (pool.count(entry.blocks[-1]) == 0)

    @invariant()
    def both_have_the_same(self) -> None:
        if not self.worlds:
            return
        tree, naive = (world.cache for world in self.worlds)
        assert isinstance(tree, RadixCache)
        assert isinstance(naive, NaiveCache)
        ours = {(e.key, e.tokens) for e in tree_entries(tree) if e.tokens}
        assert ours == {(e.key, e.tokens) for e in naive.entries}
        assert tree.counters == naive.counters
        assert len({world.pool.num_idle for world in self.worlds}) == 1
        assert len({world.cache.next_deadline() for world in self.worlds}) == 1


class TwoGroupsMachine(TwinMachine):
    """The same with two groups of full attention, whose blocks go together."""

    windows = (0, 0, 0, 40)
    num_blocks = 80

    @initialize()
    def begin(self) -> None:
        layout = make_layout((0, 0, 0, 40), 1, 8)
        full = KVLayout(layout.groups[:2], layout.layers_per_block, 1, 8)
        for make in (aloof_tree, NaiveCache):
            pool = BlockPool(self.num_blocks)
            cache: PrefixCache = make(full, pool)
            self.worlds.append(CacheWorld(full, pool, cache))


class PlacesMachine(CacheMachine):
    """Full attention, and a pool that asks for single blocks: nothing is lost, whoever hits."""

    num_blocks = 24


class WindowMachine(CacheMachine):
    """Full attention beside windows: hits are those that trying every length finds."""

    windows = (0, 20, 20)
    num_blocks = 60

    def check_hit(self, key: RootKey, tokens: array[int], limit: int, num_tokens: int) -> None:
        world = self.worlds[0]
        assert isinstance(world.cache, RadixCache)
        entries = [e for e in tree_entries(world.cache) if e.tokens]
        wanted = tuple(tokens[:limit])
        best, path, _ = best_hit(entries, world.layout, key, wanted, MIN_TAIL_LEN)
        # Of the blocks that go on in different ways the tree looks at the two nearest only.
        assert len(path) * BLOCK_LEN <= num_tokens <= best


class OnlyWindowsMachine(WindowMachine):
    """No group sees everything: whole positions lose their blocks."""

    windows = (20, 24, 20)
    num_blocks = 60


_SETTINGS = settings(
    max_examples=80,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
for machine in (
    TwinMachine,
    TwoGroupsMachine,
    PlacesMachine,
    WindowMachine,
    OnlyWindowsMachine,
):
    machine.TestCase.settings = _SETTINGS
TestTwin = TwinMachine.TestCase
TestTwoGroups = TwoGroupsMachine.TestCase
TestPlaces = PlacesMachine.TestCase
TestWindow = WindowMachine.TestCase
TestOnlyWindows = OnlyWindowsMachine.TestCase
