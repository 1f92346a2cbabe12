from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.resources
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import airflow_provider_statecheck
from airflow_provider_statecheck.get_provider_info import get_provider_info
from tests.optional_providers import is_importable
from tests.unit.interpreter import modules_loaded_by

ROOT = Path(airflow_provider_statecheck.__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DISTRIBUTION = "airflow-provider-statecheck"
CONSTRAINTS = (ROOT / "constraints.txt").read_text().splitlines()
PARSED_WITH_A_DAG = ("operators", "decorators", "hooks", "plugins", "sensors", "triggers", "notifications")
HEAVY = {"pyspark", "py4j", "pyarrow", "pandas", "numpy", "fastapi", "alembic"}


def _modules_of(*packages: str) -> list[str]:
    found: list[str] = []
    for package in packages:
        folder = ROOT / "airflow_provider_statecheck" / package
        prefix = f"airflow_provider_statecheck.{package}."
        found += [module.name for module in pkgutil.walk_packages([str(folder)], prefix)]
    return found


def _top_level(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_one_version_stands_everywhere():
    assert "version" in PROJECT["dynamic"]
    assert importlib.metadata.version(DISTRIBUTION) == airflow_provider_statecheck.__version__


def test_the_distribution_has_the_name_that_airflow_compares():
    """Another one makes every airflow command fail."""
    assert importlib.metadata.metadata(DISTRIBUTION)["Name"] == get_provider_info()["package-name"] == PROJECT["name"]


@pytest.mark.parametrize(
    ("group", "name", "value"),
    [
        (
            "apache_airflow_provider",
            "provider_info",
            "airflow_provider_statecheck.get_provider_info:get_provider_info",
        ),
        ("airflow.plugins", "statecheck", "airflow_provider_statecheck.plugins.statecheck:StatecheckPlugin"),
    ],
    ids=["provider", "plugin"],
)
def test_an_entry_point_is_installed_and_leads_to_what_it_names(group, name, value):
    installed = importlib.metadata.distribution(DISTRIBUTION).entry_points.select(group=group)

    assert {point.name: point.value for point in installed} == {name: value}
    assert callable(installed[name].load())


def test_constraints_are_names_with_exact_versions_and_nothing_else():
    assert [line for line in CONSTRAINTS if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*==[0-9][0-9a-z.+!]*", line)] == []


def test_constraints_name_each_distribution_once():
    names = [line.partition("==")[0] for line in CONSTRAINTS]

    assert sorted(set(names)) == sorted(names)


def test_constraints_hold_the_equal_versions_of_pyspark_and_its_client():
    ranges = {r.name: r.specifier for r in map(Requirement, PROJECT["optional-dependencies"]["pyspark"])}
    pins = dict(line.split("==") for line in CONSTRAINTS)

    assert set(ranges) == {"pyspark", "pyspark-client"}
    assert len(set(ranges.values())) == 1
    assert len({pins[name] for name in ranges}) == 1
    assert all(pins[name] in allowed for name, allowed in ranges.items())


SERVICES = ("amazon", "databricks", "google", "kubernetes", "livy")
OF_PROVIDERS = (
    "airflow.providers.amazon.aws.operators.emr",
    "airflow.providers.apache.livy.operators.livy",
    "airflow.providers.cncf.kubernetes.operators.spark_kubernetes",
    "airflow.providers.databricks.operators.databricks",
    "airflow.providers.google.cloud.operators.dataproc",
)


def test_each_requirement_is_a_name_with_a_range():
    extras = [item for extra in PROJECT["optional-dependencies"].values() for item in extra]

    assert [item for item in [*PROJECT["dependencies"], *extras] if "://" in item or "@" in item] == []


@pytest.mark.parametrize(
    "path", ["py.typed", "metadata/alembic.ini", "metadata/migrations/env.py", "metadata/migrations/script.py.mako"]
)
def test_data_that_is_read_at_run_time_is_part_of_the_package(path):
    assert importlib.resources.files("airflow_provider_statecheck").joinpath(path).is_file()


def test_each_public_name_resolves_and_no_other_does():
    for name in airflow_provider_statecheck.__all__:
        assert getattr(airflow_provider_statecheck, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        airflow_provider_statecheck.no_such_name  # noqa: B018


def test_type_checkers_are_told_the_same_public_names():
    tree = ast.parse(Path(airflow_provider_statecheck.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    told = {
        str(alias.asname): str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }

    for name, module in told.items():
        if is_importable(module):
            assert getattr(airflow_provider_statecheck, name) is getattr(importlib.import_module(module), name)
    of_services = {name for name, module in told.items() if module.rpartition(".")[2] in SERVICES}
    assert {*told, "__version__"} - of_services == set(airflow_provider_statecheck.__all__)
    assert len(of_services) == 10


def test_all_names_are_imported_without_the_providers_of_services():
    blocked = "; ".join(f"sys.modules[{name!r}] = None" for name in OF_PROVIDERS)
    loaded = modules_loaded_by(f"import sys; {blocked}\nfrom airflow_provider_statecheck import *")
    assert "airflow_provider_statecheck.operators.pyspark" in loaded


@pytest.mark.parametrize(
    ("name", "extra"), [("CheckpointedLivyOperator", "livy"), ("CheckpointedEmrAddStepsOperator", "amazon")]
)
def test_a_missing_provider_is_named_with_its_extra(name, extra, monkeypatch):
    monkeypatch.delitem(sys.modules, f"airflow_provider_statecheck.operators.{extra}", raising=False)
    for module in OF_PROVIDERS:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=rf"{name} needs airflow.* install .*\[{extra}\]"):
        getattr(airflow_provider_statecheck, name)


def test_names_are_listed_without_the_providers_of_services():
    names = {*airflow_provider_statecheck.__all__, "CheckpointedDataprocSubmitJobOperator"}
    assert names <= set(dir(airflow_provider_statecheck))


def test_importing_the_package_loads_nothing_heavy_and_no_airflow():
    assert not _top_level(modules_loaded_by("import airflow_provider_statecheck")) & {*HEAVY, "airflow", "sqlalchemy"}


def test_a_dag_file_with_every_operator_loads_nothing_heavy():
    modules = [name for name in _modules_of(*PARSED_WITH_A_DAG) if is_importable(name)]
    statements = "\n".join(f"import {name}" for name in modules)

    loaded = modules_loaded_by(statements)

    assert {"airflow_provider_statecheck.operators.pyspark", *modules} <= loaded
    assert not _top_level(loaded) & HEAVY


def test_parsing_the_examples_loads_nothing_heavy():
    files = sorted(map(str, (ROOT / "dags").glob("*.py")))

    loaded = modules_loaded_by(f"import runpy; [runpy.run_path(file) for file in {files!r}]")

    assert len(files) > 10
    assert not _top_level(loaded) & HEAVY


@pytest.mark.parametrize("package", ["checkpoint", "storage", "spark", "gateway"])
def test_what_is_shipped_to_a_spark_cluster_loads_without_airflow_and_database(package):
    """By what is really loaded, for import-linter does not see an import by dotted name."""
    statements = "\n".join(f"import {name}" for name in _modules_of(package))

    assert not _top_level(modules_loaded_by(statements)) & {"airflow", "sqlalchemy", "alembic", "fastapi"}


class TestPreflight:
    """What stands before every set-up says in one line what is missing."""

    @pytest.fixture
    def tools(self, tmp_path: Path) -> Path:
        """A folder with what the script needs, and Chromium, but neither Java nor Python."""
        for tool in ("sh", "awk", "df", "sed", "head"):
            found = shutil.which(tool)
            assert found is not None, tool
            (tmp_path / tool).symlink_to(found)
        self._add(tmp_path, "chromium", "exit 0")
        return tmp_path

    @staticmethod
    def _add(folder: Path, name: str, body: str) -> None:
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)

    @staticmethod
    def _run(tools: Path, python: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {"PATH": str(tools)}
        return subprocess.run(
            ["sh", str(ROOT / "scripts/preflight"), python],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    def test_a_sufficient_machine_passes_silently(self, tools):
        self._add(tools, "java", "echo 'openjdk version \"17.0.9\" 2023-10-17' >&2")

        done = self._run(tools, sys.executable)

        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def test_a_missing_browser_is_noted_and_no_trouble(self, tools):
        self._add(tools, "java", "echo 'openjdk version \"17.0.9\" 2023-10-17' >&2")
        (tools / "chromium").unlink()

        done = self._run(tools, sys.executable)

        assert (done.returncode, done.stderr) == (0, "")
        assert len(done.stdout.splitlines()) == 1
        assert "will not run (apt-get install chromium)" in done.stdout

    @pytest.mark.parametrize(("version", "found"), [("11.0.21", "Java 11"), ("1.8.0_392", "Java 8")], ids=["11", "8"])
    def test_an_old_java_is_refused_with_its_version(self, tools, version, found):
        self._add(tools, "java", f"echo 'openjdk version \"{version}\"' >&2")

        done = self._run(tools, sys.executable)

        assert done.returncode != 0
        assert len(done.stderr.splitlines()) == 1
        assert "expected Java 17 or newer" in done.stderr
        assert found in done.stderr

    def test_a_missing_java_is_refused_with_the_way_to_get_one(self, tools):
        done = self._run(tools, sys.executable)

        assert done.returncode != 0
        assert len(done.stderr.splitlines()) == 1
        assert "expected Java 17 or newer, found none; install" in done.stderr

    def test_an_old_python_and_a_missing_java_are_told_in_two_lines(self, tools):
        self._add(tools, "oldpython", '[ "$1" = -V ] && { echo Python 3.10.4; exit 0; }\nexit 1')

        done = self._run(tools, "oldpython")

        assert done.returncode != 0
        assert len(done.stderr.splitlines()) == 2
        assert f"expected Python {self.minimum()} or newer, found Python 3.10.4" in done.stderr

    @staticmethod
    def minimum() -> str:
        found = re.search(r"^minimum=(\S+)$", (ROOT / "scripts/preflight").read_text(), re.MULTILINE)
        assert found is not None
        return found[1]

    def test_the_oldest_python_is_the_oldest_that_can_install_the_constraints(self):
        """With an older one the installer fails without naming the version that is needed."""
        names = {line.partition("==")[0] for line in CONSTRAINTS}
        ranges = [
            SpecifierSet(str(each.metadata.json.get("requires_python", "")))
            for each in importlib.metadata.distributions()
            if canonicalize_name(each.name) in names
        ]
        release, _, patch = self.minimum().rpartition(".")

        assert all(self.minimum() in each for each in [*ranges, SpecifierSet(PROJECT["requires-python"])])
        assert not all(f"{release}.{int(patch) - 1}" in each for each in ranges)

    def test_the_patch_release_of_an_old_python_counts(self, tools):
        self._add(tools, "java", "echo 'openjdk version \"17.0.9\"' >&2")
        pretended = f"import sys; sys.version_info = (*map(int, '{self.minimum()}'.split('.')),)[:2] + (0,); "
        self._add(
            tools,
            "oldpython",
            f'[ "$1" = -V ] && {{ echo Python 3.11.0; exit 0; }}\nexec "{sys.executable}" -c "{pretended}$2" "$3"',
        )

        done = self._run(tools, "oldpython")

        assert done.returncode != 0
        assert f"expected Python {self.minimum()} or newer, found Python 3.11.0" in done.stderr

    def test_too_little_disk_is_refused_with_the_figure(self, tools):
        self._add(tools, "java", "echo 'openjdk version \"21.0.1\"' >&2")
        (tools / "df").unlink()
        self._add(tools, "df", "echo head; echo '/dev/x 9 9 102400 99% /'")

        done = self._run(tools, sys.executable)

        assert done.returncode != 0
        assert "found 100 MB" in done.stderr
