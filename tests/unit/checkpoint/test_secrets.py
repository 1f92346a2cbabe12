from __future__ import annotations

import base64
import importlib
import json
import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
import structlog
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.api.requests import public_text
from airflow_provider_statecheck.checkpoint import masking, transitions
from airflow_provider_statecheck.checkpoint.aligned import transitions as aligned
from airflow_provider_statecheck.checkpoint.aligned.rows import AbortCheckpoints, AbortScope
from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary, StepSummary
from airflow_provider_statecheck.checkpoint.codec import LONGEST_TEXT, storable_text
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.masking import masked, remember_secrets
from airflow_provider_statecheck.checkpoint.messages import (
    AttemptRef,
    ConfirmRestore,
    DeclineCheckpoint,
    EndSavepoint,
    FinishAttempt,
    SkippedCheckpoint,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.records import (
    ActionRecord,
    AttemptStatus,
    CheckpointRequest,
    JobAction,
    RequestStatus,
)
from airflow_provider_statecheck.cli.output import print_message
from airflow_provider_statecheck.exceptions import StateCheckError
from airflow_provider_statecheck.gateway.verbs import encode_error
from airflow_provider_statecheck.hooks.spark_settings import checked_settings
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.spark.connectors.sql.databases import Database
from airflow_provider_statecheck.spark.driver.session import mask_settings
from airflow_provider_statecheck.spark.snapshots.executor_io import HiddenOptions
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.messages import complete_checkpoint, make_registration
from tests.sqlite_rows import new_engine

SECRET = "c0rrect/h0rse+b@ttery"
TEXT = f"ValueError: cannot log in with {SECRET}"


@pytest.fixture(autouse=True)
def _no_secrets_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masking, "known_secrets", masking.KnownSecrets())


@pytest.fixture
def known_secret() -> None:
    """Let this process know the secret."""
    remember_secrets([SECRET])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "rows.db"


@pytest.fixture
def engine(path: Path) -> Iterator[Engine]:
    engine = new_engine(path)
    yield engine
    engine.dispose()


class Running:
    """A job with a running attempt, which may trigger checkpoints."""

    def __init__(self, engine: Engine) -> None:
        self.store = SqlJobStore(engine)
        self.coordinator = AttemptCoordinator(self.store)
        self.attempt: AttemptRef = self.coordinator.register(make_registration()).attempt

    def trigger(self) -> int:
        return self.coordinator.trigger(TriggerCheckpoint(attempt=self.attempt, request_key=new_key())).checkpoint_id


def _finish(job: Running) -> None:
    job.coordinator.finish(FinishAttempt(attempt=job.attempt, status=AttemptStatus.FAILED, message=TEXT))


def _decline(job: Running) -> None:
    reason = CheckpointFailureReason.IO_EXCEPTION
    job.coordinator.decline(
        DeclineCheckpoint(attempt=job.attempt, checkpoint_id=job.trigger(), reason=reason, message=TEXT)
    )


def _skip(job: Running) -> None:
    reply = complete_checkpoint(job.coordinator, job.attempt)
    complete_checkpoint(job.coordinator, job.attempt)
    skipped = job.coordinator.register(make_registration()).candidates[0].checkpoint_id
    last = job.store.describe(job.attempt.job_id).attempts[-1]
    job.coordinator.confirm_restore(
        ConfirmRestore(
            attempt=AttemptRef.of(last),
            checkpoint_id=None if reply.checkpoint is None else reply.checkpoint.checkpoint_id,
            skipped=(SkippedCheckpoint(checkpoint_id=skipped, reason=TEXT),),
        )
    )


def _summarise(job: Running) -> None:
    summary = CheckpointSummary(open_commits=(TEXT,), steps=(StepSummary(name=TEXT, outcome="computed"),))
    complete_checkpoint(job.coordinator, job.attempt, summary=summary)


def _end_action(job: Running) -> None:
    action = ActionRecord(
        job_id=job.attempt.job_id,
        request_key=new_key(),
        operator_id=job.attempt.operator_id,
        action=JobAction.RESTORE,
        requested_by="ada",
        requested_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    with job.store.transaction(job.attempt.job_id) as tx:
        transitions.end_action(tx, action, RequestStatus.FAILED, TEXT)


def _fail_request(job: Running) -> None:
    request = CheckpointRequest(
        job_id=job.attempt.job_id,
        request_key=new_key(),
        operator_id=job.attempt.operator_id,
        properties=CheckpointProperties(),
        requested_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    with job.store.transaction(job.attempt.job_id) as tx:
        transitions.fail_request(tx, request, CheckpointFailureReason.IO_EXCEPTION, TEXT)


def _abort(job: Running) -> None:
    checkpoint_id = job.trigger()
    with job.store.transaction(job.attempt.job_id) as tx:
        (pending,) = [c for c in tx.open_checkpoints(job.attempt.operator_id) if c.checkpoint_id == checkpoint_id]
        transitions.abort(tx, pending, CheckpointFailureReason.IO_EXCEPTION, TEXT)


def _report_failure(job: Running) -> None:
    _decline_without_text(job, checkpoint_id := job.trigger())
    with job.store.transaction(job.attempt.job_id) as tx:
        reason = CheckpointFailureReason.IO_EXCEPTION
        aligned.report_failure(tx, job.attempt.operator_id, reason, checkpoint_id, TEXT)


def _decline_without_text(job: Running, checkpoint_id: int) -> None:
    reason = CheckpointFailureReason.IO_EXCEPTION
    job.coordinator.decline(DeclineCheckpoint(attempt=job.attempt, checkpoint_id=checkpoint_id, reason=reason))


ROUTES: dict[str, Callable[[Running], None]] = {
    "the end of an attempt": _finish,
    "a declined checkpoint, the statistics and the list of jobs": _decline,
    "a checkpoint that a restore skipped": _skip,
    "the figures of a checkpoint": _summarise,
    "the outcome of an action": _end_action,
    "a request that failed": _fail_request,
    "an aborted checkpoint": _abort,
    "a cause in the statistics": _report_failure,
}


@pytest.mark.parametrize("enter", ROUTES.values(), ids=ROUTES)
@pytest.mark.usefixtures("known_secret")
def test_no_text_takes_a_known_secret_into_a_row(enter: Callable[[Running], None], engine: Engine, path: Path) -> None:
    enter(Running(engine))

    engine.dispose()
    stored = path.read_bytes()
    assert b"cannot log in with ***" in stored
    assert b"h0rse" not in stored


@pytest.mark.parametrize(
    "message",
    [
        lambda text: EndSavepoint(job_id="a" * 32, checkpoint_id=1, failure=text).failure,  # type: ignore[arg-type]
        lambda text: (
            AbortCheckpoints(
                leader=AttemptRef(job_id="a" * 32, operator_id="b" * 32, epoch=1),  # type: ignore[arg-type]
                scope=next(iter(AbortScope)),
                reason=CheckpointFailureReason.IO_EXCEPTION,
                message=text,
            ).message
        ),
        lambda text: public_text(StateCheckError(text)),
    ],
    ids=["a savepoint that failed", "an abort", "a page or a reply"],
)
@pytest.mark.usefixtures("known_secret")
def test_no_message_and_no_reply_shows_a_known_secret(message: Callable[[str], Any]) -> None:
    assert message(TEXT) == "ValueError: cannot log in with ***"


@pytest.mark.usefixtures("known_secret")
def test_no_command_prints_a_known_secret(capsys: pytest.CaptureFixture[str]) -> None:
    print_message(f"error: {TEXT}")

    assert capsys.readouterr().err == "error: ValueError: cannot log in with ***\n"


@pytest.mark.parametrize("name", masking.MASKERS)
def test_secrets_that_airflow_masks_are_masked(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    masker = importlib.import_module(name)
    monkeypatch.setattr(masker._secrets_masker(), "patterns", set())
    monkeypatch.setattr(masker._secrets_masker(), "replacer", None)
    masker.mask_secret(SECRET)

    assert masked(TEXT) == "ValueError: cannot log in with ***"


@pytest.mark.parametrize("start", range(440, 520, 10))
@pytest.mark.usefixtures("known_secret")
def test_a_secret_is_masked_before_its_text_is_shortened(start: int) -> None:
    shortened = storable_text("x" * start + SECRET * 200 + "y" * (LONGEST_TEXT - 480))

    assert len(shortened) <= LONGEST_TEXT
    assert not any(SECRET[i : i + 4] in shortened for i in range(len(SECRET) - 3))


@pytest.mark.parametrize(
    "give",
    [
        lambda: CheckpointStorage.open("memory://base", password=SECRET),
        lambda: HiddenOptions({"client": {"secret_access_key": SECRET}}),
        lambda: Database("postgresql+psycopg2://ada:c0rrect%2Fh0rse%2Bb%40ttery@db/sales"),
    ],
    ids=["storage options", "options of a source", "the URL of a database"],
)
def test_a_driver_without_airflow_masks_what_it_was_given(give: Callable[[], object]) -> None:
    give()

    assert masked(TEXT) == "ValueError: cannot log in with ***"


@pytest.mark.parametrize("secret", ["quote'and\\slash", "spaces and ü", "a/b+c=d%e"])
def test_a_secret_is_masked_in_each_notation_of_a_message(secret: str) -> None:
    remember_secrets([secret])

    in_python, in_json = repr(secret)[1:-1], {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    in_uris = {quote(secret, safe=""), quote(secret, safe="").lower(), quote(secret), quote_plus(secret)}
    for form in {secret, in_python, *in_json, *in_uris}:
        assert masked(f"found {form}!") == "found ***!"


@pytest.mark.parametrize("user", ["", "a", "ada", "root"])
@pytest.mark.usefixtures("known_secret")
def test_a_secret_is_masked_in_a_header_with_a_user_and_a_password(user: str) -> None:
    header = base64.b64encode(f"{user}:{SECRET}".encode()).decode()

    shown = masked(f"Authorization: Basic {header}")

    assert "***" in shown
    # At each end, what the secret does not decide alone is left.
    assert len(shown.replace("Authorization: Basic ", "").replace("***", "")) <= len(f"{user}:") * 4 // 3 + 6


@pytest.mark.usefixtures("known_secret")
def test_the_records_of_this_package_are_masked_with_their_errors_and_those_of_others_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name in ("airflow_provider_statecheck.spark.attempt", "sales"):
        try:
            raise ValueError(TEXT)
        except ValueError:
            logging.getLogger(name).exception("%s again, %d times", TEXT, 2)

    own, other = caplog.records
    assert own.getMessage() == "ValueError: cannot log in with *** again, 2 times"
    assert SECRET not in logging.Formatter().format(own)
    assert SECRET in logging.Formatter().format(other)


def _as_airflow_does(record: logging.LogRecord) -> str:
    chain: list[Any] = [
        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(),
    ]
    return structlog.stdlib.ProcessorFormatter(processors=chain).format(record)


def _caused() -> None:
    try:
        raise ValueError(f"{TEXT}\nsecond line\x1b")
    except ValueError as error:
        raise KeyError("order") from error


def _noted() -> None:
    error = ValueError("no login")
    error.add_note(f"with {SECRET}\n\x1b")
    raise error


def _circular() -> None:
    first, second = ValueError(f"{TEXT}\x1b"), ValueError("a")
    first.__cause__, second.__cause__ = second, first
    raise second


def _grouped() -> None:
    raise ExceptionGroup("two", [ValueError(f"{TEXT}\x1b"), ValueError("a")])


@pytest.mark.usefixtures("known_secret")
@pytest.mark.parametrize("handler", [logging.Formatter().format, _as_airflow_does])
@pytest.mark.parametrize("fail", [_caused, _noted, _circular, _grouped])
def test_an_error_of_any_form_is_logged_masked_and_printable_with_its_traceback(
    caplog: pytest.LogCaptureFixture, fail: Callable[[], None], handler: Callable[[logging.LogRecord], str]
) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        fail()
    logging.getLogger("airflow_provider_statecheck.spark").error("failed", exc_info=caught.value)

    shown = handler(caplog.records[0])
    assert SECRET not in shown
    assert "\x1b" not in shown
    assert "u001b" not in shown
    assert "***" in shown
    assert f"in {fail.__name__}" in shown
    assert type(caught.value).__name__ in shown


def test_an_error_without_secrets_is_logged_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    error = ValueError("two\nlines")
    logging.getLogger("airflow_provider_statecheck.spark").error("failed", exc_info=error)

    record = caplog.records[0]
    assert record.exc_info is not None
    assert record.exc_info[1] is error


@pytest.mark.usefixtures("known_secret")
def test_a_record_whose_arguments_do_not_fit_is_left_to_logging() -> None:
    record = logging.getLogRecordFactory()("airflow_provider_statecheck", logging.INFO, "", 1, "%d", ("x",), None)

    assert record.args == ("x",)


@pytest.mark.parametrize("name", masking.MASKERS)
def test_airflow_masks_what_this_process_was_given(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    masker = importlib.import_module(name)
    monkeypatch.setattr(masker._secrets_masker(), "patterns", set())
    monkeypatch.setattr(masker._secrets_masker(), "replacer", None)
    importlib.import_module("airflow.sdk.log")

    remember_secrets([SECRET])

    assert masker.redact(TEXT) == "ValueError: cannot log in with ***"


def test_of_two_secrets_the_longer_one_is_masked_as_a_whole() -> None:
    remember_secrets(["hunter22"])
    remember_secrets(["hunter22-of-production"])

    assert masked("with hunter22-of-production") == "with ***"


def test_credentials_in_uris_are_masked_without_being_known() -> None:
    text = "jdbc:postgresql://db/sales?user=ada&password=hunter22 and s3://key:hunter22@bucket/x"

    assert masked(text) == "jdbc:postgresql://db/sales?user=ada&password=*** and s3://***@bucket/x"


@pytest.mark.usefixtures("known_secret")
def test_an_error_crosses_the_wire_without_a_known_secret() -> None:
    error = StateCheckError(TEXT, holder=TEXT, checkpoint_id=7)

    sent = encode_error(error)

    assert SECRET not in json.dumps(sent)
    assert sent["attributes"] == {"holder": "ValueError: cannot log in with ***", "checkpoint_id": 7}


@pytest.mark.parametrize(
    "settings",
    [
        {"spark.hadoop.fs.s3a.secret.key": SECRET},
        {"spark.hadoop.fs.s3a.access.key": SECRET},
        {"spark.ssl.keyPassword": SECRET},
        {"AWS_SESSION_TOKEN": SECRET},
        {"spark.redaction.regex": "(?i)licence", "spark.vendor.licence": SECRET},
        {"spark.redaction.regex": "(?<name", "spark.my.password": SECRET},
    ],
)
def test_the_secret_settings_of_spark_are_masked(settings: dict[str, str]) -> None:
    checked_settings("conf", settings)

    assert masked(TEXT) == "ValueError: cannot log in with ***"


@pytest.mark.parametrize("value", ["true", "False", "1000", "none"])
def test_a_switch_with_the_name_of_a_secret_is_no_secret(value: str) -> None:
    checked_settings("conf", {"spark.security.token.enabled": value})

    assert masked(f"found {value}") == f"found {value}"


@pytest.mark.parametrize("place", ["session of Spark Connect", "session", "context"])
def test_a_driver_masks_the_secret_settings_of_its_session(place: str) -> None:
    found = {"spark.my.password": SECRET}
    is_connect = place == "session of Spark Connect"
    kind = type(
        "SparkSession", (), {"__module__": "pyspark.sql.connect.session" if is_connect else "pyspark.sql.session"}
    )
    session: Any = kind()
    session.conf = SimpleNamespace(getAll={} if place == "context" else found)
    context = found if place == "context" else {}
    session.sparkContext = SimpleNamespace(getConf=lambda: SimpleNamespace(getAll=context.items))

    mask_settings(session)

    assert masked(TEXT) == "ValueError: cannot log in with ***"
