"""Random histories with faults at any step: no live row names a missing byte, and in the end no orphan is left."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from typing import Any

from hypothesis import given, settings, strategies as st

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.properties import RestoreMode
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointRecord, CheckpointStatus
from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle, OperatorState, streams_of
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, CommitStateUnknownError, StateCheckError
from airflow_provider_statecheck.maintenance.disposal import dispose
from airflow_provider_statecheck.maintenance.gc import PruneRequest, collect_job, prune_job
from airflow_provider_statecheck.maintenance.savepoints import serve_idle
from airflow_provider_statecheck.maintenance.verify import CheckpointVerifier
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import document_uris, load_document
from airflow_provider_statecheck.testing.faults import Counted, FaultMode, FaultPlan, faulty_gateway, faulty_storage
from tests.messages import ManualClock, make_registration, make_savepoint_request
from tests.sqlite_rows import new_store
from tests.unit.storage.keyed_files import keyed, state_file
from tests.unit.written_stage import WrittenStage, local_path

JOBS = ("first", "second")
DAY = 24 * 3600

FAULTS = st.tuples(st.none() | st.integers(1, 14), st.sampled_from([FaultMode.ERROR, FaultMode.REPLY_LOST]))
STEPS = st.tuples(
    st.sampled_from(
        [
            "begin",
            "take",
            "take",
            "take",
            "commit",
            "orphan",
            "finish",
            "fail",
            "savepoint",
            "idle",
            "claim",
            "dispose",
            "gc",
            "prune",
        ]
    ),
    st.sampled_from(JOBS),
    FAULTS,
)


def _files_of(states: Iterable[OperatorState]) -> Iterator[FileStateHandle]:
    return (s for state in states for s in streams_of(state) if isinstance(s, FileStateHandle))


class World:
    """Two jobs whose every call may fail."""

    def __init__(self, folder: str, store: Any, clock: ManualClock) -> None:
        self.stage = WrittenStage(CheckpointStorage.open(f"{folder}/base"), clock, store)
        self.target = f"file://{folder}/base"
        self.plan = FaultPlan()
        self.attempts: dict[str, StageAttempt] = {}
        self.handles: dict[str, list[Any]] = {}
        self.states: dict[str, list[Any]] = {}
        """Files of keyed state, of which a checkpoint shares one with the one before it."""
        self.count = 0
        commits = ("confirm_discards", "settle", "forget", "request", "begin", "end", "dispose")
        unknown = CommitStateUnknownError
        self.maintenance: Any = Counted(self.stage.maintenance, self.plan, commits, unknown)
        self.saving: Any = Counted(self.stage.savepoints, self.plan, commits, unknown)

    def step(self, name: str, job: str, fault: tuple[int | None, FaultMode]) -> None:
        point, mode = fault
        self.plan.point, self.plan.mode = point, mode
        self.plan.calls.clear()
        try:
            getattr(self, name)(job)
        except StateCheckError:
            if name in ("take", "begin", "claim"):
                self.attempts.pop(job, None)
        finally:
            self.plan.point = None

    def begin(self, job: str, **changes: Any) -> None:
        values = {"job_name": job, "storage_base": self.stage.storage.base_uri, "num_retained": 1} | changes
        gateway: Any = faulty_gateway(self.stage.coordinator, self.plan)
        attempt = StageAttempt(gateway, faulty_storage(self.stage.storage, self.plan), make_registration(**values))
        restored = attempt.restore()
        self.attempts[job], self.handles[job] = attempt, list(restored.document.snapshots) if restored else []
        self.states[job] = list(_files_of(restored.document.operator_states)) if restored else []

    def claim(self, job: str) -> None:
        for row in self.savepoints():
            source = self.stage.source_at(row.location, mode=RestoreMode.CLAIM)
            self.begin(job, restore_from=source)
            return

    def take(self, job: str) -> None:
        if job in self.attempts:
            attempt, self.count = self.attempts[job], self.count + 1
            self.handles[job] = [*self.handles[job][-1:], self.stage.snapshot(attempt, f"s{self.count}", rows=3)]
            pending = attempt.begin_checkpoint(600.0)
            if pending is None:
                return
            file = state_file(self.stage.storage, attempt.grant.attempt, b"%d" % self.count)
            self.states[job] = [*self.states[job][-1:], file]
            content = CheckpointContent(
                snapshots=tuple(self.handles[job]),
                state={"done": ["x" * 100] * (400 if self.count % 2 else 1)},
                operator_states=(keyed(*self.states[job]),),
                has_commit=self.count % 3 == 0,
            )
            attempt.complete_checkpoint(pending, content)

    def commit(self, job: str) -> None:
        if job in self.attempts:
            attempt = self.attempts[job]
            ids = (c.checkpoint_id for c in self.view(job).checkpoints if c.awaits_commit)
            attempt.confirm_commits(tuple(ids))

    def orphan(self, job: str) -> None:
        if job in self.attempts:
            self.stage.snapshot(self.attempts[job], "orphan", rows=3)

    def finish(self, job: str, status: AttemptStatus = AttemptStatus.FINISHED) -> None:
        if job in self.attempts:
            self.attempts.pop(job).finish(status)

    def fail(self, job: str) -> None:
        self.finish(job, AttemptStatus.FAILED)

    def savepoint(self, job: str) -> None:
        self.saving.request(make_savepoint_request(self.view(job).operators[0], target=self.target))

    def idle(self, job: str) -> None:
        serve_idle(self.saving, self.view(job), self.open, None)

    def dispose(self, job: str) -> None:
        for row in self.savepoints()[:1]:
            dispose(self.saving, self.maintenance, self.open, row.location)

    def gc(self, job: str) -> None:
        collect_job(self.maintenance, job_id_of(job), self.open)

    def prune(self, job: str) -> None:
        self.stage.clock.advance(2 * DAY)
        prune_job(self.maintenance, job_id_of(job), PruneRequest(), self.open)

    def open(self, base: str) -> Any:
        return faulty_storage(CheckpointStorage.open(base), self.plan)

    def view(self, job: str) -> JobView:
        return self.stage.maintenance.describe(job_id_of(job))

    def views(self) -> Iterator[JobView]:
        for job in JOBS:
            try:
                yield self.view(job)
            except CheckpointNotFoundError:
                continue

    def savepoints(self) -> list[CheckpointRecord]:
        return [c for c in self.live() if c.properties.is_savepoint]

    def live(self) -> list[CheckpointRecord]:
        rows = [c for view in self.views() for c in view.checkpoints if c.status is CheckpointStatus.COMPLETED]
        # The own row of a savepoint stays when another operator claims it, which then owns the bytes.
        return [c for c in rows if not c.properties.is_savepoint or self.stage.store.claim(c.location) is None]

    def require_live_bytes(self) -> None:
        for row in self.live():
            assert CheckpointVerifier(self.stage.storage).verify(row).problems == ()

    def require_no_orphans(self) -> None:
        live = self.live()
        named = {str(c.metadata_uri) for c in live}
        named |= {uri for c in live for uri in document_uris(load_document(self.stage.storage, c))}
        # A claimed directory goes as a whole, when nothing in it is named any more.
        waiting = {c.location for view in self.views() for c in view.checkpoints if c.awaits_discard}
        named |= {each for each in waiting if any(uri.startswith(f"{each}/") for uri in named)}
        for file in self.stage.files():
            uri = f"{self.stage.storage.base_uri}/{file}"
            assert any(uri == each or uri.startswith(f"{each}/") for each in named), f"{file} is an orphan"

    def end(self) -> None:
        """Let every stage come to its end without a fault, and collect once."""
        for view in self.views():
            job = view.job.name
            # A savepoint of which the last reply was lost is pending until a stage begins.
            self.begin(job)
            self.fail(job)
            collect_job(self.stage.maintenance, view.job.job_id, CheckpointStorage.open)


@settings(max_examples=60, deadline=None)
@given(steps=st.lists(STEPS, max_size=25))
def test_no_live_row_names_a_missing_byte_and_no_orphan_is_left(steps: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        clock = ManualClock()
        world = World(folder, new_store(clock), clock)
        for step in steps:
            world.step(*step)
            world.require_live_bytes()
        world.end()
        world.require_live_bytes()
        world.require_no_orphans()
        assert local_path(f"file://{folder}").exists()
