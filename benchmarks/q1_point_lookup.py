"""
Q1: look-up of one key of 5 million in the latest checkpoint, in process, compared with DuckDB and RocksDB.

A look-up of ours is ``StateProxy.get``: it checks the version of the job in SQLite, finds the location, and reads the
value. Warm look-ups find the index and the block in memory. Cold ones begin with a new proxy and empty caches; the
files are in the cache of the operating system. The peers read the same rows, sorted by key, and answer the same random
keys. All sides run in this process and are measured in turn; a reading is the median of its look-ups, in microseconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from airflow_provider_statecheck.gateway.time_travel import AsOf
from airflow_provider_statecheck.queryable.opened_state import StateCache
from airflow_provider_statecheck.queryable.queries import ABSENT
from benchmarks import q1_peers as peers
from benchmarks.measure import Result, in_turn
from benchmarks.q1_peers import Get
from benchmarks.q1_state import Data, SavedState
from benchmarks.sides import ratio_result
from tests.object_store import KEY, SECRET, running_object_store

GOAL_MICROSECONDS = 150.0
AHEAD, FIFTH = 1.0, 1 / 5
_CHECKED, _WARM_UP = 20, 50_000
_UNIT = "µs"


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of keys, readings and look-ups."""

    keys: int = 5_000_000
    pairs: int = 5
    warm: int = 2_000
    """Look-ups per reading with everything in memory."""
    slow: int = 100
    """Look-ups per reading against a peer that takes milliseconds."""
    cold: int = 10
    """Look-ups per reading with empty caches, or from an object store."""


@dataclass
class Side:
    """
    Look-ups of random keys by one side.

    :param open_get: Returns the look-up.
    :param is_cold: Whether each look-up begins with ``open_get``, whose time is included.
    """

    open_get: Callable[[], Get]
    data: Data
    is_cold: bool = False
    durations: list[float] = field(default_factory=list)

    def reading(self, count: int) -> float:
        """Look random keys up, and return the median in microseconds."""
        keys = np.random.default_rng(len(self.durations)).choice(self.data.ids, count).tolist()
        taken = [_cold(self.open_get, key) for key in keys] if self.is_cold else _warm(self.open_get(), keys)
        self.durations.extend(taken)
        return float(np.median(taken))

    @property
    def distribution(self) -> dict[str, float]:
        """The distribution of all look-ups in microseconds."""
        found = np.array(self.durations)
        quantiles = {"median": 50, "p95": 95, "p99": 99}
        figures = {"total": found.sum(), "min": found.min(), "max": found.max()}
        figures |= {name: np.percentile(found, share) for name, share in quantiles.items()}
        return {name: round(float(value), 1) for name, value in figures.items()} | {"look-ups": len(found)}


def _warm(get: Get, keys: list[int]) -> list[float]:
    clock, taken = time.perf_counter, []
    for key in keys:
        begin = clock()
        get(key)
        taken.append((clock() - begin) * 1e6)
    return taken


def _cold(open_get: Callable[[], Get], key: int) -> float:
    begin = time.perf_counter()
    open_get()(key)
    return (time.perf_counter() - begin) * 1e6


def run(work: Path, *, quick: bool) -> list[Result]:
    """Measure local files and an object store, or a fiftieth of the keys on local files if ``quick``."""
    sizes = Sizes(keys=100_000, pairs=1, warm=500, slow=20, cold=3) if quick else Sizes()
    data = Data.of(sizes.keys)
    results = _local(work, data, sizes)
    if not quick:
        with running_object_store() as store:
            options = {"key": KEY, "secret": SECRET, "endpoint_url": store.direct_url}
            results += _remote(work, data, sizes, f"s3://{store.bucket}/q1", options)
    return results


def _local(work: Path, data: Data, sizes: Sizes) -> list[Result]:
    state = SavedState(data, (work / "checkpoints").as_uri(), {}, f"sqlite:///{work}/q1.db")
    parquet, rocks, arrow = str(work / "rows.parquet"), work / "rocks", work / "rows.arrow"
    peers.write_parquet(data.table, parquet, {})
    peers.write_rocksdb(data.table, rocks)
    peers.write_arrow(data.table, arrow)
    comparison = _Comparison(state, data, sizes, "local files")
    duck, rocksdb, mapped = (
        _checked(get, data)
        for get in (peers.duckdb_look_up(parquet, {}), peers.rocksdb_look_up(rocks), peers.arrow_look_up(arrow))
    )
    return [
        *comparison.with_limits(),
        comparison.warm("DuckDB's point query on Parquet", duck, AHEAD, sizes.slow),
        comparison.warm("RocksDB", rocksdb, FIFTH),
        comparison.warm("binary search in a mapped Arrow file", mapped, None),
        comparison.alone("RocksDB", rocksdb),
        comparison.cold("DuckDB's first query", lambda: peers.duckdb_look_up(parquet, {}), None),
    ]


def _remote(work: Path, data: Data, sizes: Sizes, base: str, options: dict[str, Any]) -> list[Result]:
    state = SavedState(data, base, options, f"sqlite:///{work}/q1-s3.db")
    parquet = f"{base}-rows.parquet"
    peers.write_parquet(data.table, parquet, options)
    comparison = _Comparison(state, data, sizes, "S3")
    duck = _checked(peers.duckdb_look_up(parquet, options), data)
    return [
        comparison.with_limits()[0],
        comparison.warm("DuckDB's point query on Parquet", duck, AHEAD, sizes.cold),
        comparison.uncached("DuckDB's point query on Parquet", duck),
        comparison.cold("DuckDB's first query", lambda: peers.duckdb_look_up(parquet, options), None),
    ]


class _Comparison:
    """Look-ups of ours on one storage, compared with peers."""

    def __init__(self, state: SavedState, data: Data, sizes: Sizes, place: str) -> None:
        self._state = state
        self._data = data
        self._sizes = sizes
        self._place = place
        self._cache = StateCache()
        self._proxy = state.proxy(self._cache)
        self._get = _checked(state.look_up(self._proxy), data)
        # A block has 4,096 keys, so this many of them reach every block.
        state.look_up_all(self._proxy, data.ids[:_WARM_UP].tolist())

    def with_limits(self) -> list[Result]:
        """Compare warm look-ups with the limit, in the latest checkpoint and in a given one."""
        as_of = _checked(self._state.look_up(self._proxy, AsOf(pointer=self._state.pointer)), self._data)
        return [
            self._within_limit("StateProxy.get of the latest checkpoint", self._get, 1.0),
            self._within_limit("StateProxy.get as of a pointer", as_of, 1.0),
        ]

    def warm(self, peer: str, get: Get, goal: float | None, count: int | None = None) -> Result:
        """Compare warm look-ups."""
        return self._result(f"warm, StateProxy.get vs {peer}", self._side(self._get), self._side(get), goal, count)

    def alone(self, peer: str, get: Get) -> Result:
        """Compare warm look-ups of the state server alone, without the check of the version."""
        served = _checked(self._state.served(self._cache), self._data)
        return self._result(f"warm, state server alone vs {peer}", self._side(served), self._side(get), None)

    def uncached(self, peer: str, get: Get) -> Result:
        """Compare look-ups whose block is read, with the index in memory."""
        ours = Side(self._without_blocks, self._data, is_cold=True)
        theirs = Side(lambda: get, self._data, is_cold=True)
        return self._result(f"block not cached, StateProxy.get vs {peer}", ours, theirs, None, self._sizes.cold)

    def cold(self, peer: str, open_get: Callable[[], Get], goal: float | None) -> Result:
        """Compare first look-ups."""
        ours = Side(lambda: self._state.look_up(self._state.proxy(StateCache())), self._data, is_cold=True)
        theirs = Side(open_get, self._data, is_cold=True)
        return self._result(f"cold, StateProxy.get vs {peer}", ours, theirs, goal, self._sizes.cold)

    def _without_blocks(self) -> Get:
        self._cache.blocks.clear()
        return self._get

    def _side(self, get: Get) -> Side:
        return Side(lambda: get, self._data)

    def _within_limit(self, case: str, get: Get, goal: float) -> Result:
        side = self._side(get)
        readings = in_turn(lambda: side.reading(self._sizes.warm), lambda: GOAL_MICROSECONDS, self._sizes.pairs)
        sizes = self._about(ours=side)
        return ratio_result("Q1", f"{self._place}: warm, {case} vs the limit", readings, goal, sizes, _UNIT)

    def _result(self, case: str, ours: Side, theirs: Side, goal: float | None, count: int | None = None) -> Result:
        count = count or self._sizes.warm
        readings = in_turn(lambda: ours.reading(count), lambda: theirs.reading(count), self._sizes.pairs)
        sizes = self._about(ours=ours, peer=theirs)
        return ratio_result("Q1", f"{self._place}: {case}", readings, goal, sizes, _UNIT)

    def _about(self, **sides: Side) -> dict[str, Any]:
        sizes = {"keys": self._sizes.keys, "bytes of state": self._state.size_bytes}
        return sizes | {f"{name}, {_UNIT}": side.distribution for name, side in sides.items()}


def _checked(get: Get, data: Data) -> Get:
    """Return a look-up that finds the values of keys and nothing for others."""
    for key, balance in zip(data.ids[:_CHECKED].tolist(), data.balances[:_CHECKED].tolist(), strict=True):
        if get(key) != balance:
            raise RuntimeError(f"Expected {balance} as the value of {key}, found {get(key)}.")
    if get(-1) not in (None, ABSENT):
        raise RuntimeError(f"Expected no value of an unknown key, found {get(-1)}.")
    return get
