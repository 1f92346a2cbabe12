"""The options of a filesystem, which may be credentials: what may be handed on, and what no message may say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from airflow_provider_statecheck.storage.uris import redact

_SECRET_WORDS = (
    "key",
    "secret",
    "token",
    "passw",
    "pwd",
    "auth",
    "credential",
    "signature",
    "connection_string",
    "sas",
)
# Ways to find a credential, which gcsfs takes in place of one: as a secret they would be blotted out of every log.
_WAYS = frozenset({"anon", "cloud", "browser", "cache", "google_default"})
_SHORTEST_SECRET = 4


def secrets_in(options: Any, *, named: bool = False) -> Iterator[str]:
    """
    Return the texts in options, at any depth, whose names say that they are secret.

    :param named: Whether the name of what holds them said so already.
    """
    if isinstance(options, Mapping):
        for name, value in options.items():
            yield from secrets_in(value, named=named or _says_secret(str(name)))
    elif isinstance(options, list | tuple):
        for value in options:
            yield from secrets_in(value, named=named)
    elif named and isinstance(options, str) and len(options) >= _SHORTEST_SECRET and options not in _WAYS:
        yield options


def _says_secret(name: str) -> bool:
    plain = name.lower().replace("-", "_")
    return any(word in plain for word in _SECRET_WORDS)


def conceal(text: str, options: Mapping[str, Any]) -> str:
    """Return a message without the secrets of options, and of URIs in it."""
    # The longest first: one secret may be part of another.
    for secret in sorted(secrets_in(options), key=len, reverse=True):
        text = text.replace(secret, "***")
    return redact(text)


def harmless(error: Exception, options: Mapping[str, Any]) -> Exception | None:
    """Return an error as the cause of another, which is printed as it is; ``None`` if its text holds a secret."""
    return error if conceal(str(error), options) == str(error) else None
