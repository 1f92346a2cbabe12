"""Digests of code and of plans."""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from types import ModuleType

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.fingerprint import code_digest, step_fingerprint
from airflow_provider_statecheck.spark.plan_digest import stable_text

ROOT = Path(__file__).parents[3]
_numbers = itertools.count()


@pytest.fixture
def load(tmp_path, monkeypatch) -> Callable[..., ModuleType]:
    """Write a user's modules into a new directory and import the one called ``step``, under that very name."""

    def load_module(source: str, **helpers: str) -> ModuleType:
        for name in ("step", *helpers):
            monkeypatch.delitem(sys.modules, name, raising=False)
        directory = tmp_path / str(next(_numbers))
        directory.mkdir()
        for name, text in {"step": source, **helpers}.items():
            directory.joinpath(f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(str(directory))
        return importlib.import_module("step")

    return load_module


STEP = """
import helpers
from helpers import clean

FACTOR = 3

def double(x):
    return x * 2

def build(x, limit=10):
    total = clean(double(x)) + 1
    return helpers.scale(total) if total > limit else [double(y) for y in (1, 2)]
"""
HELPERS = """
def clean(x):
    return deep(x)

def deep(x):
    return x - 1

def scale(x):
    return x * 5

def unused(x):
    return x
"""


def digest(load, step=STEP, helpers=HELPERS):
    return code_digest(load(step, helpers=helpers).build)


SAME = {
    "comment": ("    total", "    # a remark\n    total"),
    "blank-lines": ("def build", "\n\n\n\ndef build"),
    "docstring": ("limit=10):", 'limit=10):\n    """Say what it does."""'),
    "global-value": ("FACTOR = 3", "FACTOR = 4"),
    "annotation": ("def double(x):", "def double(x: 'int') -> 'int':"),
}
DIFFERENT = {
    "constant": ("+ 1", "+ 2"),
    "type-of-constant": ("+ 1", "+ 1.0"),
    "truth-for-one": ("+ 1", "+ True"),
    "operation": ("total > limit", "total < limit"),
    "default": ("limit=10", "limit=11"),
    "name": ("clean(double(x))", "clean(clean(x))"),
    "nested-code": ("for y in (1, 2)", "for y in (2, 1)"),
    "helper": ("x * 2", "x * 3"),
    "error-handling": (
        "    total = clean(double(x)) + 1\n",
        "    try:\n        total = clean(double(x)) + 1\n    except ValueError:\n        raise\n",
    ),
}
HELPER_DIFFERENT = {
    "imported-function": ("return deep(x)", "return deep(x) + 1"),
    "function-behind-it": ("x - 1", "x - 2"),
    "attribute-of-a-module": ("x * 5", "x * 6"),
}


@pytest.mark.parametrize(("old", "new"), SAME.values(), ids=SAME.keys())
def test_what_does_not_change_the_result_of_the_code_does_not_count(load, old, new):
    assert old in STEP
    assert digest(load) == digest(load, STEP.replace(old, new))


@pytest.mark.parametrize(("old", "new"), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_changed_code_counts(load, old, new):
    assert old in STEP
    assert digest(load) != digest(load, STEP.replace(old, new))


@pytest.mark.parametrize(("old", "new"), HELPER_DIFFERENT.values(), ids=HELPER_DIFFERENT.keys())
def test_changed_helpers_in_another_module_count(load, old, new):
    assert old in HELPERS
    assert digest(load) != digest(load, helpers=HELPERS.replace(old, new))


def test_a_helper_that_is_not_used_does_not_count(load):
    assert digest(load) == digest(load, helpers=HELPERS.replace("    return x\n", "    return x + 100\n"))


def test_an_import_inside_the_function_is_followed_whether_or_not_it_was_loaded(load):
    step = "def build(x):\n    from pipeline_helpers import clean\n    return clean(x)\n"

    def measure(body: str, *, loaded: bool) -> str:
        module = load(step, pipeline_helpers=f"def clean(x):\n    return {body}\n")
        sys.modules.pop("pipeline_helpers", None)
        if loaded:
            importlib.import_module("pipeline_helpers")
        found = code_digest(module.build)
        sys.modules.pop("pipeline_helpers", None)
        return found

    assert measure("x", loaded=True) == measure("x", loaded=False)
    assert measure("x", loaded=False) != measure("x + 1", loaded=False)


def test_functions_that_call_each_other_end(load):
    source = """
def even(n):
    return n == 0 or odd(n - 1)

def odd(n):
    return n != {} and even(n - 1)

build = even
"""
    first, second = (code_digest(load(source.format(n)).build) for n in (0, 1))
    assert first != second


def test_two_helpers_that_swap_their_bodies_count(load):
    source = "a = lambda x: {}\nb = lambda x: {}\ndef build(x):\n    return a(x) - b(x)\n"
    assert code_digest(load(source.format("x", "-x")).build) != code_digest(load(source.format("-x", "x")).build)


CLASSES = """
class Pipeline:
    def __init__(self, run_id):
        self.run_id = run_id

    def build(self):
        return self._clean(1) + self.limit

    def _clean(self, x):
        return x + 1

    @property
    def limit(self):
        return 7

    def other_step(self):
        return 8

    def __call__(self):
        return self._clean(2)

pipeline = Pipeline("run")

def build():
    return pipeline._clean(4)
"""


@pytest.mark.parametrize("which", ["method", "function", "object"])
def test_a_method_is_followed_through_its_object(load, which):
    def measure(source: str) -> str:
        module = load(source)
        roots = {"method": module.pipeline.build, "function": module.build, "object": module.pipeline}
        return code_digest(roots[which])

    assert measure(CLASSES) != measure(CLASSES.replace("x + 1", "x + 2"))
    assert measure(CLASSES) == measure(CLASSES.replace("return 8", "return 9"))


def test_a_property_that_a_method_uses_counts_but_its_values_do_not(load):
    before = code_digest(load(CLASSES).Pipeline("run").build)
    assert before == code_digest(load(CLASSES).Pipeline("another run").build)
    assert before != code_digest(load(CLASSES.replace("return 7", "return 6")).Pipeline("run").build)


def test_captured_values_do_not_count_but_captured_functions_do(load):
    source = """
def make(value, helper):
    def build():
        return helper(value)
    return build
"""
    module = load(source)
    first = code_digest(module.make("run-1", lambda x: x))
    assert first == code_digest(module.make("run-2", lambda x: x))
    assert first != code_digest(module.make("run-1", lambda x: x + 1))


def test_a_partial_counts_by_its_function_and_the_functions_given_to_it(load):
    module = load("def build(helper, day):\n    return helper(day)\n")
    first = code_digest(functools.partial(module.build, lambda x: x, day="2026-01-01"))
    assert first == code_digest(functools.partial(module.build, lambda x: x, day="2026-01-02"))
    assert first != code_digest(functools.partial(module.build, lambda x: -x, day="2026-01-01"))


def test_a_decorated_helper_counts_by_what_is_behind_the_decorator(load):
    source = (
        "import functools\n\n@functools.lru_cache\ndef helper(x):\n    return x {} 1\n\n"
        "def build():\n    return helper(1)\n"
    )
    assert code_digest(load(source.format("+")).build) != code_digest(load(source.format("-")).build)


def test_a_value_that_counts_is_found_wherever_it_is_captured(load):
    class Frame:
        def __init__(self, plan: str) -> None:
            self.plan = plan

    def describe(value: object) -> str | None:
        return value.plan if isinstance(value, Frame) else None

    source = """
class Holder:
    def __init__(self, frame):
        self.frame = frame
    def build(self):
        return self.frame

FRAME = None

def from_global():
    return FRAME

def from_closure(frame):
    return lambda: frame

def from_default(frame):
    return lambda frame=frame: frame

def from_keyword(frame):
    def build(*, frame=frame):
        return frame
    return build

def from_container(frame):
    frames = {"a": [frame]}
    return lambda: frames
"""
    module = load(source)

    def roots(frame: Frame) -> list[Callable[..., object]]:
        module.FRAME = frame
        makers = (module.from_closure, module.from_default, module.from_keyword, module.from_container)
        partial = functools.partial(lambda f: f, frame)
        return [module.from_global, *(make(frame) for make in makers), module.Holder(frame).build, partial]

    first = [code_digest(root, describe) for root in roots(Frame("one"))]
    again = [code_digest(root, describe) for root in roots(Frame("one"))]
    other = [code_digest(root, describe) for root in roots(Frame("two"))]
    assert first == again
    assert all(one != two for one, two in zip(first, other, strict=True))


CHILD = """
import json, sys
sys.path.insert(0, {directory!r})
import step
from airflow_provider_statecheck.spark.fingerprint import code_digest
print(json.dumps(code_digest(step.build)))
"""


def test_every_process_finds_the_same_digest(tmp_path):
    tmp_path.joinpath("step.py").write_text(
        "def helper(x):\n    return x in {'a', 'b', 'c', 'd', 'e', 1, None}\n\n"
        "def build(x, names=frozenset({'p', 'q', 'r', 's'})):\n    return helper(x) or x in {'u', 'v', 'w', 'x'}\n"
    )

    def run(seed: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", CHILD.format(directory=str(tmp_path))],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return str(json.loads(done.stdout))

    assert len({run("0"), run("1"), run("4711")}) == 1


def test_code_of_installed_packages_is_not_followed():
    def build() -> str:
        return json.dumps({"a": 1})

    seen: list[object] = []

    def describe(value: object) -> str | None:
        seen.append(value)
        return None

    code_digest(build, describe)
    assert json in seen
    assert json.dumps not in seen


def test_dags_below_the_interpreters_prefix_are_the_users_own(load, monkeypatch, tmp_path):
    """Some images keep their Dags in a folder of the interpreter's prefix."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert digest(load) != digest(load, helpers=HELPERS.replace("x - 1", "x - 2"))


EQUAL = {
    "ids": ("Project [a#12, b#7L AS c#13L]", "Project [a#1, b#2L AS c#3L]"),
    "lambda-names": ("lambdafunction(lambda x_1#5, lambda x_1#5)", "lambdafunction(lambda x_7#9, lambda x_7#9)"),
    "partitions-of-a-range": ("Range (0, 9, step=1, splits=Some(2))", "Range (0, 9, step=1, splits=Some(64))"),
    "drawn-seeds": ("[rand(-4622673334435848592) AS r#1]", "[rand(8622673334435848592) AS r#2]"),
    "drawn-seed-of-a-sample": (
        "Sample 0.0, 0.1, false, 3696230512826699043, Bernoulli",
        "Sample 0.0, 0.1, false, 6230512826699043369, Bernoulli",
    ),
    "drawn-seed-of-uuid": ("uuid(Some(5158508642481926753))", "uuid(Some(1158508642481926753))"),
    "common-table-expressions": (
        "CTERelationDef 4, false\nCTERelationRef 4, true",
        "CTERelationDef 0, false\nCTERelationRef 0, true",
    ),
    "addresses": ("Provider@3fed043e, rate", "Provider@201ad1fe, rate"),
    "rdds": ("MapPartitionsRDD[4] at x", "MapPartitionsRDD[9] at x"),
}
UNEQUAL = {
    "which-column": ("Join (id#1 = id#2), id#1", "Join (id#1 = id#2), id#2"),
    "given-seed": ("rand(5)", "rand(6)"),
    "given-seed-of-a-sample": ("Sample 0.0, 0.1, false, 42, Bernoulli", "Sample 0.0, 0.1, false, 43, Bernoulli"),
    "number-in-a-text": ("Filter (a#1 = order #12)", "Filter (a#1 = order #13)"),
    "name-with-a-number": ("Project [col_1#4]", "Project [col_2#4]"),
    "which-table-expression": (
        "CTERelationDef 0\nCTERelationDef 1\nCTERelationRef 0",
        "CTERelationDef 0\nCTERelationDef 1\nCTERelationRef 1",
    ),
}


@pytest.mark.parametrize(("first", "second"), EQUAL.values(), ids=EQUAL.keys())
def test_what_a_jvm_counts_or_draws_does_not_matter(first, second):
    assert stable_text(first) == stable_text(second)


@pytest.mark.parametrize(("first", "second"), UNEQUAL.values(), ids=UNEQUAL.keys())
def test_what_somebody_wrote_matters(first, second):
    assert stable_text(first) != stable_text(second)


def test_a_version_that_is_no_text_is_refused() -> None:
    with pytest.raises(
        InvalidConfigurationError, match=r"Expected version to be text, such as str\(day\), found datetime"
    ):
        step_fingerprint(lambda: None, version=date(2026, 1, 1), snapshots={}, salt="")  # type: ignore[arg-type]
