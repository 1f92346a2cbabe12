"""``docker/make_secrets`` makes each secret once."""

from __future__ import annotations

import configparser
import json
import stat
import subprocess
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from tests.docker.description import AS_WRITTEN, DOCKER

_SCRIPT = str(DOCKER / "make_secrets")
ALL = set(AS_WRITTEN["secrets"])


def make(folder: Path, before: str = "") -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", f'{before} exec sh "$0" "$1"', _SCRIPT, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def contents(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "some" / "secrets"


def test_each_is_made_and_differs_the_next_time(folder, tmp_path):
    assert make(folder).returncode == make(tmp_path / "others").returncode == 0

    made, others = contents(folder), contents(tmp_path / "others")
    assert set(made) == ALL
    assert [name for name in ALL if made[name] == others[name]] == []


def test_only_the_owner_gets_to_the_folder_and_a_container_reads_each_file(folder):
    folder.mkdir(parents=True, mode=0o755)

    make(folder, before="umask 077;")

    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o644}


def test_doing_it_again_changes_nothing(folder):
    make(folder)
    before = {file.name: (file.stat().st_mtime_ns, file.read_text()) for file in folder.iterdir()}

    assert make(folder).returncode == 0

    assert {file.name: (file.stat().st_mtime_ns, file.read_text()) for file in folder.iterdir()} == before


def test_the_store_takes_the_credentials_that_were_made_anew(folder):
    make(folder)
    (folder / "aws_credentials").unlink()

    make(folder)

    secret = (folder / "aws_credentials").read_text().split()[-1]
    assert secret in (folder / "store.json").read_text()


def test_what_somebody_put_there_stays(folder):
    folder.mkdir(parents=True)
    (folder / "admin_password").write_text("chosen by hand")

    make(folder)

    assert (folder / "admin_password").read_text() == "chosen by hand"
    assert set(contents(folder)) == ALL


def test_what_was_interrupted_is_finished(folder):
    make(folder)
    whole = contents(folder)
    (folder / "jwt_secret").write_text("")
    (folder / "fernet_key").rename(folder / "fernet_key.new")
    (folder / "store.json").unlink()

    assert make(folder).returncode == 0

    again = contents(folder)
    assert set(again) == ALL
    assert all(again.values())
    assert {name for name in ALL if again[name] != whole[name]} == {"jwt_secret", "fernet_key"}


def test_a_full_disk_is_an_error_and_leaves_no_half_secret(folder):
    done = make(folder, before="trap '' XFSZ; ulimit -f 0;")

    assert done.returncode != 0
    assert ALL & set(contents(folder)) == set()
    assert make(folder).returncode == 0


def test_without_a_folder_it_tells_its_usage(tmp_path):
    done = subprocess.run(["sh", _SCRIPT], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode != 0
    assert "usage: make_secrets FOLDER" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_key_is_one_that_airflow_takes(folder):
    make(folder)

    fernet = Fernet((folder / "fernet_key").read_text())
    assert fernet.decrypt(fernet.encrypt(b"a connection")) == b"a connection"


def test_the_password_of_the_database_needs_no_quotes_in_a_url(folder):
    make(folder)

    password = (folder / "postgres_password").read_text()
    assert len(password) == 32
    assert password.isascii()
    assert password.isalnum()


def test_the_store_knows_the_credentials_of_its_clients(folder):
    make(folder)

    ours = configparser.ConfigParser()
    ours.read(folder / "aws_credentials")
    (identity,) = json.loads((folder / "store.json").read_text())["identities"]
    assert identity["credentials"] == [
        {
            "accessKey": ours["default"]["aws_access_key_id"],
            "secretKey": ours["default"]["aws_secret_access_key"],
        }
    ]
    assert all(len(value) >= 20 for value in identity["credentials"][0].values())
