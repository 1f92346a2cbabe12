from __future__ import annotations

import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.operators.links import CheckpointsLink, page_of, push_link

PAGE = f"/statecheck/jobs/{job_id_of('nightly/2026')}"


class RecordingTask:
    def __init__(self) -> None:
        self.pushed: dict[str, str] = {}

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
def test_link_leads_to_the_jobs_page_below_the_base_url(monkeypatch, base_url: str, root: str) -> None:
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", base_url)
    assert page_of("nightly/2026") == root + PAGE


def test_link_is_pushed_at_once_and_is_the_same_at_the_end() -> None:
    task, operator = RecordingTask(), Operator()
    push_link(operator, {"ti": task}, "nightly/2026")
    assert task.pushed == {"_link_CheckpointsLink": CheckpointsLink().get_link(operator, ti_key=None)}


def test_a_task_that_has_not_begun_has_no_link() -> None:
    assert CheckpointsLink().get_link(Operator(), ti_key=None) == ""
