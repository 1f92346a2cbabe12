"""Names and texts of users, whatever they contain, set nothing on a terminal and forge no line of a log."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from airflow.utils import yaml
from sqlalchemy import event
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of
from airflow_provider_statecheck.checkpoint.masking import is_printable, printable, printable_lines
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.cli import output
from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.maintenance import recover
from airflow_provider_statecheck.maintenance.gc import JobReport
from airflow_provider_statecheck.maintenance.job_maintenance import each_job
from airflow_provider_statecheck.state.schema_evolution import report
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.seeds import named_in_failure
from tests.unit.cli.conftest import Run, rows, run as run, stage as stage
from tests.unit.written_stage import WrittenStage

CLIPBOARD = "\x1b]52;c;ZWNobyBvd25lZA==\x07"
HOSTILE = (
    *(
        CLIPBOARD,
        "\x1b[2J\x1b[1;1H",
        "\x9b31m",
        "\x1bP+q\x1b\\",
        "\x90",
        "\x07",
        "\x08" * 9,
        "\x7f",
        "\r0 jobs removed.",
    ),
    *(
        "\nINFO forged",
        "\x0b",
        "\x0c",
        "\x85",
        "\u2028",
        "\u2029",
        "\u202egnp.exe",
        "\u2066",
        "\u200b",
        "\ufeff",
        "\u061c",
    ),
    *("\U000e0041", "\t"),
)
VISIBLE = ("Zürich", "名前\u3000全角", "👩\u200d🔬", "a\u00a0b", "[bold]:x:", "क्ष", "%s %d", "\\x1b", "{}")
_RAW = re.compile(
    r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\U000e0041]"
)
OUTPUTS = ("table", "plain", "json", "yaml")


def _name(rng: random.Random) -> str:
    return "job " + "".join(rng.choice(HOSTILE + VISIBLE) for _ in range(rng.randint(1, 4)))


def _jobs(stage: WrittenStage) -> Iterator[str]:
    for seed, hostile in enumerate(HOSTILE):
        yield f"job {seed} {hostile} end"
    for seed in range(5):
        yield f"{seed} {_name(random.Random(seed))}"


@pytest.fixture
def hostile(stage: WrittenStage) -> WrittenStage:
    """Jobs whose names, operators, runs and errors are hostile."""
    for name in _jobs(stage):
        attempt = stage.attempt(name, uid=f"uid {CLIPBOARD}\n{name[:9]}")
        stage.take(attempt, stage.snapshot(attempt, f"step {CLIPBOARD}"))
        attempt.finish(AttemptStatus.FAILED, message=f"failed {CLIPBOARD}\nby itself")
    return stage


def _commands(name: str) -> Iterator[tuple[str, ...]]:
    job = job_id_of(name)
    yield ("jobs",)
    yield "checkpoints", job
    yield "stats", job
    yield "contents", job
    yield "verify", job
    yield "gc", job, "--dry-run"
    yield "prune", job, "--dry-run"
    yield "prune", "--test-jobs", "--dry-run"
    yield "checkpoints", f"no job {CLIPBOARD}\n"
    yield "checkpoints", job, "--uid", f"no operator {CLIPBOARD}\n"


@pytest.mark.parametrize("format_", OUTPUTS)
def test_no_command_writes_a_control_character_of_a_name(hostile, run: Run, format_):
    name = next(_jobs(hostile))
    for command in _commands(name):
        found = run(*command, "-o", format_)
        assert not _RAW.search(found.out + found.err), command
        assert len(found.err.splitlines()) <= 3, command


def test_no_name_and_no_text_is_part_of_a_statement(run: Run, stage: WrittenStage) -> None:
    name = "planted'); DROP TABLE statecheck_job; --"
    sent = list[tuple[str, str]]()

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        sent.append((statement, repr(parameters)))

    event.listen(Engine, "before_cursor_execute", note)
    try:
        attempt = stage.attempt(name, uid=name)
        stage.take(attempt, stage.snapshot(attempt, name))
        attempt.finish(AttemptStatus.FAILED, message=name)
        for command in (*_commands(name), ("checkpoints", name, "--uid", name), ("jobs", "--name", name)):
            run(*command)
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert [statement for statement, _ in sent if "planted" in statement] == []
    assert sum("planted" in parameters for _, parameters in sent) > 3
    assert run("jobs").status == 0


@pytest.mark.parametrize(
    "command",
    ["prune {} --yes", "gc {} --yes", "checkpoints {}", "verify {}", "stats {}", "savepoint {}", "state names {}"],
)
def test_no_command_takes_a_job_for_the_one_that_has_its_id_as_a_name(
    run: Run, stage: WrittenStage, command: str
) -> None:
    """An administrator who removes the job by the name in a list would otherwise remove another one."""
    named = job_id_of("payroll")
    for name in ("payroll", named):
        stage.run(name)
    before, files = stage.store.describe(named), stage.files()
    outcome = run(*command.format(named).split())
    assert outcome.status == 2
    assert f"Give 'payroll' for the first, or {job_id_of(named)} for the other" in outcome.err
    assert (stage.store.describe(named), stage.files()) == (before, files)
    assert run("checkpoints", "payroll").status == 0
    assert run("checkpoints", job_id_of(named)).status == 0


def test_json_and_yaml_have_names_exactly(hostile, run: Run):
    names = set(_jobs(hostile))
    assert {row["name"] for row in rows(run("jobs", "-o", "json"))} == names
    assert {row["name"] for row in yaml.safe_load(run("jobs", "-o", "yaml").out)} == names


def test_a_dry_run_of_a_recovery_is_printable(hostile, run: Run):
    for format_ in OUTPUTS:
        found = run("recover", hostile.storage.base_uri, "--dry-run", "-o", format_)
        assert not _RAW.search(found.out + found.err)


def test_values_and_columns_of_users_are_printable_in_each_format(capsys):
    for text in (*HOSTILE, *VISIBLE, "\ud800"):
        for format_ in ("table", "plain") if text == "\ud800" else OUTPUTS:
            output.print_values([{f"column {text}": text, "list": [text, text]}], format_)
            assert not _RAW.search(capsys.readouterr().out)


def test_visible_text_is_shown_as_it_is():
    for text in VISIBLE:
        assert printable(text) == text


def test_every_hostile_text_is_shown_as_visible_escapes():
    for seed in range(200):
        text = _name(random.Random(seed))
        with named_in_failure(seed, [repr(text)]):
            assert is_printable(printable(text))
            assert printable_lines(text).count("\n") == text.count("\n")
            assert not _RAW.search(printable_lines(text).replace("\t", ""))


class _Odd(Exception):
    """An error whose texts are hostile."""

    def __str__(self) -> str:
        return f"odd {CLIPBOARD}\nforged"


@pytest.mark.parametrize("form", ["Job %s failed: %s", "Job %r failed: %r", "Job %(name)s failed: %(error)s"])
def test_no_argument_of_a_message_breaks_a_line_of_a_log(caplog, form):
    name = f"a {CLIPBOARD}\nb"
    arguments = [{"name": name, "error": _Odd()}] if "(" in form else [name, _Odd()]
    logging.getLogger("airflow_provider_statecheck.maintenance.gc").warning(form, *arguments)
    (record,) = caplog.records
    assert is_printable(record.getMessage())
    assert record.getMessage().startswith("Job ")


def test_numbers_and_several_lines_of_a_message_stay(caplog):
    logger = logging.getLogger("airflow_provider_statecheck.spark")
    logger.warning("%d of %.1f\n%s", 1, 2.5, report(()))
    assert caplog.records[0].getMessage() == "1 of 2.5\n"


def test_the_traceback_of_a_failed_job_is_printable(caplog):
    def fail(job_id: str) -> JobReport:
        raise _Odd

    (failed,) = each_job([job_id_of("a")], fail, JobReport)
    assert failed.problems
    formatted = logging.Formatter().format(caplog.records[0])
    assert "Traceback" in formatted
    assert "\x1b" not in formatted


def test_loggers_of_others_are_left_alone(caplog):
    logging.getLogger("elsewhere").warning("%s", "a\nb")
    assert caplog.records[0].getMessage() == "a\nb"


def test_a_recovery_names_the_job_whose_storage_failed_by_exit_status_3_after_the_others(
    hostile, run: Run, monkeypatch
):
    find, names = recover.find_job, list(_jobs(hostile))

    def fail(storage: CheckpointStorage, job_id: JobId) -> Any:
        if job_id == job_id_of(names[0]):
            raise StorageError(f"It does not answer.{CLIPBOARD}")
        return find(storage, job_id)

    monkeypatch.setattr(recover, "find_job", fail)
    found = run("recover", hostile.storage.base_uri, "--dry-run", "-o", "json")
    assert found.status == 3
    problems = {row["job_id"]: row["problems"] for row in rows(found)}
    assert problems.keys() == set(map(job_id_of, names))
    assert problems[job_id_of(names[0])] == [f"It does not answer.{CLIPBOARD}"]
