from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.operators.checkpointed import job_name_of, owner_of, uid_of

DATE = datetime(2026, 1, 1, tzinfo=UTC)


def make_context(**changes: Any) -> dict[str, Any]:
    values = {"logical_date": DATE, "run_id": "scheduled__1", "clear_number": 0, "map_index": -1, "max_tries": 2}
    values |= {"try_number": 1} | changes
    dag_run = SimpleNamespace(**{k: values[k] for k in ("logical_date", "run_id", "clear_number")})
    ti = SimpleNamespace(
        dag_id="dag", task_id="task", **{k: values[k] for k in ("map_index", "max_tries", "try_number")}
    )
    return {"dag_run": dag_run, "ti": ti}


def test_state_lives_with_the_run_by_default() -> None:
    assert job_name_of(make_context(), None, is_test=False) == "dag/2026-01-01T00:00:00+00:00"


def test_a_run_without_a_logical_date_is_known_by_its_id() -> None:
    assert job_name_of(make_context(logical_date=None), None, is_test=False) == "dag/scheduled__1"


def test_what_runs_with_the_database_open_never_touches_the_real_job() -> None:
    assert job_name_of(make_context(), "pipeline", is_test=True) == "test/pipeline"


@pytest.mark.parametrize(("job", "dag_id"), [("test/pipeline", "dag"), (None, "test")], ids=["named", "by its dag"])
def test_a_real_job_is_not_named_like_one_of_a_test_run(job: str | None, dag_id: str) -> None:
    """It would be removed as one: unasked, at any age."""
    context = make_context()
    context["ti"].dag_id = dag_id
    with pytest.raises(InvalidConfigurationError, match="without the prefix 'test/'"):
        job_name_of(context, job, is_test=False)
    assert job_name_of(context, job, is_test=True).startswith("test/test/")


def test_a_mapped_task_is_known_by_its_key_and_never_by_its_index() -> None:
    first = uid_of(make_context(map_index=0), None, "north")
    assert first == uid_of(make_context(map_index=7), None, "north") == "task[north]"
    with pytest.raises(InvalidConfigurationError, match="map_key"):
        uid_of(make_context(map_index=0), None, None)


def test_a_retry_keeps_the_clear_marker() -> None:
    first, retry = owner_of(make_context(), None), owner_of(make_context(try_number=2), None)
    assert first.clear_marker == retry.clear_marker


@pytest.mark.parametrize("change", [{"max_tries": 5}, {"clear_number": 1}], ids=["after its end", "while running"])
def test_a_clear_changes_the_clear_marker(change: dict[str, Any]) -> None:
    assert owner_of(make_context(), None).clear_marker != owner_of(make_context(**change), None).clear_marker
