"""Sizes of answers: an answer is encoded part by part, up to the limit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from airflow_provider_statecheck.api import state_reads
from airflow_provider_statecheck.api.state_reads import small_json
from airflow_provider_statecheck.checkpoint.codec import encode, json_parts
from airflow_provider_statecheck.exceptions import RequestLimitError


def small_json_of(answer: Any) -> bytes:
    return small_json(json_parts(answer))


@dataclass(frozen=True)
class Page:
    name: str
    at: datetime
    rows: tuple[Any, ...]
    more: tuple[Any, ...] = ()


PAGE = Page("é\n", datetime(2026, 1, 31, tzinfo=UTC), ((1, "a"), (2, None)))


@pytest.mark.parametrize("answer", [(), [], (1, "a", {"b": []}), (PAGE, PAGE), {"a": 1, "b": [], "c": [1, {}]}, PAGE])
def test_answer_is_the_json_of_its_values(answer: Any) -> None:
    assert json.loads(small_json_of(answer)) == json.loads(json.dumps(encode(answer)))


def test_elements_of_a_generator_are_a_list() -> None:
    assert json.loads(small_json_of({"name": "a", "rows": (n for n in range(3))})) == {"name": "a", "rows": [0, 1, 2]}


@pytest.mark.parametrize("field", ["rows", None])
def test_elements_above_the_limit_are_not_made(monkeypatch: pytest.MonkeyPatch, field: str | None) -> None:
    monkeypatch.setattr(state_reads, "MAX_ANSWER_BYTES", 1000)
    made: list[str] = []

    def elements() -> Iterator[str]:
        while True:
            made.append("x" * 100)
            yield made[-1]

    with pytest.raises(RequestLimitError, match="at most 1000 bytes"):
        small_json_of({"name": "a", field: elements()} if field else elements())
    assert len(made) == 10


def test_answer_of_the_limit_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(json.dumps(encode(asdict(PAGE)), ensure_ascii=False, separators=(",", ":")).encode())
    monkeypatch.setattr(state_reads, "MAX_ANSWER_BYTES", size)
    assert len(small_json_of(PAGE)) == size
    monkeypatch.setattr(state_reads, "MAX_ANSWER_BYTES", size - 1)
    with pytest.raises(RequestLimitError):
        small_json_of(PAGE)
