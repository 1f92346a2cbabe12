from __future__ import annotations

from html.parser import HTMLParser

from airflow_provider_statecheck.api.pages import render_job
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key
from airflow_provider_statecheck.checkpoint.messages import (
    AttemptRef,
    DeclineCheckpoint,
    FinishAttempt,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.testing.clock import ManualClock
from airflow_provider_statecheck.testing.memory_store import InMemoryJobStore
from airflow_provider_statecheck.testing.messages import complete_checkpoint, make_registration

HOSTILE = "<script>alert('x')</script>"


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def _page(job_name: str = "sales", message: str = "", uid: str = "aggregate") -> Tags:
    coordinator = AttemptCoordinator(InMemoryJobStore(ManualClock()))
    first = coordinator.register(make_registration(job_name=job_name, uid=uid)).attempt
    for _ in range(3):
        complete_checkpoint(coordinator, first)
    coordinator.finish(FinishAttempt(attempt=first, status=AttemptStatus.FAILED, message=message))
    coordinator.register(make_registration(job_name=job_name, uid=uid))
    return Tags(render_job(coordinator.describe(job_id_of(job_name))))


def test_page_shows_attempts_checkpoints_and_restore_pointers() -> None:
    text = _page(message="PlannedError: disk full").text
    for expected in ("retry after an attempt that failed", "PlannedError: disk full", "subsumed", "/chk-3"):
        assert expected in text
    assert "/chk-1" not in text, "what is subsumed is no restore pointer"


def test_what_users_wrote_cannot_become_markup() -> None:
    page = _page(job_name=HOSTILE, message=HOSTILE, uid=HOSTILE)
    assert "script" not in page.seen
    assert page.text.count(HOSTILE) >= 3


def _decline(coordinator: AttemptCoordinator, attempt: AttemptRef, message: str) -> None:
    pending = coordinator.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
    coordinator.decline(
        DeclineCheckpoint(
            attempt=attempt,
            checkpoint_id=pending.checkpoint_id,
            reason=CheckpointFailureReason.IO_EXCEPTION,
            message=message,
        )
    )


def test_an_overview_tells_counts_and_the_latest_failure_with_its_cause_and_pointer() -> None:
    coordinator = AttemptCoordinator(InMemoryJobStore(ManualClock()))
    attempt = coordinator.register(make_registration()).attempt
    for _ in range(3):
        complete_checkpoint(coordinator, attempt)
    _decline(coordinator, attempt, HOSTILE)
    page = Tags(render_job(coordinator.describe(attempt.job_id)))
    text = " ".join(page.text.split())
    assert "Checkpoints 4 0 3 1 0" in text
    assert "Savepoints 0 0 0 0 0" in text
    assert f"io_exception: {HOSTILE} memory://base/{attempt.job_id}/chk-4" in text
    assert "Failures by reason: io_exception 1" in text
    assert "awaiting deletion: 2" in text
    assert "Duration 0.0 s" in text
    assert "script" not in page.seen


def test_each_checkpoint_tells_whose_it_is_and_whether_it_may_be_deleted() -> None:
    text = " ".join(_page().text.split())
    assert "job no: a running attempt was restored from it" in text
    assert "job no: the job may be restored from it" in text
    assert "job yes: it is no longer needed; gc deletes it" in text
