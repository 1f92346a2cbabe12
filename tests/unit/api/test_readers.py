"""Which Dags a user has to be able to read to see a job."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.api.access import dags_of
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import AccessDeniedError
from airflow_provider_statecheck.maintenance.recover import JobRecovery, RecoverJob
from tests.messages import ManualClock, complete_checkpoint, make_owner, make_registration
from tests.sqlite_rows import new_store


def _view(job: str, recovered: tuple[str, ...] = (), **dags_by_uid: str | None) -> JobView:
    """Return a job with recovered operators, and then with attempts of tasks or, without a Dag, of scripts."""
    store = new_store(ManualClock())
    if recovered:
        request = RecoverJob(
            job_id=job_id_of(job),
            name=job,
            storage_base="memory://base",
            highest_epoch=1,
            highest_checkpoint_id=1,
            generations=dict.fromkeys(recovered, 0),
            snapshots=(),
        )
        JobRecovery(store).recover(request)
    coordinator = AttemptCoordinator(store)
    for uid, dag_id in dags_by_uid.items():
        airflow = (("dag_id", dag_id), ("run_id", "r"), ("task_id", uid), ("map_index", "-1")) if dag_id else ()
        registered = make_registration(job_name=job, uid=uid, owner=make_owner(airflow=airflow))
        complete_checkpoint(coordinator, coordinator.register(registered).attempt)
    return coordinator.describe(job_id_of(job))


@pytest.mark.parametrize(
    ("view", "dags"),
    [
        (_view("sales", a="daily", b="weekly"), ("daily", "weekly")),
        (_view("daily/2026-01-01", a="daily"), ("daily",)),
        (_view("sales", ("a",), a="daily"), ("daily",)),
        (_view("daily/2026-01-01", ("a", "b"), a="daily"), ("daily",)),
    ],
    ids=["all that work on it", "its own", "once its task ran again", "one task of its Dag ran again"],
)
def test_every_dag_that_works_on_a_job_counts(view: JobView, dags: tuple[str, ...]) -> None:
    assert dags_of(view) == dags


@pytest.mark.parametrize(
    "view",
    [
        _view("sales", ("a",)),
        _view("daily/2026-01-01", ("a",)),
        _view("sales", ("a", "b"), a="daily"),
        _view("sales/eu", ("a", "b"), a="daily"),
        _view("daily/2026-01-01", a=None),
        _view("sales", a="daily", b=None),
    ],
    ids=[
        "recovered",
        "named after a Dag of which nothing is known",
        "one operator is anybody's",
        "named after another Dag",
        "a script",
        "a script beside a Dag",
    ],
)
def test_what_may_be_anybodys_is_shown_to_nobody(view: JobView) -> None:
    with pytest.raises(AccessDeniedError, match="found an operator without one"):
        dags_of(view)
