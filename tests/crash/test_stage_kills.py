"""
A stage with keyed state and a sink is killed at random points.

What is left in the end is what an undisturbed run leaves.

The driver dies at a call on storage, coordinator or target, in the midst of a task, right after a task has written all
of its state and output, or at any moment. Its tasks run on beside those of the next try, which has another parallelism.
Which points they are follows from a number.
"""

from __future__ import annotations

import random
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_statecheck.checkpoint.ids import METADATA_FILE, job_uri
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointRecord, CheckpointStatus
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.spark.connectors.exactly_once.target_files import staged_epoch
from airflow_provider_statecheck.spark.connectors.files.sink import committed_files
from airflow_provider_statecheck.spark.stages.executor.aggregate_run import STATE_NAME
from airflow_provider_statecheck.state.descriptors import ValueStateDescriptor
from airflow_provider_statecheck.state.keys.key_serializer import KeyField
from airflow_provider_statecheck.storage.metadata_file import DocumentCache, document_uris, load_document
from airflow_provider_statecheck.storage.orphans import sweep
from airflow_provider_statecheck.testing.faults import READING_CALLS, FaultMode
from tests.crash import stage_pipeline
from tests.crash.sink_suite import wait_for_abandoned_tasks
from tests.crash.stage_functions import MODES, QUANTITY
from tests.crash.tries import SIGKILLED, Tries
from tests.state_content import Content, StateContent, values_and_maps

pytestmark = pytest.mark.spark

PUBLISHED = re.compile(r"-g\d+-c(\d+)-")
COMPLETED = (CheckpointStatus.COMPLETED, CheckpointStatus.SUBSUMED)
IN_SHORT, IN_LONG = 1, 20
TOTALS = pa.struct([("quantity", pa.int64()), ("lines", pa.int64()), ("last", pa.int64())])


@dataclass(frozen=True)
class Outcome:
    """What a finished job has left."""

    output: pa.Table
    state: dict[str, Content]


@dataclass(frozen=True)
class Undisturbed:
    """A run that nothing went wrong in."""

    outcome: Outcome
    calls: list[str]
    seconds: float


@dataclass
class StageJob:
    """One job over its tries, and what it has left."""

    tries: Tries
    input: Path
    adds_up: bool = False
    at_end: bool = False
    """Whether it has nothing but an aggregate, which emits at the end of the input."""
    reads_files: bool = False
    """Whether the tasks of the aggregate read the files themselves."""
    statuses: list[int] = field(default_factory=list)

    def begin(self) -> None:
        """Begin with nothing."""
        self.tries.reset(None)
        self.statuses = []

    def run(self, **command: Any) -> int:
        """Run a try and return its exit status."""
        command |= {"pipeline": "stage", "input": str(self.input), "adds_up": self.adds_up}
        command |= {"at_end": self.at_end, "reads_files": self.reads_files}
        self.statuses.append(self.tries.run(**command))
        return self.statuses[-1]

    def view(self) -> JobView:
        """Return the rows of the job."""
        return self.tries.view(stage_pipeline.JOB)

    @property
    def output(self) -> Path:
        """The target of the sink."""
        return self.tries.work / "output"

    def outcome(self, parallelism: int) -> Outcome:
        """Return what a reader of the output and a restore at some parallelism find."""
        visible = self._visible()
        assert [f"file://{path}" for path in visible] == [file.uri for file in committed_files(str(self.output))]
        table = pa.concat_tables([pq.read_table(path) for path in visible])
        checkpoint = self._live()[-1]
        return Outcome(
            table.sort_by([(name, "ascending") for name in table.column_names]), self._state(checkpoint, parallelism)
        )

    def check_nothing_is_seen_too_early(self) -> None:
        """Every file that a reader of the directory finds belongs to a checkpoint that was completed."""
        found = [PUBLISHED.search(path.name) for path in self._visible()]
        ids = {int(match[1]) for match in found if match}
        # A driver that dies very early leaves no job to look at.
        incomplete = (
            {each.checkpoint_id for each in self.view().checkpoints if each.status not in COMPLETED} if ids else set()
        )
        assert not ids & incomplete

    def check_bytes(self) -> None:
        """After a sweep there is nothing on storage that no live row names, and nothing is missing."""
        view, storage = self.view(), self.tries.storage
        sweep(storage, view, DocumentCache(lambda _: storage))
        live = self._live()
        named = {uri for each in live for uri in document_uris(load_document(storage, each))}
        named |= {f"{each.location}/{METADATA_FILE}" for each in live}
        root = job_uri(storage.base_uri, view.job.job_id)
        found = {f"{root}/{name}" for name in storage.list_files(root)}
        assert found == named

    def _visible(self) -> list[Path]:
        return sorted(path for path in self.output.rglob("*.parquet") if "_statecheck" not in path.parts)

    def staged(self) -> list[int | None]:
        """Return the epoch of each staged file."""
        return [staged_epoch(path.name) for path in self.output.rglob("*.staged")]

    def _live(self) -> list[CheckpointRecord]:
        return self.tries.live(stage_pipeline.JOB)

    def _state(self, checkpoint: CheckpointRecord, parallelism: int) -> dict[str, Content]:
        uids = ["stage/quantity", *(["stage/totals"] if self.adds_up else [])]
        content = StateContent(storage=self.tries.storage, checkpoint=checkpoint)
        key = KeyField("l_partkey", pa.int64())
        if self.at_end:
            return {"stage/totals": content.read("stage/totals", key, parallelism, _totals)}
        state = {uids[0]: content.read(uids[0], key, parallelism, values_and_maps(QUANTITY, MODES))}
        if self.adds_up:
            state[uids[1]] = content.read(uids[1], KeyField("supplier", pa.int64()), parallelism, _totals)
        return state


def _totals(backend: Any) -> Content:
    descriptor: ValueStateDescriptor[Any] = ValueStateDescriptor(STATE_NAME, TOTALS)
    return {
        key: value
        for keys, values in backend.scan(descriptor)
        for key, value in zip(keys.columns[0].to_pylist(), values.to_pylist(), strict=True)
    }


@pytest.fixture(scope="module")
def tries(driver_jvm: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tries]:
    running = Tries.start(tmp_path_factory.mktemp("stage") / "work", driver_jvm)
    yield running
    running.close()


@pytest.fixture(scope="module")
def undisturbed(tries: Tries) -> Callable[[StageJob], Undisturbed]:
    """Return what a run leaves that nothing went wrong in, for each kind of job."""
    known: dict[tuple[Any, ...], Undisturbed] = {}

    def run(job: StageJob) -> Undisturbed:
        kind = (job.input, job.adds_up, job.at_end, job.reads_files)
        if kind not in known:
            job.begin()
            begin = time.monotonic()
            assert job.run(parallelism=2) == 0, tries.error()
            seconds = time.monotonic() - begin
            known[kind] = Undisturbed(job.outcome(2), tries.outcome()["calls"], seconds)
            _check_undisturbed(job, known[kind].outcome)
        return known[kind]

    return run


def _check_undisturbed(job: StageJob, outcome: Outcome) -> None:
    if not job.at_end:
        assert outcome.state["stage/quantity"] == _expected_state(job.input)
        return
    wanted: list[Any] = [
        ("l_linenumber" if job.reads_files else "l_quantity", "sum"),
        ([], "count_all"),
        ("l_orderkey", "max"),
    ]
    rows = [
        tuple(map(int, row.values())) for row in _lines(job.input).group_by("l_partkey").aggregate(wanted).to_pylist()
    ]
    assert [tuple(row.values()) for row in outcome.output.to_pylist()] == sorted(rows)


def _lines(input_files: Path) -> pa.Table:
    return pa.concat_tables(
        [pq.read_table(path, columns=list(stage_pipeline.COLUMNS)) for path in input_files.iterdir()]
    )


def _expected_state(input_files: Path) -> Content:
    lines = _lines(input_files)
    sums = lines.group_by("l_partkey").aggregate([("l_quantity", "sum")])
    counts = lines.group_by(["l_partkey", "l_shipmode"]).aggregate([([], "count_all")])
    modes: defaultdict[int, dict[str, int]] = defaultdict(dict)
    for row in counts.to_pylist():
        modes[row["l_partkey"]][row["l_shipmode"]] = row["count_all"]
    return {row["l_partkey"]: (int(row["l_quantity_sum"]), modes[row["l_partkey"]]) for row in sums.to_pylist()}


def _kill(dice: random.Random, known: Undisturbed, job: StageJob) -> dict[str, Any]:
    """Return how a driver is to die."""
    # Behind a second key nobody can tell from which items output came.
    way = dice.choice(
        ["call", "moment"] if job.at_end else ["call", "item", "moment", *([] if job.adds_up else ["written"])]
    )
    if way == "call":
        # At parallelism 1 there are fewer calls than in the run that was counted.
        point = dice.randrange(1, len(known.calls) * 3 // 4)
        return {"point": point, "mode": dice.choice([FaultMode.KILL, FaultMode.KILL_AFTER])}
    if way == "moment":
        return {"seconds": dice.uniform(0.05, 0.8) * known.seconds}
    file = pq.read_table(dice.choice(sorted(job.input.iterdir())), columns=["l_orderkey", "l_linenumber"])
    item = file.slice(dice.randrange(file.num_rows), 1).to_pylist()[0]
    return {"item": [item["l_orderkey"], item["l_linenumber"]], "late": way == "written"}


NUMBERS = [pytest.param(n, marks=[] if n < IN_SHORT else pytest.mark.soak) for n in range(IN_LONG)]


@pytest.mark.parametrize("number", NUMBERS)
def test_stage_that_is_killed_anywhere_leaves_what_an_undisturbed_one_leaves(
    tries: Tries, undisturbed: Callable[[StageJob], Undisturbed], lineitem: Path, number: int
) -> None:
    _survive(StageJob(tries, lineitem, adds_up=number % 3 == 2), undisturbed, random.Random(number))


@pytest.mark.parametrize("number", NUMBERS)
def test_aggregate_whose_one_job_is_killed_anywhere_leaves_what_an_undisturbed_one_leaves(
    tries: Tries, undisturbed: Callable[[StageJob], Undisturbed], lineitem: Path, number: int
) -> None:
    """How often the driver looks for records depends on time, so that it may end before the call at which it dies."""
    _survive(StageJob(tries, lineitem, at_end=True, reads_files=number % 2 == 0), undisturbed, random.Random(number))


def _survive(job: StageJob, undisturbed: Callable[[StageJob], Undisturbed], dice: random.Random) -> None:
    tries, known = job.tries, undisturbed(job)
    job.begin()
    parallelisms = dice.sample([1, 2, 3, 5, 7], 3)
    kills = [_kill(dice, known, job) for _ in range(dice.choice([1, 1, 2]))]
    is_alone = False
    for parallelism, kill in zip(parallelisms, [*kills, {}], strict=False):
        is_alone = dice.random() < 0.5
        if is_alone:
            wait_for_abandoned_tasks()
        status = job.run(parallelism=parallelism, **kill)
        if status == 0:
            break
        assert status == SIGKILLED, tries.error()
        job.check_nothing_is_seen_too_early()
    assert job.statuses[-1] == 0, kills
    assert job.statuses[0] == SIGKILLED or "seconds" in kills[0] or job.at_end, kills
    wait_for_abandoned_tasks()
    _check(job, known, dice.choice([1, 3, 7]), is_alone=is_alone)


def _check(job: StageJob, known: Undisturbed, parallelism: int, *, is_alone: bool) -> None:
    found = job.outcome(parallelism)
    assert found.output.equals(known.outcome.output)
    assert found.state == known.outcome.state
    job.check_bytes()
    attempts = job.view().attempts
    assert attempts[-1].status is AttemptStatus.FINISHED
    # Tasks that outlive even the last try leave files to the next run.
    staged = job.staged()
    assert not staged if is_alone else all(epoch is not None and epoch < len(attempts) for epoch in staged)


FAULTS = [(FaultMode.ERROR, 1), (FaultMode.KILL, 1), (FaultMode.REPLY_LOST, 1), (FaultMode.REPLY_LOST, 2)]


@pytest.mark.soak
@pytest.mark.parametrize(("mode", "times"), FAULTS)
def test_stage_that_fails_at_any_call_leaves_what_an_undisturbed_one_leaves(
    tries: Tries, undisturbed: Callable[[StageJob], Undisturbed], few_lines: Path, mode: FaultMode, times: int
) -> None:
    """A reply that is lost twice is one that the repeated call does not get either."""
    job = StageJob(tries, few_lines)
    known = undisturbed(job)
    for point, name in enumerate(known.calls, 1):
        if mode is FaultMode.REPLY_LOST and name in READING_CALLS:
            continue
        job.begin()
        status = job.run(parallelism=2, point=point, mode=mode, times=times)
        if status != 0:
            wait_for_abandoned_tasks()
            job.check_nothing_is_seen_too_early()
            assert job.run(parallelism=3) == 0, f"{mode} at call {point}, {name}: {tries.error()}"
        _check(job, known, 1, is_alone=True)
