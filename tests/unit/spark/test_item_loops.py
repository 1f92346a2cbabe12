"""Which finished items of a loop are kept after a change, and which are worked on again."""

from __future__ import annotations

import importlib
import itertools
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest

from airflow_provider_statecheck.checkpoint.records import OnClear
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent
from airflow_provider_statecheck.spark.context import StageContext
from airflow_provider_statecheck.spark.item_loop import Change, change_since
from airflow_provider_statecheck.spark.refining_loop import Refinement
from airflow_provider_statecheck.state.progress import ItemBasis
from tests.contracts.runs_of_a_job import day
from tests.unit.written_stage import WrittenStage

_numbers = itertools.count()
BASIS = ItemBasis(run="1", version="null", code="c", fingerprint="f", before=(("raw", "1"), ("old", "1")))


@pytest.fixture
def load(tmp_path, monkeypatch) -> Callable[[str], ModuleType]:
    """Write a user's module into a new directory and import it under the same name."""

    def load_module(source: str) -> ModuleType:
        monkeypatch.delitem(sys.modules, "daily", raising=False)
        directory = tmp_path / str(next(_numbers))
        directory.mkdir()
        directory.joinpath("daily.py").write_text(source)
        monkeypatch.syspath_prepend(str(directory))
        return importlib.import_module("daily")

    return load_module


def no_items(*_: object, **__: object) -> Iterator[str]:
    """Stand for a loop whose items are all finished."""
    yield from ()


class Job:
    """Tries of one stage whose function is a user's module; each try but the last fails at the third day."""

    def __init__(self, stage: WrittenStage, load: Callable[[str], ModuleType]) -> None:
        self._stage = stage
        self.load_module = load

    def days(self, source: str, *, is_failing: bool = False, runs_before: int = 0, **registration: object) -> list[str]:
        """
        Return the days that a try has worked on.

        :param runs_before: How often the function has run in this process before, without items.
        """
        worked: list[str] = []

        def work(day: str, *_: object) -> None:
            if is_failing and day == "d3":
                raise KeyError(day)
            worked.append(day)

        run = self.load_module(source).run
        for _ in range(runs_before):
            run(SimpleNamespace(each=no_items), None)
        with suppress(KeyError), StageContext(None, self._stage.attempt(**registration)) as checkpoint:  # type: ignore[arg-type]
            run(checkpoint, SimpleNamespace(done=work))
        return worked


@pytest.fixture
def job(stage: WrittenStage, load: Callable[[str], ModuleType]) -> Job:
    return Job(stage, load)


DAILY = '''
import logging

log = logging.getLogger(__name__)
DAYS = ["d1", "d2", "d3", "d4"]


def scaled(value):
    return value * 100


def run(checkpoint, work):
    """Work on each day."""
    log.info("begins")
    unused = 1
    rate = 2
    if rate > 1:
        limit = 10
    else:
        limit = 20
    extras = []
    extras.append(5)
    for day in checkpoint.each("days", DAYS, every=1):
        result = scaled(rate) + limit  # the result
        try:
            for extra in extras:
                result += extra
            work.done(day, result)
        except ValueError:
            result = 3
    log.info("ends")
'''

REPAIRS = {
    "a constant in the body": ("+ limit", "+ limit + 1"),
    "a handler in the body": ("result = 3", "result = 4"),
    "a function that the body calls": ("value * 100", "value"),
    "a variable that the body reads": ("rate = 2", "rate = 3"),
    "the condition of a variable": ("if rate > 1", "if rate > 2"),
    "a branch that defines a variable": ("limit = 20", "limit = 21"),
    "what is added to a list that the body reads": ("append(5)", "append(6)"),
    "the version": ("every=1", 'every=1, version="2"'),
}
EDITS = {
    "a log line before the loop": ('"begins"', '"has begun"'),
    "a log line after the loop": ('"ends"', '"has ended"'),
    "a new line before the loop": ("    unused = 1", "    unused = 1\n    log.info('more')\n\n"),
    "a renamed variable that the body does not read": ("unused", "never_read"),
    "a comment in the body": ("# the result", "# is the result"),
    "the layout of the body": ("scaled(rate) + limit", "(scaled(rate)\n            + limit)"),
    "a docstring": ("Work on", "Compute"),
    "how often a checkpoint is taken": ("every=1", "every=2"),
    "nothing": ("", ""),
}


@pytest.mark.parametrize("edit", REPAIRS.values(), ids=REPAIRS)
def test_items_are_worked_on_again_after_a_change_of(job: Job, edit: tuple[str, str], caplog) -> None:
    assert job.days(DAILY, is_failing=True) == ["d1", "d2"]
    assert edit[0] in DAILY
    assert job.days(DAILY.replace(*edit)) == ["d1", "d2", "d3", "d4"]
    assert "the items d1, d2 were finished; they are worked on again" in caplog.text


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_items_are_kept_after_a_change_of(job: Job, edit: tuple[str, str], caplog) -> None:
    job.days(DAILY, is_failing=True)
    assert edit[0] in DAILY
    assert job.days(DAILY.replace(*edit)) == ["d3", "d4"]
    assert not [each for each in caplog.records if each.levelno == logging.WARNING]


FORMS = {
    "an iterator in a variable": """
def run(checkpoint, work):
    days = checkpoint.each("days", ["d1", "d2", "d3", "d4"])
    print("begins")
    for day in days:
        work.done(day, 1)
""",
    "numbered items": """
def run(checkpoint, work):
    print("begins")
    for number, day in enumerate(checkpoint.each("days", ["d1", "d2", "d3", "d4"])):
        work.done(day, 1)
""",
    "a function that returns the loop": """
def days(checkpoint):
    return checkpoint.each("days", ["d1", "d2", "d3", "d4"])

def run(checkpoint, work):
    print("begins")
    for day in days(checkpoint):
        work.done(day, 1)
""",
    "a generator between": """
def days(checkpoint):
    for day in checkpoint.each("days", ["d1", "d2", "d3", "d4"]):
        yield day

def run(checkpoint, work):
    print("begins")
    for day in days(checkpoint):
        work.done(day, 1)
""",
    "a method": """
class Days:
    def __init__(self, checkpoint, work):
        self.checkpoint, self.work = checkpoint, work

    def result(self, day):
        return self.work.done(day, 1)

    def run(self):
        print("begins")
        for day in self.checkpoint.each("days", ["d1", "d2", "d3", "d4"]):
            self.result(day)

def run(checkpoint, work):
    Days(checkpoint, work).run()
""",
    "a function that is passed on": """
def result(work, day):
    work.done(day, 1)

def run_all(checkpoint, each, work):
    print("begins")
    for day in checkpoint.each("days", ["d1", "d2", "d3", "d4"]):
        each(work, day)

def run(checkpoint, work):
    run_all(checkpoint, result, work)
""",
}


@pytest.mark.parametrize("source", FORMS.values(), ids=FORMS)
def test_the_body_is_found_in(job: Job, source: str) -> None:
    job.days(source, is_failing=True)
    assert job.days(source.replace("begins", "has begun"), is_failing=True) == []
    assert job.days(source.replace("work.done(day, 1)", "work.done(day, 2)")) == ["d1", "d2", "d3", "d4"]


@pytest.mark.parametrize("source", FORMS.values(), ids=FORMS)
def test_the_body_is_found_however_often_its_code_has_run(job: Job, source: str) -> None:
    # Python 3.12 and newer replace instructions that have run a few times by faster ones.
    job.days(source, is_failing=True)
    assert job.days(source.replace("begins", "has begun"), is_failing=True, runs_before=50) == []
    assert job.days(source, is_failing=True) == []


COMPREHENSION = """
def run(checkpoint, work):
    print("begins")
    return [work.done(day, 1) for day in checkpoint.each("days", ["d1", "d2", "d3", "d4"])]
"""
EAGER = """
def run(checkpoint, work):
    print("begins")
    list(map(lambda day: work.done(day, 1), checkpoint.each("days", ["d1", "d2", "d3", "d4"])))
"""


@pytest.mark.parametrize("source", [COMPREHENSION, EAGER])
def test_without_a_for_statement_the_code_of_the_whole_function_counts(job: Job, source: str) -> None:
    job.days(source, is_failing=True)
    assert job.days(source, is_failing=True) == []
    assert job.days(source.replace("work.done(day, 1)", "work.done(day, 2)")) == ["d1", "d2", "d3", "d4"]


def test_without_its_source_the_code_of_the_whole_function_counts(job: Job, monkeypatch, load) -> None:
    def load_without_source(source: str) -> ModuleType:
        module = ModuleType("daily")
        exec(source, vars(module))
        return module

    monkeypatch.setattr(job, "load_module", load_without_source)
    job.days(DAILY, is_failing=True)
    assert job.days(DAILY.replace("# the result", "# a result"), is_failing=True) == []
    assert job.days(DAILY.replace("begins", "has begun"), is_failing=True) == ["d1", "d2"]
    assert job.days(DAILY.replace("value * 100", "value")) == ["d1", "d2", "d3", "d4"]


NESTED = """
def run(checkpoint, work):
    for month in checkpoint.each("months", ["m1"]):
        base = month
        for day in checkpoint.each("days", ["d1", "d2", "d3"]):
            text = base + day
            work.done(day, text)
        result = "end of month"
"""


def test_an_unfinished_item_keeps_the_finished_items_of_loops_in_it(job: Job) -> None:
    job.days(NESTED, is_failing=True)
    assert job.days(NESTED.replace("end of month", "over"), is_failing=True) == []
    assert job.days(NESTED.replace("base = month", "base = month[1:]"), is_failing=True) == ["d1", "d2"]
    assert job.days(NESTED.replace('["m1"]', '["m1"], version="2"')) == ["d1", "d2", "d3"]


def test_with_on_clear_resume_every_item_is_kept_and_named(job: Job, caplog) -> None:
    job.days(DAILY, is_failing=True)
    changed = DAILY.replace("value * 100", "value")
    assert job.days(changed, on_clear=OnClear.RESUME) == ["d3", "d4"]
    assert "keeps the finished items d1, d2, as on_clear='resume' demands" in caplog.text


def test_items_of_an_earlier_run_change_with_the_code_or_version_only() -> None:
    earlier = replace(BASIS, run="0", code="other", fingerprint="other")
    assert change_since(earlier, BASIS) is Change.SINCE_EARLIER_RUN
    assert change_since(replace(earlier, code="c"), BASIS) is Change.NONE
    assert change_since(replace(earlier, version='"1"'), BASIS) is Change.OWN


def test_items_of_an_earlier_run_are_kept_and_named_once_if_the_body_has_changed(job: Job, caplog) -> None:
    job.days(DAILY.replace('"d3", ', ""), owner=day(1))
    changed = DAILY.replace("value * 100", "value")
    assert job.days(changed, owner=day(2)) == ["d3"]
    assert "keeps the items d1, d2, d4, which an earlier run has finished" in caplog.text
    caplog.clear()
    assert job.days(changed, owner=day(3)) == []
    assert "an earlier run" not in caplog.text
    assert job.days(changed.replace("every=1", 'version="2"'), owner=day(4)) == ["d1", "d2", "d3", "d4"]


def test_a_change_of_a_step_before_the_loop_is_told_apart_from_new_and_removed_steps() -> None:
    assert change_since(replace(BASIS, before=(("raw", "0"), ("removed", "1"))), BASIS) is Change.BEFORE
    assert change_since(replace(BASIS, before=(("old", "1"), ("removed", "1"))), BASIS) is Change.NONE


TWO_LOOPS = """
def run(checkpoint, work):
    for table in checkpoint.each("tables", ["t1"]):
        print("write", table)
    for day in checkpoint.each("days", ["d1", "d2", "d3"]):
        work.done(day)
"""


def test_items_are_kept_and_named_after_a_change_of_a_loop_before_that_they_may_depend_on(job: Job, caplog) -> None:
    job.days(TWO_LOOPS, is_failing=True)
    assert job.days(TWO_LOOPS.replace('"write"', '"append"'), is_failing=True) == []
    assert "Loop days keeps the finished items d1, d2 although tables before it has changed" in caplog.text
    caplog.clear()
    assert job.days(TWO_LOOPS.replace('"write"', '"append"')) == ["d3"]


def test_items_of_an_older_version_are_kept_and_follow_later_changes(stage: WrittenStage, job: Job) -> None:
    older = {"loops": [[[], "days", ["d1", "d2"]]]}
    stage.attempt().take_checkpoint(CheckpointContent(snapshots=(), state=older))
    more = DAILY.replace('"d3"', '"d0", "d3"')
    assert job.days(more, is_failing=True) == ["d0"]
    assert job.days(more.replace("value * 100", "value")) == ["d1", "d2", "d0", "d3", "d4"]


def test_a_version_that_is_no_text_is_refused(stage: WrittenStage) -> None:
    context = StageContext(None, stage.attempt())  # type: ignore[arg-type]
    with context as checkpoint, pytest.raises(InvalidConfigurationError, match="Expected version to be text"):
        checkpoint.each("days", ["d1"], version=object())  # type: ignore[arg-type]


def test_many_items_are_named_in_part(job: Job, caplog) -> None:
    source = DAILY.replace('["d1", "d2", "d3", "d4"]', '[f"a{n:03}" for n in range(30)] + ["d3"]').replace(
        "every=1", "every=99"
    )
    job.days(source.replace('["d3"]', "[]"), owner=day(1))
    job.days(source.replace("value * 100", "value"), owner=day(2))
    assert "a019 and 10 more, which an earlier run" in caplog.text


def test_a_changed_function_of_a_refining_loop_changes_its_fingerprint() -> None:
    def fingerprint(**changes: object) -> str:
        loop = Refinement(
            **{"initial": print, "steps": 3, "every": 1, "step": max, "until": None, "version": None} | changes  # type: ignore[arg-type]
        )
        return loop.fingerprint(lambda build, version: f"{build} {version}")

    assert len({fingerprint(), fingerprint(initial=min), fingerprint(step=min), fingerprint(version="2")}) == 4
    assert fingerprint(steps=5) == fingerprint()
