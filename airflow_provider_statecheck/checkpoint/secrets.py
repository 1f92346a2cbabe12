"""
Secrets in texts: those of Airflow, those of this process, and the credentials in URIs.

An exception of user code or of a library may contain a password, and its text becomes the message of an attempt, which
rows, pages, commands and replies show to readers who may not know the password. Texts are therefore masked where they
enter a row, before they are shortened: half a secret would not be recognised.

Airflow's maskers know the secrets of the connections and variables that a task or a server has read. They are used
where Airflow has loaded them. A driver on a Spark cluster has no masker, and masks the values that it was given and
those of Spark's secret settings.

What this process was given is also passed to Airflow's maskers, which mask the logs of a task with the errors of user
code and of Spark. The records that this package logs are masked where they are made, by :mod:`.log_records`.
"""

from __future__ import annotations

import base64
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Lock
from typing import Any, Final
from urllib.parse import quote, quote_plus, unquote

from airflow_provider_statecheck.checkpoint.log_records import guard_logs
from airflow_provider_statecheck.exceptions import InvalidConfigurationError

# The package of the tasks and that of the servers have separate maskers, and a process may have both.
MASKERS: Final = ("airflow.sdk._shared.secrets_masker", "airflow._shared.secrets_masker")
_MASKING: Final = ("airflow.sdk.log", "airflow._shared.secrets_masker")
"""Modules whose ``mask_secret`` tells the masker of a task and its supervisor, and the masker of a server."""
MASK: Final = "***"

_SECRET_NAME = re.compile(
    r"key|secret|token|pass(?![a-z])|passw|passphrase|pwd|pw(?![a-z])|auth|credential|signature|\bsig\b|connection_?string|sas(?![a-z])|delegation|\bcode\b"
)
# A parameter of a URI: in its query, in its fragment, or after a semicolon as in those of JDBC and of matrix
# parameters. Its value may be in quotes or braces, and a question mark or semicolon in it ends it only if a parameter
# follows.
_VALUE = r"""'[^'\s]*'?|"[^"\s]*"?|\{[^}\s]*\}?|(?:[^?&;#\s'"]|[?;](?![^?&;#=\s'"]+=))+"""
_PARAMETER = re.compile(rf"""([?&;#])([^?&;#=\s'"]+)=({_VALUE})""")

# Azure writes the container before the "@", which is part of the address, and HDFS the user that owns the files.
_ADDRESS = r"\b(?:abfss?|az|wasbs?|(?:web)?hdfs)://[^/@:\s]+@(?![^/\s]*@)"
# The second alternative is a password with an unescaped slash, as in S3 secret keys; a port does not match it.
_USER_INFO = re.compile(rf"(?i)({_ADDRESS})|://(?:[^/\s]*|[^/@:\s]+:(?!\d+/)\S*)@")
_WORD = re.compile(r"\S+")


def is_secret_name(name: str) -> bool:
    """
    Return whether a parameter of a URI, or an option of a filesystem, is a secret by its name.

    :param name: Name such as ``sas_token``, ``X-Amz-Signature`` or ``accountKey``.
    """
    return _SECRET_NAME.search(unquote(name).lower().replace("-", "_")) is not None


def redact(text: str) -> str:
    """
    Return a text with the user names, passwords and secret parameters of all URIs replaced by asterisks.

    A user of HDFS stays.

    Parameters are those of queries and of fragments, with a name that tells a secret.
    """
    return _PARAMETER.sub(_shown_parameter, _WORD.sub(_without_user, text) if "@" in text else text)


def _without_user(found: re.Match[str]) -> str:
    # Behind the last "@" no user can be, and a search there would read the rest of the word once for each address in
    # it.
    head, at, rest = found[0].rpartition("@")
    return _USER_INFO.sub(lambda address: address[1] or "://***@", head + at) + rest


def _shown_parameter(found: re.Match[str]) -> str:
    separator, name, _ = found.groups()
    return f"{separator}{name}={MASK}" if is_secret_name(name) else found[0]


def require_no_credentials(name: str, uri: str) -> None:
    """
    Refuse a URI that rows, logs, pages and other tasks would show with its credentials.

    :param name: Name of the setting or argument.
    :raises InvalidConfigurationError: if it has credentials, which the error does not show.
    """
    if redact(uri) != uri:
        raise InvalidConfigurationError(
            f"Expected {name} without credentials, found {redact(uri)!r}; set storage_conn_id, or the credentials in "
            "the environment of the machines, instead.",
            key=name,
        )


_HIDDEN_SETTING = re.compile(r"(?i)secret|password|token|access[.]?key|api[._-]?key")
"""Spark's own default of the setting below, and keys such as that of the transport of OpenLineage."""
_REDACTION = "spark.redaction.regex"
_SWITCH = re.compile(r"(?i)true|false|none|null|default|\d{0,7}")
"""Values that are no secrets, and that many texts contain."""
_SHORTEST: Final = 4


def secrets_in_settings(settings: Mapping[str, Any]) -> Iterator[str]:
    """Return the values of Spark settings or environment variables that Spark hides in its own logs and pages."""
    chosen = [_compiled(str(settings[_REDACTION]))] if _REDACTION in settings else []
    patterns = [_HIDDEN_SETTING, *filter(None, chosen)]
    for name, value in settings.items():
        is_text = isinstance(value, str) and len(value) >= _SHORTEST and not _SWITCH.fullmatch(value)
        if is_text and name != _REDACTION and any(pattern.search(name) for pattern in patterns):
            yield value


def _compiled(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern)
    except re.error:
        return None  # a form that only Java knows; Spark refuses what is none


class KnownSecrets:
    """Secrets of this process, longest first, because one may be part of another."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._forms: tuple[str, ...] = ()

    def add(self, secrets: Iterable[str]) -> list[str]:
        """Return the forms that were not known."""
        forms = {form for secret in secrets for form in _forms_of(secret)}
        with self._lock:
            new = forms.difference(self._forms)
            if new:
                self._forms = tuple(sorted({*self._forms, *new}, key=len, reverse=True))
        return sorted(new)

    def mask(self, text: str) -> str:
        """Return a text with a mask in place of each known secret."""
        for form in self._forms:
            text = text.replace(form, MASK)
        return text


known_secrets = KnownSecrets()


def remember_secrets(secrets: Iterable[str]) -> None:
    """Let :func:`masked`, the logs of this package and Airflow's maskers replace these secrets from now on."""
    new = known_secrets.add(secrets)
    if not new:
        return
    guard_logs(masked)
    for name in _MASKING:
        masking = sys.modules.get(name)
        if masking is not None:
            masking.mask_secret(new)


def masked(text: str) -> str:
    """Return a text without the secrets that this process knows, and without the credentials of URIs."""
    text = known_secrets.mask(text)
    for name in MASKERS:
        masker = sys.modules.get(name)
        if masker is not None:
            text = str(masker.redact(text))
    return redact(text)


guard_logs(masked)

_SHORTEST_IN_BASE64: Final = 8
"""A shorter secret has few characters in base64 that it alone decides."""


def _forms_of(secret: str) -> Iterator[str]:
    """
    Return how messages quote a secret: as it is, in the notation of Python or JSON, in a URI, and in a header of HTTP.
    """
    yield from (secret, repr(secret)[1:-1], json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1])
    for quoted in (quote(secret, safe=""), quote(secret), quote_plus(secret)):
        yield from (quoted, _ESCAPE.sub(lambda found: found[0].lower(), quoted))
    raw = secret.encode(errors="replace")
    if len(raw) >= _SHORTEST_IN_BASE64:
        yield from (_inside(encode, raw, before) for encode in _BASE64 for before in range(3))


_ESCAPE = re.compile("%[0-9A-F]{2}")
_BASE64: Final = (base64.b64encode, base64.urlsafe_b64encode)


def _inside(encode: Callable[[bytes], bytes], raw: bytes, before: int) -> str:
    # In the middle of other bytes, such as a user and a password, the first and last characters also depend on these.
    encoded = encode(bytes(before) + raw).decode()
    body = encoded.rstrip("=")
    start = before + 1 if before else 0
    return body[start : len(body) - (len(encoded) > len(body))]
