from __future__ import annotations

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import conceal, redact, secrets_in

SECRET = "wJalr/secret+key"


def test_options_are_kept_for_another_process_and_shown_to_nobody() -> None:
    storage = CheckpointStorage.open("memory://user:pass@host/ck", token=SECRET)
    assert storage.options == {"token": SECRET}
    assert repr(storage) == str(storage) == "CheckpointStorage('memory://***@host/ck')"


def test_options_cannot_be_changed_from_outside() -> None:
    given = {"token": SECRET}
    storage = CheckpointStorage.open("memory://ck", **given)
    given["token"] = "other"
    assert storage.options["token"] == SECRET
    with pytest.raises(TypeError):
        storage.options["token"] = "other"  # type: ignore[index]


@pytest.mark.parametrize(
    "options",
    [
        {"secret": SECRET},
        {"client_kwargs": {"aws_session_token": SECRET}},
        {"token": {"private": SECRET}},
        {"connection_string": SECRET},
        {"adls.connection-string": SECRET},
        {"sas_token": [SECRET]},
    ],
)
def test_secrets_at_any_depth_stay_out_of_messages(options: dict[str, object]) -> None:
    assert conceal(f"denied for {SECRET} at s3://a:b@host/x", options) == "denied for *** at s3://***@host/x"


def test_what_is_no_secret_stays_in_messages() -> None:
    options = {"endpoint_url": "http://host:9000", "anon": False, "key": ""}
    assert conceal("http://host:9000 is not there", options) == "http://host:9000 is not there"


def test_way_to_find_a_credential_is_none() -> None:
    assert list(secrets_in({"token": "cloud", "headers": {"Authorization": "Bearer abc"}})) == ["Bearer abc"]


def test_signatures_in_urls_are_redacted() -> None:
    assert redact("GET https://a/b?sv=1&sig=abc%2F&x=2 failed") == "GET https://a/b?sv=1&sig=***&x=2 failed"
    assert redact("https://a/b?X-Amz-Signature=abc") == "https://a/b?X-Amz-Signature=***"


def test_an_option_that_is_refused_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    def refuse(self: MemoryFileSystem, **options: object) -> None:
        raise ValueError(f"cannot use {options}")

    monkeypatch.setattr(MemoryFileSystem, "__init__", refuse)
    with pytest.raises(InvalidConfigurationError) as caught:
        CheckpointStorage.open("memory://ck", token=SECRET, skip_instance_cache=True)
    assert SECRET not in str(caught.value)
