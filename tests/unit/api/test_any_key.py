"""No key and no user key makes a query fail: whatever is sent is answered, or refused with what to write instead."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, NamedTuple
from urllib.parse import quote
from uuid import UUID

import pytest
from hypothesis import example, given, settings, strategies as st

from airflow_provider_statecheck.gateway.verbs import decode_error
from airflow_provider_statecheck.state.descriptors import MapStateDescriptor
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from tests.key_values import EDGES, STRATEGIES, TYPES
from tests.soak import every_nth
from tests.unit.api.served_stage import COMPOSITE, DESCRIPTORS, RECEIPT, ServedStage
from tests.unit.api.server import ROOT
from tests.unit.api.test_any_input import ANYTHING


class Place(NamedTuple):
    row: int
    column: str


USER_KEYS: dict[type, Any] = {
    bool: True,
    bytes: b"a",
    date: date(2026, 1, 31),
    datetime: datetime(2026, 1, 31, tzinfo=UTC),
    Decimal: Decimal("1.5"),
    float: 0.5,
    int: 5,
    Place: Place(1, "a"),
    str: "a",
    time: time(12),
    timedelta: timedelta(seconds=5),
    UUID: UUID(int=5),
}
"""A key of each type."""
TEXTS = st.text(st.characters(codec="utf-8")) | st.sampled_from(
    [
        *("", "[" * 10_000, "9" * 400, "9" * 5000, "1e400", "-1e400", "1e-400", "1e99999999999999999999", "NaN", "-0"),
        *("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59.999999-14:00", "0001-01-01", "9999-12-31"),
        *("2026-01-31T12:00:00[Europe]", "2026-01-31T12:00:00[" + "x" * 5000 + "]", "2026-01-31T12:00:00[Asia/Tokyo]"),
        *("0001-01-01T00:00:00[Asia/Tokyo]", "24:00", "PT" + "9" * 400 + "S", "-PT9999999999999999S", "true", "null"),
        *('{"row": 1, "column": "a"}', '[1, "a"]', '{"row": 1e400, "column": []}', "a\x00b"),
    ]
)
TRIES = settings(max_examples=15, deadline=None, database=None, derandomize=True)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedStage]:
    served = ServedStage(tmp_path_factory.mktemp("any_key"))
    with served.api:
        yield served
    served.close()


def _is_answered(served: ServedStage, method: str, path: str, token: str, body: Any = None) -> None:
    text = None if body is None else json.dumps(body).encode(errors="surrogatepass")
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    response = served.api.client.request(method, f"{ROOT}{path}", content=text, headers=headers)
    assert response.status_code == 200 or 400 <= response.status_code < 500, response.text
    assert response.status_code == 200 or str(decode_error(response.json())).startswith("Expected")


@pytest.mark.parametrize("kind", every_nth(TYPES, 3))
def test_no_key_of_any_type_makes_a_query_fail(served: ServedStage, kind: str) -> None:
    descriptor = MapStateDescriptor("prices", str, int, queryable_name="prices")
    stage = served.make(f"keys of {kind}", [descriptor], keys=KeySerializer((KeyField("k", TYPES[kind]),)))
    for key in EDGES[kind]:
        stage.state(key, "prices").put("pear", 3)
    stage.checkpoint()
    token, path = served.api.task_token(), served.path("prices", job_id=stage.job_id)

    @given(TEXTS | STRATEGIES[kind].map(str), ANYTHING | TEXTS)
    @TRIES
    @example("0001-01-01T00:00:00+14:00", "9" * 400)
    @example("9" * 400, 10**400)
    def is_answered(text: str, value: Any) -> None:
        _is_answered(served, "GET", f"{path}?key={quote(text, safe='')}", token)
        _is_answered(served, "POST", path, token, {"keys": [value, text, [value]]})

    is_answered()


@pytest.mark.parametrize("kind", every_nth(USER_KEYS, 3))
def test_no_user_key_of_any_type_makes_a_query_fail(served: ServedStage, kind: type) -> None:
    descriptor = MapStateDescriptor("prices", kind, int, queryable_name="prices")
    stage = served.make(f"user keys of {kind.__name__}", [descriptor])
    stage.state("ann", "prices").put(USER_KEYS[kind], 3)
    stage.checkpoint()
    token, path = served.api.task_token(), served.path("prices", job_id=stage.job_id)

    @given(TEXTS, ANYTHING | TEXTS)
    @TRIES
    def is_answered(text: str, value: Any) -> None:
        _is_answered(served, "GET", f"{path}?key=ann&user_key={quote(text, safe='')}", token)
        _is_answered(served, "POST", path, token, {"keys": ["ann"], "user_key": value})

    is_answered()


def test_no_key_of_several_columns_and_no_namespace_make_a_query_fail(served: ServedStage) -> None:
    stage = served.make("shops", DESCRIPTORS, keys=COMPOSITE)
    stage.put("balance", {RECEIPT: 1})
    stage.checkpoint()
    token, path = served.api.task_token(), served.path("balances", job_id=stage.job_id)

    @given(ANYTHING | st.lists(ANYTHING | TEXTS, min_size=3, max_size=3), ANYTHING | TEXTS)
    @TRIES
    @example(["center", "2026-01-31", 2**63], "a")
    @example(["center", 5, 7], "\ud800")
    def is_answered(key: Any, namespace: Any) -> None:
        _is_answered(served, "POST", path, token, {"keys": [key]})
        _is_answered(served, "POST", path, token, {"keys": [["center", "2026-01-31", 7]], "namespace": namespace})

    is_answered()
