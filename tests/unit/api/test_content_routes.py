"""Contents of checkpoints over HTTP: the list, rows of snapshots, finished items, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import jsonschema
import pytest

from airflow_provider_statecheck.api import state_reads
from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.configuration import StateServingSettings
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent
from airflow_provider_statecheck.state.progress import LoopProgress
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.messages import present
from tests.sqlite_rows import new_engine
from tests.unit.api.served_stage import refused
from tests.unit.api.server import ApiServer, accepted, description
from tests.unit.written_stage import WrittenStage
from tests.written_snapshots import flip


class ServedContents:
    """A stage with snapshots and loops, and the API that serves them to a read token."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.api = ApiServer(new_engine(folder / "served.db"), **settings)
        self.storage = CheckpointStorage.open((folder / "checkpoints").as_uri())
        self.stage = WrittenStage(self.storage, self.api.clock, SqlJobStore(self.api.engine, self.api.clock))
        self.attempt = self.stage.attempt(uid="features", num_retained=3)
        self.job_id = job_id_of("sales")

    def take(self, *names: str, items: tuple[str, ...] = ()) -> int:
        """Take a checkpoint with snapshots of 2000 rows and finished items."""
        return take(self.stage, self.attempt, *names, items=items)

    def get(self, what: str, **query: Any) -> Any:
        asked = f"?{urlencode(query, doseq=True)}" if query else ""
        token = self.api.reading_token(self.job_id)
        return self.api.call("GET", f"/v1/jobs/{self.job_id}/{quote(what)}{asked}", token)


def take(stage: WrittenStage, attempt: StageAttempt, *names: str, items: tuple[str, ...] = ()) -> int:
    progress = LoopProgress()
    for item in items:
        progress.finish(((), "days"), item)
    snapshots = tuple(stage.snapshot(attempt, name) for name in names)
    values = {"loops": progress.encode()}
    taken = present(attempt.take_checkpoint(CheckpointContent(snapshots=snapshots, state=values)))
    return taken.checkpoint_id


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedContents]:
    served = ServedContents(tmp_path)
    with served.api:
        yield served
    served.api.engine.dispose()


def test_latest_checkpoint_of_each_operator_is_listed(served: ServedContents) -> None:
    served.take("older")
    checkpoint_id = served.take("sessions", items=("b", "a"))
    other = served.stage.attempt(uid="mapped[2]")
    take(served.stage, other, "visits")
    features, mapped = accepted(served.get("snapshots"))
    assert (features["uid"], features["checkpoint_id"]) == ("features", checkpoint_id)
    (snapshot,) = features["snapshots"]
    assert (snapshot["name"], snapshot["rows"]) == ("sessions", 2000)
    assert snapshot["columns"] == [["n", "int64"], ["text", "string"]]
    assert features["finished_items"] == [{"loop": "days", "count": 2}]
    assert [each["name"] for each in mapped["snapshots"]] == ["visits"]
    (only,) = accepted(served.get("snapshots", uid="mapped[2]"))
    assert only == mapped


def test_rows_of_a_snapshot_are_limited(served: ServedContents) -> None:
    checkpoint_id = served.take("a/b[1]")
    answer = accepted(served.get("snapshots/a/b[1]", limit=2))
    assert (answer["uid"], answer["checkpoint_id"], answer["name"]) == ("features", checkpoint_id, "a/b[1]")
    assert answer["columns"] == [["n", "int64"], ["text", "string"]]
    assert (answer["rows"], answer["has_more"]) == ([[0, "row 0"], [1, "row 1"]], True)
    assert accepted(served.get("snapshots/a/b[1]", column="text", limit=1))["rows"] == [["row 0"]]


def test_answer_above_the_limit_is_refused(served: ServedContents, monkeypatch: pytest.MonkeyPatch) -> None:
    served.take("sessions", items=("a", "b"))
    monkeypatch.setattr(state_reads, "MAX_ANSWER_BYTES", 100)
    for answer in (served.get("snapshots"), served.get("snapshots/sessions"), served.get("items", loop="days")):
        assert (answer.status_code, answer.json()["code"]) == (413, "request_limit")


def test_earlier_checkpoint_is_read_by_its_id_and_its_pointer(served: ServedContents) -> None:
    first = served.take("sessions")
    served.take("visits")
    assert accepted(served.get("snapshots/sessions", checkpoint_id=first))["checkpoint_id"] == first
    pointer = accepted(served.get("snapshots", checkpoint_id=first))[0]["pointer"]
    assert accepted(served.get("snapshots/sessions", pointer=pointer))["checkpoint_id"] == first
    refused(served.get("snapshots/sessions"), 404, "unknown_state")


def test_finished_items_are_paged(served: ServedContents) -> None:
    served.take(items=("c", "a", "b"))
    first = accepted(served.get("items", loop="days", limit=2))
    assert (first["items"], first["following"]) == (["a", "b"], 1)
    second = accepted(served.get("items", loop="days", after="b", limit=2))
    assert (second["items"], second["following"]) == (["c"], 0)


def test_unknown_names_are_answered_with_the_known_ones(served: ServedContents) -> None:
    served.take("sessions", items=("a",))
    assert "sessions" in refused(served.get("snapshots/other"), 404, "unknown_state")
    assert "days" in refused(served.get("items", loop="other"), 404, "unknown_state")
    assert "features" in refused(served.get("snapshots", uid="other"), 404, "checkpoint_not_found")
    assert "'n', 'text'" in refused(served.get("snapshots/sessions", column="x"), 400, "invalid_configuration")
    refused(served.get("snapshots", checkpoint_id=99), 404, "checkpoint_not_found")
    refused(served.get("snapshots", checkpoint_id=1, at="2026-01-01T00:00:00Z"), 400, "invalid_configuration")


@pytest.mark.parametrize("limit", [0, 1001, "all"])
def test_limit_out_of_range_is_refused(served: ServedContents, limit: Any) -> None:
    served.take("sessions", items=("a",))
    for what, query in (("snapshots/sessions", {}), ("items", {"loop": "days"})):
        assert served.get(what, limit=limit, **query).status_code in (400, 422)


def test_damaged_manifest_and_an_unreadable_operator_are_listed_beside_the_rest(served: ServedContents) -> None:
    served.take("damaged", "sessions", items=("a",))
    other = served.stage.attempt(uid="mapped[2]")
    take(served.stage, other, "visits")
    manifest = next(Path(served.storage.base_uri.removeprefix("file://")).rglob("damaged-*/*/_manifest"))
    flip(manifest, -15)
    features, mapped = accepted(served.get("snapshots"))
    assert ([each["name"] for each in features["snapshots"]], features["finished_items"]) == (
        ["sessions"],
        [{"loop": "days", "count": 1}],
    )
    (unreadable,) = features["unreadable"]
    assert (unreadable["kind"], unreadable["name"], unreadable["code"]) == ("snapshot", "damaged", "corrupt_state")
    assert mapped["unreadable"] == []
    Path(mapped["pointer"].removeprefix("file://"), "_metadata").unlink()
    assert features in accepted(served.get("snapshots"))
    (unreadable,) = accepted(served.get("snapshots"))[1]["unreadable"]
    assert (unreadable["kind"], unreadable["code"]) == ("checkpoint", "checkpoint_not_found")
    refused(served.get("snapshots/damaged", uid="features"), 500, "corrupt_state")
    refused(served.get("snapshots", uid="mapped[2]"), 404, "checkpoint_not_found")


def test_damaged_snapshot_is_no_answer(served: ServedContents) -> None:
    served.take("sessions")
    path = next(Path(served.storage.base_uri.removeprefix("file://")).rglob("part-0.parquet"))
    flip(path, -15)
    refused(served.get("snapshots/sessions"), 500, "corrupt_state")


@pytest.mark.parametrize("what", ["snapshots", "snapshots/sessions", "items?loop=days"])
def test_only_callers_who_may_read_the_job_are_answered(served: ServedContents, what: str) -> None:
    served.take("sessions", items=("a",))
    other = served.api.reading_token(job_id_of("other"))
    path = f"/v1/jobs/{served.job_id}/{what}"
    refused(served.api.call("GET", path, other), 403, "access_denied")
    refused(served.api.call("GET", path, "no token"), 403, "access_denied")
    accepted(served.api.call("GET", path, served.api.reading_token(served.job_id)))


@pytest.mark.parametrize("place", ["file:///etc/passwd", "s3://elsewhere/chk-1"])
def test_pointer_that_is_not_of_the_job_is_never_opened(tmp_path: Path, place: str) -> None:
    opened: list[str] = []

    def open_storage(uri: str) -> CheckpointStorage:
        opened.append(uri)
        return CheckpointStorage.open(uri)

    served = ServedContents(tmp_path, open_storage=open_storage)
    with served.api:
        served.take("sessions")
        refused(served.get("snapshots", pointer=place), 404, "checkpoint_not_found")
    served.api.engine.dispose()
    assert opened == []


def test_server_that_does_not_serve_state_says_so(tmp_path: Path) -> None:
    served = ServedContents(tmp_path, state_settings=StateServingSettings(serve_state=False))
    with served.api:
        served.take("sessions")
        assert "serve-state" in refused(served.get("snapshots"), 503, "environment_not_ready")
    served.api.engine.dispose()


def test_answers_match_their_description(served: ServedContents) -> None:
    served.take("sessions", items=("a",))
    paths = description()["paths"]
    for path, what, query in (
        ("/v1/jobs/{job_id}/snapshots", "snapshots", {}),
        ("/v1/jobs/{job_id}/snapshots/{name}", "snapshots/sessions", {}),
        ("/v1/jobs/{job_id}/items", "items", {"loop": "days"}),
    ):
        schema = paths[path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        document = {**schema, "components": description()["components"]}
        jsonschema.validate(accepted(served.get(what, **query)), document)
