"""What a driver needs: the check at its start, and the requirements file for clusters."""

from __future__ import annotations

import tomllib
from importlib import util
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError
from airflow_provider_statecheck.spark.connectors.custom.data_frame_source import DataFrameSource
from airflow_provider_statecheck.spark.context import CurrentContext, StageContext
from airflow_provider_statecheck.spark.driver.attempts import HANDOVER_VARIABLE
from airflow_provider_statecheck.spark.driver.packages import (
    OF_EVERY_DRIVER,
    OF_HTTP,
    OF_METADATA,
    OF_STAGES,
    check_driver_packages,
    requirements_file,
)
from airflow_provider_statecheck.spark.stages import stage_run
from airflow_provider_statecheck.spark.stages.stage import Count, Stage
from tests.packaging.environment import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DECLARED = {each.name: each.specifier for each in map(Requirement, PROJECT["dependencies"])}
EXTRAS = {
    name: {(each.name, each.specifier) for each in map(Requirement, PROJECT["optional-dependencies"][name])}
    for name in ("s3", "gcs", "azure", "delta", "iceberg")
}
DAYS = Stage("days").source(DataFrameSource([1], lambda spark, _: spark.range(1))).key_by("id").aggregate(n=Count())


def test_package_that_is_missing_on_the_driver_is_named_with_the_command_that_installs_it() -> None:
    with pytest.raises(EnvironmentNotReadyError, match=r"found no fsspec, no pyarrow; run pip install fsspec pyarrow "):
        check_driver_packages(is_installed=lambda name: name not in ("fsspec", "pyarrow"))


def test_driver_with_all_packages_may_start() -> None:
    asked: list[str] = []

    def is_installed(name: str) -> bool:
        asked.append(name)
        return True

    check_driver_packages(*OF_HTTP, *OF_STAGES, *OF_METADATA, is_installed=is_installed)
    assert asked == [*OF_EVERY_DRIVER, *OF_HTTP, *OF_STAGES, *OF_METADATA]


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """Name of a package that this Python does not find."""
    name: str = request.param
    find = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda wanted, *given: None if wanted == name else find(wanted, *given))
    return name


def _submitted_steps(**_: Any) -> None:
    CurrentContext().get(StageContext, None)


def _submitted_stage(**_: Any) -> None:
    stage_run.main()


def _script_of_steps(**where: Any) -> None:
    StageContext.open(None, **where)  # type: ignore[arg-type]


def _script_of_a_stage(**where: Any) -> None:
    stage_run.run_stage(None, DAYS, **where)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("start", "missing"),
    [
        *((start, "pyarrow") for start in (_submitted_steps, _submitted_stage, _script_of_steps, _script_of_a_stage)),
        *((start, "httpx") for start in (_submitted_steps, _submitted_stage)),
        *((start, "pandas") for start in (_submitted_stage, _script_of_a_stage)),
        *((start, "sqlalchemy") for start in (_script_of_steps, _script_of_a_stage)),
    ],
    indirect=["missing"],
)
def test_each_kind_of_driver_names_what_it_lacks_before_it_starts(
    start: Any, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HANDOVER_VARIABLE, "not read before the check")
    where = {"job": "sales", "checkpoint_dir": f"{tmp_path}/c", "metadata": f"sqlite:///{tmp_path}/state.db"}
    with pytest.raises(EnvironmentNotReadyError, match=f"found no {missing}; run pip install {missing} there"):
        start(**where)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("start", "missing"), [(_submitted_steps, "sqlalchemy")], indirect=["missing"])
def test_a_driver_that_is_submitted_needs_no_database(start: Any, missing: str) -> None:
    with pytest.raises(EnvironmentNotReadyError, match="found a process without a handover"):
        start()


class TestRequirements:
    """The file that ``airflow statecheck package`` writes."""

    @pytest.fixture
    def lines(self) -> list[str]:
        return requirements_file()[1].decode().splitlines()

    def test_has_the_ranges_that_are_declared_of_all_that_drivers_need_but_spark(self, lines: list[str]) -> None:
        found = {each.name: each.specifier for each in map(Requirement, _plain(lines))}
        assert found == {name: DECLARED[name] for name in set(OF_EVERY_DRIVER) - {"pyspark"}}

    def test_names_the_range_of_spark_that_the_cluster_has(self, lines: list[str]) -> None:
        [declared] = [
            each for each in map(Requirement, PROJECT["optional-dependencies"]["pyspark"]) if each.name == "pyspark"
        ]
        [line] = [line for line in lines if "The cluster has" in line]
        assert Requirement(line.removeprefix("# The cluster has ").partition(". ")[0]) == declared

    @pytest.mark.parametrize("extra", EXTRAS)
    def test_offers_each_extra_as_a_remark(self, lines: list[str], extra: str) -> None:
        start = lines.index(f"# The extra {extra}:") + 1
        offered = map(Requirement, (line.removeprefix("# ") for line in lines[start : start + len(EXTRAS[extra])]))
        assert {(each.name, each.specifier) for each in offered} == EXTRAS[extra]

    @pytest.mark.parametrize(
        ("use", "names"),
        [("that an Airflow operator submits", OF_HTTP), ("Stages", OF_STAGES), ("metadata=", OF_METADATA)],
    )
    def test_offers_what_some_drivers_need_as_remarks(self, lines: list[str], use: str, names: tuple[str, ...]) -> None:
        [start] = [number for number, line in enumerate(lines, start=1) if line.startswith("#") and use in line]
        offered = map(Requirement, (line.removeprefix("# ") for line in lines[start : start + len(names)]))
        assert {each.name: each.specifier for each in offered} == {name: DECLARED[name] for name in names}


def test_two_packages_beside_spark_are_enough_for_a_driver_that_uses_none_of_the_others() -> None:
    enough = {"fsspec", "pyarrow", "pyspark"}
    check_driver_packages(is_installed=enough.__contains__)
    for name in enough:
        with pytest.raises(EnvironmentNotReadyError, match=f"found no {name};"):
            check_driver_packages(is_installed=(enough - {name}).__contains__)


def _plain(lines: list[str]) -> list[str]:
    return [line for line in lines if not line.startswith("#")]
