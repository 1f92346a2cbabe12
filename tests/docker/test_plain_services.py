"""Plain processes do what containers do: ``scripts.stack.compose`` against the compose file as this test reads it."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.stack import compose
from scripts.stack.compose import Service, links, read_services, settings
from tests.docker.description import AS_WRITTEN, CHOICES, DOCKER, HOME, NAMES, SERVICES, in_container, with_choices

FOLDER = Path("/somewhere/else")

# What may differ. Whatever is added to these makes plain processes tell less of the containers.
DIFFERENT_PATHS = {HOME: ".", "/run/secrets": "secrets"}
DIRECT = "localhost,127.0.0.1"
DIFFERENT_EVERYWHERE = {
    "AIRFLOW__API__HOST": "127.0.0.1",
    "SPARK_LOCAL_IP": "127.0.0.1",
    "NO_PROXY": DIRECT,
    "no_proxy": DIRECT,
}
DIFFERENT: dict[str, dict[str, Any]] = {
    "postgres": {
        "command": ["python", f"{HOME}/scripts/stack/postgres.py", "${POSTGRES_PORT}", f"{HOME}/postgres"],
    },
    "store": {
        "command": ["moto_server", "--host", "127.0.0.1", "--port", "${STORE_PORT}"],
        "check": ["CMD", "python", f"{HOME}/docker/healthy.py", "http://localhost:${STORE_PORT}/moto-api/data.json"],
        "restart": "no",
    },
}
# What a container has of its image.
OF_THE_MACHINE = {"PATH", "PYTHONUNBUFFERED", "HOME", "JAVA_HOME", "LANG", "TZ"}

TAKEN_OVER = {"command", "environment", "healthcheck", "depends_on", "restart", "stop_signal", "ports", "x-process"}
OF_CONTAINERS_ALONE = {
    "image",
    "build",
    "init",
    "user",
    "cap_drop",
    "security_opt",
    "secrets",
    "volumes",
    "hostname",
    "deploy",
}
# Words of commands that happen to be names of services.
COMMANDS_OF_AIRFLOW = {("airflow", "scheduler"), ("airflow", "dag-processor"), ("airflow", "triggerer")}

each_service = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module")
def plain() -> dict[str, Service]:
    return {service.name: service for service in read_services(FOLDER, CHOICES)}


def here(text: str) -> str:
    """Return a text of a container with the paths and addresses of this machine."""
    text = text.replace("/run/secrets", f"{FOLDER}/secrets").replace(HOME, str(FOLDER))
    for name in NAMES:
        text = text.replace(f"//{name}:", "//127.0.0.1:").replace(f"@{name}:", "@127.0.0.1:")
    return text


def command_here(words: list[str]) -> tuple[str, ...]:
    return tuple(
        "127.0.0.1" if before == "--host" and word in NAMES else here(word)
        for before, word in zip(["", *words], words, strict=False)
    )


class TestExceptions:
    def test_they_are_these_and_no_others(self):
        assert AS_WRITTEN["x-process"]["paths"] == DIFFERENT_PATHS
        assert AS_WRITTEN["x-process"]["environment"] == DIFFERENT_EVERYWHERE
        assert set(AS_WRITTEN["x-process"]) == {"paths", "environment", "links"}
        assert {name: service["x-process"] for name, service in SERVICES.items() if "x-process" in service} == DIFFERENT

    def test_whatever_else_a_service_says_is_taken_over_or_means_containers_alone(self):
        assert {key for service in SERVICES.values() for key in service} <= TAKEN_OVER | OF_CONTAINERS_ALONE


class TestDrift:
    def test_every_service_of_the_file_is_there(self, plain):
        assert sorted(plain) == NAMES

    @each_service
    def test_it_runs_the_same_command(self, plain, name):
        said = DIFFERENT.get(name, {}).get("command", SERVICES[name]["command"])

        assert plain[name].command == command_here(with_choices(said))

    @each_service
    def test_it_has_the_same_environment(self, plain, name):
        said = with_choices(SERVICES[name].get("environment", {})) | DIFFERENT_EVERYWHERE
        found = {key: value for key, value in plain[name].environment.items() if key not in OF_THE_MACHINE}

        assert found == {key: here(value) for key, value in said.items()}

    @each_service
    def test_it_is_asked_the_same_about_its_health(self, plain, name):
        said = DIFFERENT.get(name, {}).get("check", SERVICES[name].get("healthcheck", {}).get("test", ["CMD"]))

        assert plain[name].check == command_here(with_choices(said)[1:])

    @each_service
    def test_it_waits_for_the_same(self, plain, name):
        said = SERVICES[name].get("depends_on", {})

        assert plain[name].needs == {other: how["condition"] for other, how in said.items()}

    @each_service
    def test_it_is_started_again_and_ended_in_the_same_way(self, plain, name):
        policy = DIFFERENT.get(name, {}).get("restart", SERVICES[name]["restart"])

        assert policy in ("no", "unless-stopped")
        assert plain[name].restarts == (policy == "unless-stopped")
        assert f"SIG{plain[name].stop_signal}" == SERVICES[name].get("stop_signal", "SIGTERM")

    @each_service
    def test_nothing_of_a_container_is_left(self, plain, name):
        """No path and no host name: the folder's own paths aside, no word is the name of a service."""
        service = plain[name]
        environment = [value for key, value in service.environment.items() if key not in OF_THE_MACHINE]
        said = [*service.command, *service.check, *environment]
        words = {word for text in said for word in re.findall(r"[\w.-]+", re.sub(rf"{FOLDER}[\w./-]*", "", text))}

        assert [text for text in said if HOME in text or "/run/" in text] == []
        known = {service.command[1]} if service.command[:2] in COMMANDS_OF_AIRFLOW else set()
        assert words & set(NAMES) <= known

    @each_service
    def test_each_program_that_it_names_is_there(self, plain, name):
        found = links(FOLDER)
        named = [Path(word) for word in (*plain[name].command, *plain[name].check) if word.endswith(".py")]
        places = [(path.relative_to(FOLDER), found[FOLDER / path.relative_to(FOLDER).parts[0]]) for path in named]

        assert [str(path) for path, target in places if not Path(target, *path.parts[1:]).is_file()] == []

    @each_service
    def test_its_program_is_installed(self, plain, name):
        command, path = plain[name].command[0], plain[name].environment["PATH"]

        assert shutil.which(command, path=path), f"{command} is nowhere in {path}"


class TestSecretsOfAirflow:
    @pytest.mark.parametrize("folder", ["stack", "a stack, 100%"], ids=["plain", "odd"])
    def test_each_command_that_reads_one_works_in_any_folder(self, tmp_path, folder):
        place = tmp_path / folder
        subprocess.run(["sh", str(DOCKER / "make_secrets"), str(place / "secrets")], check=True)
        services = {service.name: service for service in read_services(place, CHOICES)}
        commands = {k: v for k, v in services["scheduler"].environment.items() if k.endswith("_CMD")}

        said = {name: _output(shlex.split(command)) for name, command in commands.items()}

        secrets = {file.name: file.read_text() for file in (place / "secrets").iterdir()}
        assert said == {
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_CMD": (
                f"postgresql+psycopg2://airflow:{secrets['postgres_password']}"
                f"@127.0.0.1:{CHOICES['POSTGRES_PORT']}/airflow"
            ),
            "AIRFLOW__CORE__FERNET_KEY_CMD": secrets["fernet_key"],
            "AIRFLOW__API_AUTH__JWT_SECRET_CMD": secrets["jwt_secret"],
            "AIRFLOW__API__SECRET_KEY_CMD": secrets["api_secret_key"],
        }


class TestSettings:
    def test_they_are_what_env_says(self):
        assert settings({}) == CHOICES

    def test_a_variable_of_the_shell_comes_first(self):
        assert settings({"AIRFLOW_PORT": "9090", "OTHER": "x"}) == CHOICES | {"AIRFLOW_PORT": "9090"}

    def test_it_reaches_every_place_that_names_it(self):
        services = {s.name: s for s in read_services(FOLDER, CHOICES | {"SPARK_MASTER_PORT": "7999"})}

        assert "7999" in services["spark-master"].command
        assert services["spark-worker-1"].command[-1] == "spark://127.0.0.1:7999"
        assert "--master spark://127.0.0.1:7999 " in services["scheduler"].environment["PYSPARK_SUBMIT_ARGS"]


class TestReading:
    """What a compose file may say, by a little one."""

    @pytest.fixture
    def written(self, tmp_path, monkeypatch):
        def write(services: dict[str, object], **process: object) -> list[Service]:
            everywhere = {"paths": DIFFERENT_PATHS, "links": {}, "environment": {}, **process}
            (tmp_path / "compose.yaml").write_text(yaml.safe_dump({"x-process": everywhere, "services": services}))
            monkeypatch.setattr(compose, "DOCKER", tmp_path)
            return read_services(FOLDER, {"PORT": "1234"})

        return write

    @staticmethod
    def _service(*command: str, **more: object) -> dict[str, object]:
        return {"command": list(command), **more}

    def test_a_variable_without_a_value_is_named(self, written):
        with pytest.raises(ValueError, match=r"expected a value of \$\{MISSING\}, found none; add it to docker/.env"):
            written({"one": self._service("run", "${PORT}", "${MISSING}")})

    def test_a_form_of_a_variable_that_is_not_understood_is_refused(self, written):
        """Compose would take the default, and plain processes would be told something else."""
        with pytest.raises(ValueError, match=r"PORT:-80"):
            written({"one": self._service("run", "${PORT:-80}")})

    def test_two_dollars_are_one(self, written):
        (one,) = written({"one": self._service("run", "$$(cat x)")})

        assert one.command == ("run", "$(cat x)")

    def test_services_start_after_what_they_wait_for(self, written):
        def waits(*others: str) -> dict[str, object]:
            return {other: {"condition": "service_healthy"} for other in others}

        found = written(
            {
                "last": self._service("run", depends_on=waits("middle", "first")),
                "middle": self._service("run", depends_on=waits("first")),
                "first": self._service("run"),
            }
        )

        assert [service.name for service in found] == ["first", "middle", "last"]

    def test_a_health_check_of_another_form_is_refused(self, written):
        with pytest.raises(ValueError, match="expected a health check that starts with CMD, found"):
            written({"one": self._service("run", healthcheck={"test": ["CMD-SHELL", "exit 0"]})})

    def test_names_of_services_are_replaced_as_addresses_only(self, written):
        said = (
            "airflow",
            "scheduler",
            "http://scheduler:1/scheduler",
            "user@scheduler:2",
            "scheduler.status=1",
            "--name",
        )

        (service,) = written({"scheduler": self._service(*said, "scheduler")})

        assert service.command == (
            "airflow",
            "scheduler",
            "http://127.0.0.1:1/scheduler",
            "user@127.0.0.1:2",
            "scheduler.status=1",
            "--name",
            "scheduler",
        )

    def test_a_service_that_binds_to_its_name_binds_to_this_machine(self, written):
        (service,) = written({"api": self._service("api", "--host", "api", "--host", "other")})

        assert service.command == ("api", "--host", "127.0.0.1", "--host", "other")

    def test_a_longer_path_with_the_same_beginning_stays(self, written):
        (service,) = written({"one": self._service("run", f"{HOME}/a", f"{HOME}-old/a", HOME)})

        assert service.command == ("run", f"{FOLDER}/a", f"{HOME}-old/a", str(FOLDER))

    def test_what_holds_everywhere_comes_before_what_a_service_says(self, written):
        (service,) = written({"one": self._service("run", environment={"A": "1", "B": "2"})}, environment={"B": "3"})

        assert (service.environment["A"], service.environment["B"]) == ("1", "3")

    def test_nothing_of_the_shell_but_its_tools_reaches_a_service(self, written, monkeypatch):
        monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "of another Airflow")

        (service,) = written({"one": self._service("run")})

        assert set(service.environment) <= OF_THE_MACHINE


def test_services_of_the_file_can_be_told_from_jobs(plain):
    assert {name for name, service in plain.items() if service.is_job} == {
        name for name in NAMES if "healthcheck" not in in_container(SERVICES[name])
    }


def _output(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
