"""Bounds of JSON from storage."""

from __future__ import annotations

import json
import tracemalloc

import pytest

from airflow_provider_statecheck.storage.stored_json import DEEPEST, require_flat

MEBIBYTE = 1024 * 1024


def test_a_check_of_many_texts_takes_less_memory_than_they_do() -> None:
    data = json.dumps([{f"name {i}": "a text"} for i in range(200_000)]).encode()
    tracemalloc.start()
    try:
        require_flat(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # What is around each text is an object of its own.
    assert peak < 4 * len(data)


@pytest.mark.parametrize(
    "text", ["[" * (MEBIBYTE + 9), 'x"[' * 400_000, "\\[" * 400_000], ids=["long", "quotes", "escapes"]
)
@pytest.mark.parametrize("before", [0, 1])
def test_brackets_in_texts_of_any_length_at_any_place_are_not_counted(text: str, before: int) -> None:
    texts = [" " * (MEBIBYTE - 7 + before), text, text]
    require_flat(json.dumps([texts, [[]] * DEEPEST, text]).encode())
    nested = json.dumps([texts, text]).encode() + b"[" * (DEEPEST + 1)
    with pytest.raises(ValueError, match="nested more than"):
        require_flat(nested + b"]" * (DEEPEST + 1))
