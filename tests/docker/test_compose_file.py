"""What ``docker/compose.yaml`` and ``docker/.env`` promise, without a Docker engine."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

import airflow_provider_statecheck
from scripts.stack.postgres import postgres_bin
from tests.docker.description import (
    AS_WRITTEN,
    CHOICES,
    DOCKER,
    HOME,
    NAMES,
    OWN_IMAGE,
    SERVICES,
    in_container,
    is_own,
    texts,
    with_choices,
)
from tests.docker.dockerfile import copies, stages, the

COMPOSE = DOCKER / "compose.yaml"
_VARIABLE = re.compile(r"(?<!\$)\$\{?(\w+)")
_SECRET_PLACE = re.compile(r"/run/secrets/([\w.-]+)")
_OUR_PATH = re.compile(rf"{HOME}[\w./-]*")
_TELLS_A_SECRET = re.compile(r"PASSWORD|SECRET|TOKEN|CREDENTIAL|(?<![A-Z])KEY|CONN\b|CONN_")
_KEPT_IN_A_FILE = ("_FILE", "_CMD")

each_service = pytest.mark.parametrize("name", NAMES)


class TestSchema:
    @staticmethod
    def _check(file: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    def test_the_file_follows_the_specification(self):
        done = self._check(COMPOSE)

        assert done.returncode == 0, done.stdout

    @pytest.mark.parametrize(
        ("right", "wrong"),
        [
            ("healthcheck:", "healtcheck:"),
            ("condition: service_healthy", "condition: healthy"),
            ("init: true", "init: 7"),
        ],
        ids=["name", "value", "type"],
    )
    def test_a_mistake_is_found(self, tmp_path, right, wrong):
        text = COMPOSE.read_text()
        assert right in text
        mistaken = tmp_path / "compose.yaml"
        mistaken.write_text(text.replace(right, wrong, 1))

        done = self._check(mistaken)

        assert done.returncode == 1
        assert "Schema validation errors" in done.stdout


class TestChoices:
    def test_each_variable_of_the_services_is_a_line_of_env_and_the_other_way_round(self):
        used = {name for text in texts(AS_WRITTEN) for name in _VARIABLE.findall(text.replace("$$", ""))}

        assert used == set(CHOICES)

    def test_each_line_of_env_is_a_choice_with_a_comment_before_it(self):
        kind = {"": "blank", "#": "comment"}
        lines = (DOCKER / ".env").read_text().splitlines()
        kinds = [kind.get(line[:1], "choice") for line in lines]

        assert [line for line, k in zip(lines, kinds, strict=True) if k == "choice" and "=" not in line] == []
        assert ("blank", "choice") not in set(pairwise(kinds))
        assert kinds[0] == "comment"

    def test_each_choice_has_a_value_and_one_line(self):
        names = re.findall(r"^(\w+)=", (DOCKER / ".env").read_text(), re.MULTILINE)

        assert [name for name, value in CHOICES.items() if not value] == []
        assert sorted(names) == sorted(set(names))


class TestServices:
    @each_service
    def test_it_tells_its_health_or_runs_to_its_end(self, name):
        service = SERVICES[name]
        runs_to_its_end = {
            other
            for one in SERVICES.values()
            for other, how in one.get("depends_on", {}).items()
            if how["condition"] == "service_completed_successfully"
        }

        assert ("healthcheck" in service) != (name in runs_to_its_end)
        assert service["restart"] == ("no" if name in runs_to_its_end else "unless-stopped")

    @each_service
    def test_its_health_check_is_a_command_with_times(self, name):
        check = SERVICES[name].get("healthcheck")
        if check:
            assert check["test"][0] == "CMD"
            assert {"interval", "timeout", "retries", "start_period"} <= set(check)

    @each_service
    def test_it_has_limits(self, name):
        limits = SERVICES[name]["deploy"]["resources"]["limits"]

        assert float(limits["cpus"]) > 0
        assert re.fullmatch(r"[1-9]\d*[mg]", limits["memory"])

    @each_service
    def test_its_image_has_a_full_version(self, name):
        _, _, tag = SERVICES[name]["image"].partition(":")

        assert re.match(r"\d+\.\d+", tag), "an image without its version changes by itself"

    @each_service
    def test_its_user_is_not_root(self, name):
        service = SERVICES[name]
        user = the("USER", stages()[-1])[-1] if is_own(service) else service["user"]

        assert user.partition(":")[0] not in ("", "0", "root")
        assert is_own(service) <= bool(re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)), "a number holds without /etc/passwd"

    @each_service
    def test_it_waits_for_health_or_an_end_of_services_that_are_there(self, name):
        needs = SERVICES[name].get("depends_on", {})
        conditions = {how["condition"] for how in needs.values()}

        assert set(needs) <= set(SERVICES)
        assert conditions <= {"service_healthy", "service_completed_successfully"}
        assert [
            n for n, how in needs.items() if (how["condition"] == "service_healthy") != ("healthcheck" in SERVICES[n])
        ] == []

    def test_images_of_our_own_have_the_version_of_the_package(self):
        own = {service["image"] for service in SERVICES.values() if is_own(service)}

        assert own == {f"{OWN_IMAGE}:{airflow_provider_statecheck.__version__}"}

    def test_postgresql_has_the_version_that_plain_processes_start(self):
        said = subprocess.run([postgres_bin() / "postgres", "--version"], capture_output=True, text=True, check=True)

        assert SERVICES["postgres"]["image"].startswith(f"postgres:{said.stdout.split()[-1]}-")


class TestPorts:
    """In ``make up`` all services share one machine."""

    def test_each_port_of_env_is_another_one(self):
        ports = [value for name, value in CHOICES.items() if name.endswith("_PORT")]

        assert len(ports) > 4
        assert [port for port, times in Counter(ports).items() if times > 1] == []

    def test_ports_are_chosen_in_env_alone(self):
        said = [text for service in SERVICES.values() for text in texts({**service, "user": ""})]
        numbers = [text for text in said if re.search(r"(?:port[= ]?|:)\d{4,5}\b|^\d{4,5}$", text)]

        assert numbers == []

    @each_service
    def test_it_is_asked_and_published_where_it_listens(self, name):
        assert _published(name) <= _listening(name)
        for asked, port in _asked(name):
            assert port in _listening(asked)
        assert ("healthcheck" in SERVICES[name]) == bool(_asked(name))

    def test_no_two_services_open_the_same_port(self):
        taken = Counter(port for name in NAMES for port in _listening(name))

        assert [port for port, times in taken.items() if times > 1] == []

    @each_service
    def test_it_has_no_privileges(self, name):
        assert SERVICES[name]["cap_drop"] == ["ALL"]
        assert SERVICES[name]["security_opt"] == ["no-new-privileges:true"]

    def test_containers_reach_each_other_without_a_proxy(self):
        for name in NAMES:
            direct = SERVICES[name].get("environment", {}).get("NO_PROXY")
            if "AWS_ENDPOINT_URL_S3" in SERVICES[name].get("environment", {}):
                assert set(NAMES) - {"prepare", "dag-processor", "triggerer"} <= set(direct.split(","))

    def test_one_service_builds_the_image_of_all(self):
        """Several would build it beside each other and give their images one name."""
        assert [name for name in NAMES if "build" in SERVICES[name]] == ["prepare"]

    @each_service
    def test_published_ports_are_open_to_this_machine_only(self, name):
        for port in with_choices(SERVICES[name].get("ports", [])):
            host, outer, inner = port.split(":")
            assert host == "127.0.0.1"
            assert outer == inner


class TestSecrets:
    def test_secrets_are_files_of_one_folder_under_their_names(self):
        assert AS_WRITTEN["secrets"] == {name: {"file": f"secrets/{name}"} for name in AS_WRITTEN["secrets"]}

    def test_exactly_those_that_are_used_are_made(self, tmp_path):
        subprocess.run(["sh", str(DOCKER / "make_secrets"), str(tmp_path)], check=True)
        given = {secret for service in SERVICES.values() for secret in service.get("secrets", [])}

        assert {file.name for file in tmp_path.iterdir()} == set(AS_WRITTEN["secrets"]) == given

    @each_service
    def test_a_service_is_given_what_it_reads_and_no_more(self, name):
        read = {secret for text in texts(in_container(SERVICES[name])) for secret in _SECRET_PLACE.findall(text)}

        assert set(SERVICES[name].get("secrets", [])) == read

    @each_service
    def test_what_is_secret_is_named_by_its_file(self, name):
        service = in_container(SERVICES[name])
        variables = {**service.get("environment", {}), **AS_WRITTEN["x-process"]["environment"]}

        told = [n for n in variables if _TELLS_A_SECRET.search(n) and not n.endswith(_KEPT_IN_A_FILE)]
        assert told == []

    @each_service
    def test_no_address_command_or_label_holds_a_password(self, name):
        said = texts(SERVICES[name])
        passwords = [found for text in said for found in re.findall(r"://[^\s/@]*?:(\S.*?)@", text)]

        assert [text for text in said if re.search(r"(?i)passw(or)?d=|secret=|key=|token=", text)] == []
        assert [found for found in passwords if not found.startswith(("$$(cat /run/", '$$(cat "/run/'))] == []


class TestPlaces:
    def test_named_volumes_are_declared_and_used(self):
        used = {_source(mount) for service in SERVICES.values() for mount in service.get("volumes", [])}

        assert {source for source in used if "/" not in source} == set(AS_WRITTEN["volumes"])

    @each_service
    def test_what_is_mounted_from_the_repository_is_there_and_is_only_read(self, name):
        mounts = [mount for mount in SERVICES[name].get("volumes", []) if "/" in _source(mount)]

        assert [mount for mount in mounts if not (DOCKER / _source(mount)).exists()] == []
        assert [mount for mount in mounts if not mount.endswith(":ro")] == []

    @each_service
    def test_a_volume_lies_over_a_folder_of_the_image_that_belongs_to_its_user(self, name):
        if is_own(SERVICES[name]):
            mounts = [mount for mount in SERVICES[name]["volumes"] if "/" not in _source(mount)]
            assert [mount for mount in mounts if mount.split(":")[1] not in _made_folders()] == []

    @each_service
    def test_each_of_our_paths_is_in_the_image(self, name):
        if is_own(SERVICES[name]):
            named = {path for text in texts(in_container(SERVICES[name])) for path in _OUR_PATH.findall(text)}
            assert named or name == "spark-master"
            assert [path for path in sorted(named) if not _is_in_the_image(path)] == []

    def test_names_that_programs_find_by_their_folder_agree(self):
        stage = stages()[-1]

        assert the("WORKDIR", stage) == [HOME]
        assert f"AIRFLOW_HOME={SERVICES['scheduler']['environment']['AIRFLOW_HOME']}" in the("ENV", stage)[0].split()


def test_plain_words_are_not_taken_for_values():
    """``yes`` and ``1`` without quotes are no strings in YAML, and an environment is made of strings."""
    document = yaml.safe_load(COMPOSE.read_text())

    for service in document["services"].values():
        assert [name for name, value in service.get("environment", {}).items() if not isinstance(value, str)] == []
        assert [part for part in service["command"] if not isinstance(part, str)] == []


def _published(name: str) -> set[str]:
    return {port.rpartition(":")[2] for port in with_choices(SERVICES[name].get("ports", []))}


def _asked(name: str) -> set[tuple[str, str]]:
    """Return which services a health check asks, and on which port."""
    test = " ".join(with_choices(SERVICES[name].get("healthcheck", {}).get("test", [])))
    found = re.findall(r"//([\w-]+):(\d+)|--host=([\w-]+) .*--port=(\d+)", test)
    return {((a or b).replace("localhost", name), port or other) for a, port, b, other in found}


def _listening(name: str) -> set[str]:
    service = with_choices(SERVICES[name])
    by_variable = {service["environment"]["AIRFLOW__API__PORT"]} if name == "api-server" else set()
    return by_variable | set(re.findall(r"(?:port|-p)[= ](\d+)", " ".join(service["command"])))


def _source(mount: str) -> str:
    return mount.partition(":")[0]


def _made_folders() -> set[str]:
    return {path for run in the("RUN", stages()[-1]) if "install --directory" in run for path in _OUR_PATH.findall(run)}


def _is_in_the_image(path: str) -> bool:
    copied = {place for _, place in copies(stages()[-1])}
    return path == HOME or any(
        path == place or path.startswith(f"{place}/") for place in copied | _made_folders() - {HOME}
    )
