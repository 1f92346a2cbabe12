"""What an LRU cache keeps, how often it loads, and reads of it that do not wait."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier, Event, Thread
from typing import Any

import pytest

from airflow_provider_statecheck.cached_reads import LruCache, WouldWaitError, without_waiting


def text_of(length: int) -> str:
    return "x" * length


def unused() -> Any:
    raise AssertionError("the value is cached")


def test_value_that_was_used_least_recently_makes_room() -> None:
    cache = LruCache[str, str](3, len)
    for key in "abc":
        cache.put(key, key)
    assert cache.get("a") == "a"
    cache.put("d", "d")
    assert [cache.get(key) for key in "abcd"] == ["a", None, "c", "d"]
    assert cache.nbytes == 3


def test_value_beyond_the_capacity_replaces_only_its_own_predecessor() -> None:
    cache = LruCache[str, str](3, len)
    cache.put("a", "1")
    cache.put("b", "2")
    cache.put("b", "too long")
    assert (cache.get("a"), cache.get("b"), cache.nbytes) == ("1", None, 1)


def test_value_is_loaded_once_and_an_error_is_not_kept() -> None:
    cache = LruCache[str, str](3, len)

    def fails() -> str:
        raise ValueError("not now")

    with pytest.raises(ValueError, match="not now"):
        cache.get_or_load("a", fails)
    assert cache.get_or_load("a", lambda: "1") == "1"
    assert cache.get_or_load("a", unused) == "1"
    cache.clear()
    assert (cache.get("a"), cache.nbytes) == (None, 0)


def test_size_stays_within_the_capacity_when_threads_load_at_once() -> None:
    cache, start = LruCache[int, str](40, len), Barrier(4)

    def load(first: int) -> None:
        start.wait()
        for n in range(first, 2_100, 31):
            assert cache.get_or_load(n % 30, partial(text_of, n % 30)) == text_of(n % 30)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(load, range(4)))
    assert cache.nbytes <= 40
    assert cache.nbytes == sum(len(cache.get(n) or "") for n in range(30))


def test_load_of_another_thread_is_not_waited_for() -> None:
    cache, began, end = LruCache[str, str](10, len), Event(), Event()

    def load() -> str:
        began.set()
        end.wait()
        return "value"

    loading = Thread(target=cache.get_or_load, args=("key", load))
    loading.start()
    began.wait()
    with without_waiting(), pytest.raises(WouldWaitError):
        cache.get_or_load("key", load)
    end.set()
    loading.join()
    with without_waiting():
        assert cache.get_or_load("key", load) == "value"
