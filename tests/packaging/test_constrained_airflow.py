"""
Airflow under its own constraint files, as managed services install it: tables, a resume, and the exchange of tokens.

The exchange is attacked with what another task of the same Airflow has: its own tokens, of Airflow and of this API.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest

from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.gateway.verbs import CHALLENGE_KEY, challenge_of
from airflow_provider_statecheck.metadata.tables import METADATA
from tests.live.deployment import JWT_SECRET
from tests.live.rest import wait_until
from tests.packaging.constrained_airflow import ConstrainedAirflow, running_airflow
from tests.packaging.test_constraints import FILES

pytestmark = [pytest.mark.soak, pytest.mark.live]

VICTIM, ATTACKER = "exchange_of_victim", "exchange_of_attacker"


@pytest.fixture(scope="module", params=FILES, ids=lambda file: file.stem)
def airflow(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConstrainedAirflow]:
    with running_airflow(tmp_path_factory.mktemp("constrained"), request.param) as airflow:
        yield airflow


def test_the_api_server_creates_the_tables_that_the_migration_of_the_service_could_not(
    airflow: ConstrainedAirflow,
) -> None:
    assert "dag_run" in airflow.tables_of_the_service
    assert not METADATA.tables.keys() & airflow.tables_of_the_service
    assert METADATA.tables.keys() <= airflow.tables()


def test_a_task_that_fails_resumes(airflow: ConstrainedAirflow) -> None:
    airflow.trigger("resuming")
    assert airflow.end_of("resuming") == "success", airflow.story()
    computed = (airflow.folder / "computed").read_text().splitlines()
    assert computed == ["numbers", "item a", "item b", "item b"]
    assert airflow.api.result("resuming", "resuming", "work") == 2000


@dataclass(frozen=True)
class Noted:
    """What a task sent to the coordinator and got from it."""

    calls: list[dict[str, Any]]

    @classmethod
    def of(cls, file: Path) -> Noted | None:
        calls = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return cls(calls) if any(call["path"] == "waits" for call in calls) else None

    def call(self, path: str) -> dict[str, Any]:
        """Return the first call of a path."""
        return next(call for call in self.calls if call["path"] == path)

    @property
    def proof(self) -> dict[str, str]:
        """The id of the task instance with the secret that it announced."""
        return dict(self.call("token")["sent"])

    @property
    def token(self) -> str:
        return str(self.call("token")["answer"]["token"])


@dataclass(frozen=True)
class Attack:
    """Two running tasks, and the means of the second one."""

    airflow: ConstrainedAirflow
    victim: Noted
    attacker: Noted

    def exchange(self, ti_id: str, secret: str) -> httpx.Response:
        url = f"{self.airflow.api.url}/statecheck/v1/token"
        return httpx.post(url, json={"ti_id": ti_id, "secret": secret}, timeout=30)

    def execute(self, method: str, path: str, body: Any) -> int:
        """Call Airflow's API of tasks with the token that Airflow gave to the attacker, and return the status."""
        url = f"{self.airflow.api.url}/execution/{path}"
        headers = {"Authorization": f"Bearer {_token_of_airflow(self.attacker.proof['ti_id'])}"}
        return httpx.request(method, url, json=body, headers=headers, timeout=30).status_code


def _token_of_airflow(ti_id: str) -> str:
    now = int(time.time())
    claims = {"sub": ti_id, "scope": "execution", "aud": "urn:airflow.apache.org:task", "jti": new_key()}
    times = {"nbf": now, "iat": now, "exp": now + 600}
    return jwt.encode({**claims, **times}, JWT_SECRET, algorithm="HS512", headers={"kid": "not-used"})


@pytest.fixture(scope="module")
def attack(airflow: ConstrainedAirflow) -> Iterator[Attack]:
    for dag_id in (VICTIM, ATTACKER):
        airflow.trigger(dag_id)
    try:
        victim, attacker = (
            wait_until(f"the proof of {dag_id}", lambda file=airflow.folder / dag_id: Noted.of(file))  # type: ignore[misc]
            for dag_id in (VICTIM, ATTACKER)
        )
        yield Attack(airflow, victim, attacker)
    finally:
        (airflow.folder / "go on").touch()


def refused(answer: httpx.Response) -> bool:
    return (answer.status_code, answer.json().get("code")) == (403, "access_denied")


def test_a_secret_that_was_used_is_refused(attack: Attack) -> None:
    for task in (attack.victim, attack.attacker):
        assert refused(attack.exchange(**task.proof))


def test_a_secret_that_the_task_did_not_announce_is_refused(attack: Attack) -> None:
    for secret in (
        secrets.token_urlsafe(),
        attack.attacker.proof["secret"],
        challenge_of(attack.victim.proof["secret"]),
    ):
        assert refused(attack.exchange(attack.victim.proof["ti_id"], secret))


@pytest.mark.parametrize(
    ("method", "path", "wrapped"),
    [("PUT", "task-instances/{ti_id}/rtif", "fields"), ("PUT", f"store/ti/{{ti_id}}/{CHALLENGE_KEY}", "value")],
    ids=["rendered fields", "state store"],
)
def test_another_task_cannot_announce_a_secret_for_a_task(attack: Attack, method: str, path: str, wrapped: str) -> None:
    secret, ti_id = secrets.token_urlsafe(), attack.victim.proof["ti_id"]
    challenge = challenge_of(secret)
    body = {CHALLENGE_KEY: challenge} if wrapped == "fields" else {"value": challenge}
    own = attack.execute(method, path.format(ti_id=attack.attacker.proof["ti_id"]), body)
    assert own in (200, 201, 204, 404), "the token is good for the attacker's own task; 3.2 has no state store"
    assert attack.execute(method, path.format(ti_id=ti_id), body) == (404 if own == 404 else 403)
    assert refused(attack.exchange(ti_id, secret))


def test_an_xcom_which_every_task_can_write_is_no_proof(attack: Attack) -> None:
    secret = secrets.token_urlsafe()
    path = "/".join(("xcoms", VICTIM, VICTIM, "work", CHALLENGE_KEY))
    attack.execute("POST", path, challenge_of(secret))
    assert refused(attack.exchange(attack.victim.proof["ti_id"], secret))


def test_the_token_of_another_task_registers_nothing_for_a_task_and_changes_nothing_of_its_attempt(
    attack: Attack,
) -> None:
    registered = attack.victim.call("attempts/register")
    message = {**registered["sent"], "attempt_key": new_key()}
    assert refused(attack.airflow.api.ask("POST", "attempts/register", attack.attacker.token, message))
    trigger = {"attempt": registered["answer"]["attempt"], "request_key": new_key()}
    assert refused(attack.airflow.api.ask("POST", "attempts/trigger", attack.attacker.token, trigger))


def test_the_task_goes_on_unharmed(attack: Attack) -> None:
    (attack.airflow.folder / "go on").touch()
    assert attack.airflow.end_of(VICTIM) == "success", attack.airflow.story()
    assert attack.airflow.end_of(ATTACKER) == "success", attack.airflow.story()
