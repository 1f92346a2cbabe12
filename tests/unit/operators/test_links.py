from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from airflow_provider_statecheck.operators.links import CheckpointsLink, page_of, push_link

PAGE = "/statecheck/dags/nightly/runs/manual__2026-01-01T00%3A00%3A00%2B00%3A00/tasks/features"


@dataclass
class RecordingTask:
    dag_id: str = "nightly"
    run_id: str = "manual__2026-01-01T00:00:00+00:00"
    task_id: str = "features"
    map_index: int = -1
    pushed: dict[str, str] = field(default_factory=dict)

    def xcom_push(self, key: str, value: str) -> None:
        self.pushed[key] = value


class Operator:
    pass


@pytest.mark.parametrize(
    ("base_url", "root"),
    [
        ("https://airflow.example.com/", "https://airflow.example.com"),
        ("https://example.com/airflow", "https://example.com/airflow"),
        ("/", ""),
        ("/airflow/", "/airflow"),
    ],
)
def test_link_leads_to_the_tasks_page_below_the_base_url(monkeypatch, base_url: str, root: str) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", base_url)
    assert page_of(RecordingTask()) == root + PAGE
    assert page_of(RecordingTask(map_index=3)) == f"{root}{PAGE}?map_index=3"


def test_link_is_pushed_at_once_and_is_the_same_at_the_end() -> None:
    task, operator = RecordingTask(), Operator()
    push_link(operator, {"ti": task})
    assert task.pushed == {"_link_CheckpointsLink": CheckpointsLink().get_link(operator, ti_key=None)}


def test_a_task_that_has_not_begun_has_no_link() -> None:
    assert CheckpointsLink().get_link(Operator(), ti_key=None) == ""
