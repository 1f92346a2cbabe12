"""Which modules of the user's are sent to Spark's tasks, and which they find by themselves."""

from __future__ import annotations

import datetime
import functools
import importlib.util
import json
import os
import pickle
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pyspark import cloudpickle

from airflow_provider_statecheck.spark.stages.preparation import make_importable

MODULES = {
    "pipeline_of_tests/__init__.py": "",
    "pipeline_of_tests/functions.py": "import rates_of_tests\ndef double(x): return rates_of_tests.RATE * x\n"
    "class Function:\n    def map(self, x): return double(x)\n",
    "rates_of_tests.py": "RATE = 2\n",
    "types_of_tests.py": "from __future__ import annotations\nimport dataclasses, datetime, typing\n"
    "@dataclasses.dataclass\nclass Visit:\n    at: datetime.datetime\n    pages: list[int]\n"
    "class Place(typing.NamedTuple):\n    since: datetime.date\n"
    "class Unresolved:\n    other: KnownToTypeCheckers\n"
    "def visit(x): return Visit, Place, Unresolved\n",
    "unrelated/other_of_tests.py": "def other(x): return x\n",
}


def local_spark() -> Any:
    context = SimpleNamespace(environment={"PYTHONPATH": "already"})
    return SimpleNamespace(conf={"spark.master": "local[2]"}, sparkContext=context)


def cluster_spark() -> Any:
    return SimpleNamespace(conf={"spark.master": "spark://host:7077"})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in MODULES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path / "unrelated"))
    yield tmp_path
    for name in [name for name in sys.modules if "_of_tests" in name]:
        del sys.modules[name]
    for name in cloudpickle.list_registry_pickle_by_value():
        cloudpickle.unregister_pickle_by_value(ModuleType(name))


def sent() -> set[str]:
    return set(cloudpickle.list_registry_pickle_by_value())


def functions(_: Path) -> Any:
    return importlib.import_module("pipeline_of_tests.functions")


def test_local_tasks_get_the_search_path_and_nothing_is_sent(folder: Path) -> None:
    spark = local_spark()
    make_importable(spark, [functions(folder).Function()])
    paths = spark.sparkContext.environment["PYTHONPATH"].split(os.pathsep)
    assert (paths[0], str(folder) in paths) == ("already", True)
    assert not [path for path in paths if path.endswith("site-packages")]
    assert sent() == set()


def test_search_path_is_given_once(folder: Path) -> None:
    spark = local_spark()
    make_importable(spark, [])
    once = spark.sparkContext.environment["PYTHONPATH"]
    make_importable(spark, [])
    assert spark.sparkContext.environment["PYTHONPATH"] == once


def test_module_that_cannot_be_found_by_its_name_is_sent_to_local_tasks_too(folder: Path) -> None:
    """As Airflow names the module of a Dag's file."""
    name = "unusual_prefix_0_of_tests"
    spec = importlib.util.spec_from_file_location(name, folder / "rates_of_tests.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    function = SimpleNamespace(__module__=name, __qualname__="f")
    make_importable(local_spark(), [function])
    assert sent() == {name}


def test_remote_tasks_are_sent_all_that_lies_beside_the_functions_and_no_more(folder: Path) -> None:
    found = functions(folder)
    importlib.import_module("other_of_tests")
    make_importable(cluster_spark(), [found.Function(), json.dumps, str.upper, pytest])
    assert {name.partition(".")[0] for name in sent()} == {"pipeline_of_tests", "rates_of_tests"}


def test_function_with_arguments_of_its_own_is_sent_too(folder: Path) -> None:
    make_importable(cluster_spark(), [functools.partial(functions(folder).double, 4)])
    assert "pipeline_of_tests" in sent()


def test_what_was_sent_works_where_the_modules_are_not(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = functions(folder)
    make_importable(cluster_spark(), [found.Function()])
    data = cloudpickle.dumps(found.Function())
    for name in ("pipeline_of_tests.functions", "pipeline_of_tests"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(folder)])
    assert pickle.loads(data).map(4) == 8


def test_types_of_state_that_were_sent_are_known_where_their_module_is_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_importable(cluster_spark(), [importlib.import_module("types_of_tests").visit])
    data = cloudpickle.dumps(sys.modules["types_of_tests"].visit)
    monkeypatch.delitem(sys.modules, "types_of_tests")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(folder)])
    visit, place, unresolved = pickle.loads(data)(1)
    assert typing.get_type_hints(visit) == {"at": datetime.datetime, "pages": list[int]}
    assert typing.get_type_hints(place) == {"since": datetime.date}
    assert unresolved.__annotations__ == {"other": "KnownToTypeCheckers"}


def test_packages_of_spark_and_this_one_are_never_sent(folder: Path) -> None:
    from airflow_provider_statecheck.state.functions.user_functions import RichFunction

    make_importable(cluster_spark(), [RichFunction()])
    assert sent() == set()
