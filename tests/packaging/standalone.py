"""
``airflow standalone`` of an environment with the wheel: all of Airflow on SQLite, with the password that it generates.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.live.components import Component
from tests.live.rest import AirflowApi, wait_until
from tests.packaging.environment import Environment
from tests.standalone_cluster import free_port

DAGS = Path(__file__).with_name("dags")
DAG = "installed_wheel"
_USER = "admin"


class Standalone:
    """
    A running ``airflow standalone``.

    :param folder: Folder for Airflow's home, the Dags and the checkpoints.
    :param environment: Environment with Airflow and the wheel.
    """

    def __init__(self, folder: Path, environment: Environment) -> None:
        self._home = folder / "home"
        dags = shutil.copytree(DAGS, folder / "dags", ignore=shutil.ignore_patterns("__pycache__"))
        url = f"http://127.0.0.1:{(port := free_port())}"
        self.api = AirflowApi(url)
        variables = environment.variables | _settings(folder, dags, url, port) | {"AIRFLOW_HOME": str(self._home)}
        self._process = Component(("standalone",), variables, folder / "standalone.log", str(environment.python))

    @property
    def login(self) -> tuple[str, str]:
        """Name and generated password of the administrator."""
        passwords = json.loads((self._home / "simple_auth_manager_passwords.json.generated").read_text())
        return _USER, passwords[_USER]

    def start(self) -> None:
        self._process.start()
        wait_until("the api-server", self._is_up)
        self.api.log_in(*self.login)
        wait_until(f"the Dag {DAG}", lambda: self.api.has_dag(DAG))

    def story(self) -> str:
        """Return the logs of the tasks, which help to understand a failed test."""
        return "\n".join(log.read_text() for log in sorted(self._home.glob("logs/dag_id=*/**/*.log")))

    def stop(self) -> None:
        self.api.close()
        self._process.sweep()

    def _is_up(self) -> bool:
        assert self._process.is_running(), self._process.log.read_text()
        return self.api.is_up()


@contextmanager
def running_standalone(folder: Path, environment: Environment) -> Iterator[Standalone]:
    standalone = Standalone(folder, environment)
    try:
        standalone.start()
        yield standalone
    finally:
        standalone.stop()


def _settings(folder: Path, dags: Path, url: str, port: int) -> dict[str, str]:
    """
    Return what a user would leave as it is, but for ports and folders of its own and the rights of the checkpoints.
    """
    return {
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "AIRFLOW__STATECHECK__CHECKPOINT_DIR": str(folder / "checkpoints"),
    }
