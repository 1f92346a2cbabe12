"""The command that writes what a cluster without Airflow needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.conftest import Run, rows


def test_writes_the_package_and_its_requirements_and_prints_their_paths(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "of" / "clusters"
    found = rows(run("package", str(folder), "-o", "json"))
    assert [(row["file"], Path(row["path"]).suffix) for row in found] == [("package", ".zip"), ("requirements", ".txt")]
    assert {Path(row["path"]) for row in found} == set(folder.iterdir())


def test_a_second_call_changes_nothing(run: Run, tmp_path: Path) -> None:
    first = rows(run("package", str(tmp_path), "-o", "json"))
    before = {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    assert rows(run("package", str(tmp_path), "-o", "json")) == first
    assert {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()} == before


def test_the_files_are_written_to_the_working_directory_by_default(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("package").status == 0
    assert len(list(tmp_path.iterdir())) == 2


def test_a_uri_is_a_directory_of_a_storage(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "lake" / "packages"
    found = rows(run("package", folder.as_uri(), "-o", "json"))
    assert [row["path"] for row in found] == [each.as_uri() for each in sorted(folder.iterdir(), reverse=True)]
    assert rows(run("package", folder.as_uri(), "-o", "json")) == found
    local = rows(run("package", str(tmp_path / "local"), "-o", "json"))
    assert [Path(row["path"]).read_bytes() for row in local] == [
        (folder / Path(row["path"]).name).read_bytes() for row in found
    ]


def test_a_uri_with_credentials_is_refused(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = run("package", "s3://key:secret@lake/packages")
    assert (outcome.status, "credentials" in outcome.err, "secret" in outcome.err) == (2, True, False)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    outcome = run("package", str(tmp_path / "file" / "below"))
    assert (outcome.status, str(tmp_path / "file") in outcome.err) == (3, True)
