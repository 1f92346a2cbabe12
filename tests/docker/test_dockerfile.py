"""``docker/Dockerfile`` agrees with the repository."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from airflow_provider_statecheck import __version__
from tests.docker.description import DOCKER, ROOT
from tests.docker.dockerfile import copies, files_let_through, let_through, stages, the

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
CONSTRAINED = {line.partition("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
BUILD, IMAGE = stages()


def _installed() -> set[str]:
    return set(re.findall(r"--extra (\S+)", " ".join(the("RUN", BUILD))))


def _names(requirements: list[str]) -> Iterator[str]:
    return (re.sub(r"[-_.]+", "-", Requirement(text).name).lower() for text in requirements)


def test_both_stages_have_one_python_and_the_package_takes_it():
    bases = {line.partition(" AS ")[0] for line in (*the("FROM", BUILD), *the("FROM", IMAGE))}

    assert len(bases) == 1, "a virtual environment works with the Python that made it"
    version = re.fullmatch(r"python:(\d+\.\d+\.\d+)-.*", bases.pop())
    assert version, "a full version"
    assert version[1] in SpecifierSet(PROJECT["requires-python"])
    assert f"Python :: {version[1].rpartition('.')[0]}" in " ".join(PROJECT["classifiers"])


def test_the_extras_exist_and_the_developers_is_none_of_them():
    assert _installed()
    assert _installed() <= set(PROJECT["optional-dependencies"]) - {"dev"}


def test_what_is_installed_has_exact_versions():
    wanted = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] for extra in _installed())]

    assert {name for requirements in wanted for name in _names(requirements)} <= CONSTRAINED
    assert {*_names(PYPROJECT["build-system"]["requires"]), "uv"} <= CONSTRAINED


@pytest.mark.parametrize("source", sorted({source for stage in (BUILD, IMAGE) for source, _ in copies(stage)}))
def test_what_is_copied_is_there_and_reaches_the_build(source):
    assert list(files_let_through(source)), f"{source} is missing or excluded by Dockerfile.dockerignore"


def test_everything_that_reaches_the_build_is_copied():
    kept = [line for line in (DOCKER / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")]
    copied = {source for stage in (BUILD, IMAGE) for source, _ in copies(stage)}
    sources = {str(path.relative_to(ROOT)) for line in kept for path in ROOT.glob(line[1:])}

    assert sources == copied


@pytest.mark.parametrize(
    "path",
    [
        ".git/config",
        ".venv/bin/python",
        ".stack/secrets/fernet_key",
        "docker/.env",
        "docker/secrets/fernet_key",
        "dags/__pycache__/a.pyc",
        "scripts/demo.py",
        "tests/conftest.py",
    ],
)
def test_what_the_image_is_not_made_of_stays_outside(path):
    assert not let_through(path)


def test_the_wheel_is_built_of_what_is_copied_before():
    """What pyproject.toml names has to be there, or the build of the wheel fails in the image alone."""
    copied = {source for source, _ in copies(BUILD)}
    needed = [
        PROJECT["readme"],
        *PROJECT["license-files"],
        *PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"],
    ]

    assert {*needed, "pyproject.toml", "constraints.txt"} <= copied


def test_programs_come_from_the_environment_that_the_build_made():
    made = re.search(r"-m venv (\S+)", " ".join(the("RUN", BUILD)))

    assert made
    assert f"--from=build {made[1]} {made[1]}" in the("COPY", IMAGE), "a virtual environment holds its own path"
    assert f"PATH={made[1]}/bin:$PATH" in the("ENV", IMAGE)[0].split()


def test_the_user_of_the_image_is_the_one_that_owns_its_folders():
    user, group = the("USER", IMAGE)[-1].split(":")
    made = next(run for run in the("RUN", IMAGE) if "useradd" in run)

    assert f"groupadd --gid {group} " in made
    assert f"useradd --uid {user} " in made
    assert "--owner=airflow --group=airflow" in made


def test_the_tag_that_the_head_tells_to_build_is_the_version():
    assert f"--tag {PROJECT['name']}:{__version__} ." in (DOCKER / "Dockerfile").read_text()
