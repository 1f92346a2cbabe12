"""Credentials in a URI are refused where a directory is set, and shown nowhere."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.masking import masked, redact
from airflow_provider_statecheck.configuration import StatecheckSettings
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.state.backends import FsStateBackend
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import normalise_savepoint_dir
from airflow_provider_statecheck.storage.views.checkpoint_storages import require_savepoint_target
from tests.messages import make_registration
from tests.sqlite_rows import new_store

SECRET = "s3cr3t-v4lu3"
NAMES = (
    *(
        "password",
        "passwd",
        "pwd",
        "api_key",
        "apikey",
        "api-key",
        "key",
        "sas_token",
        "sas",
        "sig",
        "signature",
        "token",
    ),
    *("access_token", "secret", "client_secret", "AccountKey", "SharedAccessSignature", "X-Amz-Security-Token", "auth"),
    *("pass", "db-pass", "dbPass", "pw"),
    *("X-Amz-Credential", "credential", "connection_string", "delegation", "passphrase", "aws_secret_access_key"),
)
IN_NAMES = [f"{separator}{name}={SECRET}" for separator, name in product("#;&", NAMES)]
URIS = (
    f"s3://key:{SECRET}@lake/checkpoints",
    f"sftp://user:{SECRET}@host/checkpoints",
    *(f"s3://lake/checkpoints{parameter}" for parameter in IN_NAMES),
    *(f"s3://lake/checkpoints#region=eu&{name.upper()}={SECRET}" for name in NAMES),
)


def _register(uri: str) -> None:
    AttemptCoordinator(new_store()).register(make_registration(storage_base=uri))


PLACES: dict[str, Callable[[str], Any]] = {
    "setting": lambda uri: StatecheckSettings.from_airflow(checkpoint_dir=uri),
    "registration": _register,
    "savepoint_dir": normalise_savepoint_dir,
    "target of a savepoint": lambda uri: require_savepoint_target(uri, None),
    "state backend": lambda uri: FsStateBackend(uri),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_directory_with_credentials_is_refused_without_showing_them(place):
    for uri in URIS:
        with pytest.raises(InvalidConfigurationError, match="without credentials") as caught:
            PLACES[place](uri)
        assert SECRET not in str(caught.value)
        assert SECRET not in repr(vars(caught.value))


def test_no_text_shows_the_credentials_of_a_uri():
    for uri in (*URIS, *(f"https://host/a?x=1&{name}={SECRET}" for name in NAMES)):
        for text in (uri, f"failed at {uri}", f"failed at '{uri}' twice", f'{{"uri": "{uri}"}}'):
            assert SECRET not in redact(text)
            assert SECRET not in masked(text)


@pytest.mark.parametrize("form", ["'{}'", '"{}"', "{{{}}}", "a;{}", "a?{}", "'{}", "{};b", "{}?b"])
def test_no_quote_and_no_separator_in_a_secret_parameter_shows_the_rest_of_it(form):
    for separator in "?;&#":
        uri = f"jdbc:x://host/a?x=1{separator}password={form.format(SECRET)}"
        shown = redact(f"{uri}{separator}user=me")
        assert SECRET not in shown
        assert shown.endswith(f"{separator}user=me") or form == "'{}"  # a quote without an end


@pytest.mark.parametrize(
    "uri", ["s3://lake/a?passive=1", "s3://lake/a?passage=x;y", "s3://lake/?a=1?b=2;c", "'s3://b?a=1'"]
)
def test_parameters_that_are_no_secrets_stay(uri):
    assert redact(uri) == uri


def test_the_directories_of_earlier_rows_are_still_opened():
    """A job that an earlier version registered with credentials in its directory is still collected."""
    storage = CheckpointStorage.open("memory://user:password@jobs/base")
    assert "password" not in repr(storage)
