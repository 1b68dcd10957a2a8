"""What the prefix cache promises, case by case: which prefix is found at every boundary, and who
goes first when memory is needed."""

from __future__ import annotations

import math
from array import array

import pytest

from headrace.backends.layout import BLOCK_LEN, make_layout
from headrace.kv.pool import BlockPool
from headrace.kv.radix.base import DEFAULT_RETENTION, Retention, RootKey
from headrace.kv.radix.order import FORGET_S, MAX_HITS
from headrace.kv.radix.tree import MIN_TAIL_LEN, RadixCache
from headrace.kv.tables import blocks_for
from tests.support.cached_sequences import CacheWorld

KEY = RootKey("m")
# So few that tests of it are short.
MAX_DUE = 8


def make_world(num_blocks: int, windows: tuple[int, ...] = (0,)) -> CacheWorld:
    layout = make_layout(windows, 1, 8)
    pool = BlockPool(num_blocks)
    return CacheWorld(layout, pool, RadixCache(layout, pool))


def text(name: int, length: int) -> array[int]:
    """Tokens of which no two names share any."""
    return array("i", range(name * 10_000, name * 10_000 + length))


def serve(
    world: CacheWorld,
    tokens: array[int],
    retention: Retention = DEFAULT_RETENTION,
    key: RootKey = KEY,
    *,
    used: bool = True,
) -> int:
    """A request from its beginning to its end; how many of its tokens were found."""
    found = world.start(key, tokens, len(tokens) - 1)
    seq = world.live[-1]
    assert world.run(seq, len(tokens))
    world.insert(seq, with_tail=True)
    world.end(seq, retention, used=used)
    world.check()
    return found


def cached(world: CacheWorld, tokens: array[int], key: RootKey = KEY) -> int:
    return world.cache.look(key, tokens, len(tokens)).num_tokens


def without_stub(length: int) -> int:
    """What can be reused of so many tokens: a few behind the last whole block are not worth it."""
    return length if length % BLOCK_LEN >= MIN_TAIL_LEN else length // BLOCK_LEN * BLOCK_LEN


@pytest.mark.parametrize("windows", [(0,), (0, 20), (20, 24)])
@pytest.mark.parametrize("shared", [0, 1, 15, 16, 17, 31, 32, 33, 47, 48, 49])
@pytest.mark.parametrize("first_len", [15, 16, 17, 32, 48, 49, 80])
def test_every_boundary(windows: tuple[int, ...], shared: int, first_len: int) -> None:
    """A second text that parts from the first after `shared` tokens finds what both have, apart
    from a few tokens at the end, and a third finds what the second left."""
    world = make_world(60, windows)
    first = text(1, first_len)
    serve(world, first)
    second = first[:shared] + text(2, 40)
    assert serve(world, second) == without_stub(min(shared, first_len))
    assert cached(world, second) == without_stub(len(second))
    assert cached(world, first) == without_stub(first_len)
    world.drain()


def test_a_hit_is_limited() -> None:
    world = make_world(20)
    tokens = text(1, 64)
    serve(world, tokens)
    for limit, found in ((64, 64), (63, 63), (49, 48), (48, 48), (47, 47), (4, 4), (3, 0), (0, 0)):
        assert world.cache.look(KEY, tokens, limit).num_tokens == found
        assert world.start(KEY, tokens, limit) == found
    world.check()


def test_keys_never_share() -> None:
    """Whatever strings a client sends: fields are compared, not a text made of them."""
    world = make_world(60)
    tokens = text(1, 32)
    keys = [
        RootKey("m", 0, ""), RootKey("m", 1, ""), RootKey("m", 0, "1"), RootKey("m|0", 0, ""),
        RootKey("m", 0, "m"), RootKey("", 0, "m"), RootKey("m", 0, " "), RootKey("m", 0, "\x00"),
    ]  # fmt: skip
    for key in keys:
        assert serve(world, tokens, key=key) == 0
    for key in keys:
        assert serve(world, tokens, key=key) == 31
    world.drain()


def test_a_scan_of_one_off_prompts_leaves_what_is_hot() -> None:
    """A system prompt that was used a few times outlives several pools full of prompts that
    nobody sends twice, and goes in the end when nobody uses it."""
    world = make_world(40)
    system = text(1, 160)
    for user in range(4):
        serve(world, system + text(2 + user, 10))
    num_scanned = 0
    while cached(world, system) == len(system):
        serve(world, text(100 + num_scanned, 64))
        num_scanned += 4
    assert 2 * 40 < num_scanned < 2 * MAX_HITS * 40


def test_eviction_takes_single_blocks_off_the_end() -> None:
    world = make_world(30)
    long = text(1, 320)
    serve(world, long)
    serve(world, text(2, 64), Retention(priority=90))
    for gone in range(1, 20):
        assert world.cache.evict(1) == 1
        assert cached(world, long) == 320 - gone * BLOCK_LEN
        assert cached(world, text(2, 64)) == 64
    world.drain()


def test_a_pinned_path_stays_whatever_is_asked_for() -> None:
    world = make_world(30)
    serve(world, text(1, 80))
    serve(world, text(2, 80))
    world.start(KEY, text(1, 80), 48)
    assert world.cache.evict(100) == 2 + 5
    assert cached(world, text(1, 80)) == 48
    assert cached(world, text(2, 80)) == 0
    world.drain()


def test_lower_priorities_go_first() -> None:
    world = make_world(30)
    for name, priority in ((1, 50), (2, 100), (3, 0), (4, 51)):
        serve(world, text(name, 48), Retention(priority=priority))
    gone = []
    while world.cache.evict(3):
        gone += [n for n in (1, 2, 3, 4) if n not in gone and not cached(world, text(n, 48))]
    assert gone == [3, 1, 4, 2]


def test_what_is_shared_keeps_the_highest_priority_and_the_latest_deadline() -> None:
    world = make_world(60)
    system = text(1, 32)
    serve(world, system + text(2, 32), Retention(ttl_s=10.0))
    serve(world, system + text(3, 32), Retention(priority=90, ttl_s=20.0))
    serve(world, text(4, 32))
    world.cache.advance(9.0)
    assert cached(world, system + text(2, 32)) == 64
    world.cache.advance(10.0)
    assert cached(world, system + text(2, 32)) == 32
    assert world.cache.evict(2) == 2  # of the ordinary text: the others are of a higher class
    assert cached(world, text(4, 32)) == 0
    assert cached(world, system + text(3, 32)) == 64
    world.cache.advance(20.0)
    assert cached(world, system) == 0
    assert world.pool.num_free == world.pool.num_blocks
    assert world.cache.counters.num_evicted["expired"] == 6


def test_a_raised_priority_ends_and_the_text_stays() -> None:
    """One use wants it kept for five seconds before all others, another use just has been."""
    world = make_world(60)
    tokens = text(1, 48)
    serve(world, tokens)
    serve(world, tokens, Retention(priority=100, ttl_s=5.0))
    serve(world, text(2, 48), Retention(priority=60))
    world.cache.advance(6.0)
    assert cached(world, tokens) == 48
    assert world.cache.evict(1) == 1
    assert cached(world, tokens) == 32
    assert cached(world, text(2, 48)) == 48


def test_nothing_is_kept_with_no_time_to_live() -> None:
    world = make_world(60)
    serve(world, text(1, 50), Retention(ttl_s=0.0))
    assert world.pool.num_free == world.pool.num_blocks


@pytest.mark.parametrize("is_path", [False, True])
def test_a_step_drops_only_so_much_of_what_has_expired(
    is_path: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it is many leaves or a path that becomes one leaf after the other; the next steps
    drop the rest."""
    monkeypatch.setattr("headrace.kv.radix.tree.MAX_DUE", MAX_DUE)
    num = 2 * MAX_DUE + 5
    world = make_world(2 * num)
    for index in range(num):
        tokens = text(1, (index + 1) * BLOCK_LEN) if is_path else text(2 + index, BLOCK_LEN)
        serve(world, tokens, Retention(priority=90, ttl_s=10.0))
    cache, expired = world.cache, world.cache.counters.num_evicted
    cache.advance(9.0)
    assert (expired["expired"], cache.next_deadline()) == (0, 10.0)
    for num_gone in (MAX_DUE, 2 * MAX_DUE):
        cache.advance(10.0)
        assert expired["expired"] == num_gone
        assert cache.next_deadline() <= 10.0
    cache.advance(10.0)
    assert (expired["expired"], cache.next_deadline()) == (num, math.inf)
    world.drain()


def test_the_rest_of_what_has_expired_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.kv.radix.tree.MAX_DUE", MAX_DUE)
    world = make_world(4 * MAX_DUE)
    for index in range(2 * MAX_DUE):
        tokens = text(1, (index + 1) * BLOCK_LEN)
        serve(world, tokens, Retention(priority=90, ttl_s=10.0))
    serve(world, text(2, BLOCK_LEN), Retention(priority=0))
    world.cache.advance(10.0)
    assert world.cache.evict(1) >= 1
    assert cached(world, text(2, BLOCK_LEN)) == BLOCK_LEN
    world.drain()


def test_uses_are_forgotten_in_the_end() -> None:
    """What was used often goes after what was used later but once, until nobody has used it for
    a while: then in order of their last use."""
    world = make_world(60)
    for _ in range(4):
        serve(world, text(1, 64))
    world.cache.advance(1.0)
    serve(world, text(2, 64))
    assert world.cache.evict(1) == 1
    assert (cached(world, text(1, 64)), cached(world, text(2, 64))) == (64, 48)
    world.cache.advance(FORGET_S - 1.0)
    assert world.cache.evict(1) == 1
    assert (cached(world, text(1, 64)), cached(world, text(2, 64))) == (64, 32)
    world.cache.advance(FORGET_S)
    assert world.cache.evict(1) == 1
    assert (cached(world, text(1, 64)), cached(world, text(2, 64))) == (48, 32)
    world.drain()


@pytest.mark.parametrize("is_gone_on_with", [False, True])
def test_partly_filled_blocks_are_worth_what_is_made_of_them(is_gone_on_with: bool) -> None:
    """Where nobody goes on behind them they go before whole blocks of earlier prompts; where
    everybody does, when it is their turn."""
    world = make_world(40)
    for index in range(100):
        prompt = text(10 + index, 40)
        serve(world, prompt)
        if is_gone_on_with:
            serve(world, prompt + text(300 + index, 9))
    world.cache.evict(40)
    serve(world, text(1, 64))
    serve(world, text(3, 8), Retention(priority=0))
    assert world.cache.evict(1) == 1
    serve(world, text(2, 47))
    assert world.cache.evict(1) == 1
    assert cached(world, text(1, 64)) == (48 if is_gone_on_with else 64)
    assert cached(world, text(2, 47)) == (47 if is_gone_on_with else 32)
    world.drain()


def test_a_pool_that_fills_for_the_first_time_has_an_order() -> None:
    """Before the first eviction, too, time passes: a long prompt at the beginning is no better
    than a short one at the end."""
    world = make_world(100)
    serve(world, text(1, 8 * BLOCK_LEN))
    for name in range(2, 42):
        serve(world, text(name, BLOCK_LEN))
    assert world.cache.evict(10) == 10
    assert cached(world, text(1, 8 * BLOCK_LEN)) < 8 * BLOCK_LEN
    assert cached(world, text(41, BLOCK_LEN)) == BLOCK_LEN
    world.drain()


def test_what_nobody_goes_on_with_goes_first_until_it_is_used() -> None:
    world = make_world(60)
    prompt = text(1, 40)
    arms = [prompt + text(2 + i, 24) for i in range(3)]
    for arm in arms:
        serve(world, arm)
    serve(world, text(9, 64), Retention(priority=0))
    for arm in (arms[0], arms[2]):
        world.cache.abandon(KEY, arm, len(prompt))
    serve(world, arms[2])
    assert world.cache.evict(2) == 2
    assert [cached(world, arm) for arm in arms] == [40, 64, 64]
    assert cached(world, text(9, 64)) == 64
    world.cache.abandon(KEY, arms[1], len(prompt))
    world.cache.abandon(KEY, text(7, 50), 3)
    assert world.cache.evict(2) == 2
    assert [cached(world, arm) for arm in arms] == [40, 40, 64]
    world.drain()


def test_an_abandoned_use_goes_before_others_of_its_age() -> None:
    world = make_world(60)
    serve(world, text(1, 32))
    serve(world, text(2, 32), used=False)
    serve(world, text(3, 32))
    assert world.cache.evict(2) == 2
    assert [cached(world, text(i, 32)) for i in (1, 2, 3)] == [32, 0, 32]


def test_a_window_needs_only_what_it_sees() -> None:
    """Window blocks inside a run go first, and a hit at its end does not miss them."""
    world = make_world(400, (0, 40))
    tokens = text(1, 480)
    serve(world, tokens)
    inner = blocks_for(480) - (blocks_for(40) + 1)
    assert world.cache.evict(inner) == inner
    assert world.cache.counters.num_evicted["window"] == inner
    assert cached(world, tokens) == 480
    # A text that parts inside the run finds nothing to start from, and leaves what the next needs.
    assert serve(world, tokens[:240] + text(2, 60)) == 0
    assert serve(world, tokens[:240] + text(3, 60)) == 240
    world.drain()


def test_the_last_resort_are_windows_of_held_paths() -> None:
    world = make_world(60, (0, 20))
    tokens = text(1, 320)
    serve(world, tokens[:160])
    world.start(KEY, tokens, 160)
    seq = world.live[-1]
    assert world.run(seq, 160)
    world.trim(seq)
    num_idle = world.pool.num_idle
    assert num_idle > 0
    assert world.cache.evict(num_idle) == num_idle
    assert world.pool.num_idle == 0
    world.drain()


def test_clearing_leaves_what_is_held() -> None:
    world = make_world(60)
    serve(world, text(1, 64) + text(2, 32))
    serve(world, text(1, 64) + text(3, 30))
    world.start(KEY, text(1, 64), 40)
    assert world.cache.clear() == 2 + 2 + 2
    assert cached(world, text(1, 64)) == 32
    world.drain()


def test_a_hold_ends_once() -> None:
    world = make_world(20)
    found = world.cache.match(KEY, text(1, 4), 4)
    world.cache.release(found.hold)
    with pytest.raises(AttributeError):
        world.cache.release(found.hold)
