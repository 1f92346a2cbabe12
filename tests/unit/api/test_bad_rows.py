"""The replies of all routes for a job with a row that cannot be read."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from sqlalchemy import Column

from tests.bad_rows import COLUMNS, NO_TEXT, corrupt
from tests.soak import every_nth
from tests.unit.api.server import ApiServer, accepted
from tests.unit.api.stage import Stage
from tests.unit.api.test_access import RULES, Route, _name, _request

TABLES = ("job", "operator", "attempt", "checkpoint", "statistics", "token")
"""Tables with a row of each stage."""
OF_A_STAGE = [
    column
    for column in COLUMNS
    if column.table.name.removeprefix("statecheck_") in TABLES and not column.primary_key and column.name != "job_id"
]


def _id(value: Any) -> str:
    return _name(value) if isinstance(value, tuple) else str(value)


def _require_others_go_on(api: ApiServer) -> None:
    other = api.attempt("another job")
    checkpoint_id = api.complete(other)
    view = accepted(api.call("GET", f"/v1/jobs/{other.job_id}", api.reading_token(other.job_id)))
    assert [each["checkpoint_id"] for each in view["checkpoints"]] == [checkpoint_id]
    listed = accepted(api.call("GET", "/v1/jobs", api.task_token()))
    assert "another job" in [job["name"] for job in listed]


@pytest.mark.parametrize(("route", "column"), every_nth(list(product(sorted(RULES), OF_A_STAGE))[::11], 9), ids=_id)
def test_a_bad_value_is_told_by_its_table_and_column_or_not_read(
    stage: Stage, route: Route, column: Column[Any]
) -> None:
    request, token = _request(stage, route), RULES[route].right(stage)
    corrupt(stage.api.engine, column, NO_TEXT, stage.attempt.job_id)

    response = request.send(stage.api, f"Bearer {token}")

    assert response.status_code in (RULES[route].status, 500), response.text
    if response.status_code == 500:
        problem = response.json()
        found = {name: problem["attributes"][name] for name in ("table", "column")}
        assert problem["code"] == "corrupt_row"
        assert found == {"table": column.table.name, "column": column.name}
        assert f"column {column.name} of table {column.table.name}" in problem["message"]
        assert problem["attributes"]["key"] in problem["message"]
    _require_others_go_on(stage.api)
