"""
Text that users may see: without secrets, and without characters that a terminal obeys.

Secrets are those of Airflow, those of this process, and the credentials in URIs. An exception of user code or of a
library may contain a password, and its text becomes the message of an attempt, which rows, pages, commands and replies
show to readers who may not know the password. Texts are therefore masked where they enter a row, before they are
shortened: half a secret would not be recognised.

Airflow's maskers know the secrets of the connections and variables that a task or a server has read. They are used
where Airflow has loaded them. A driver on a Spark cluster has no masker, and masks the values that it was given and
those of Spark's secret settings. What this process was given is also passed to Airflow's maskers, which mask the logs
of a task with the errors of user code and of Spark.

Names of jobs, operators, steps and items come from users, and so do values and error texts. An escape sequence in one
of them would set the clipboard or the title of an administrator's terminal, or hide what a command is about to delete;
a line break would forge a line of a log. Commands and loggers therefore show such characters as escapes, here and
nowhere else. JSON and YAML stay exact, as both have escapes of their own.

Log records of this package are masked and made printable where they are made, so that handlers of any kind get them in
this form only: those of logging, which format the arguments of a message and the text of an error, and those of
Airflow, which read the error itself.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from threading import Lock
from typing import Any, Final, TextIO
from urllib.parse import quote, quote_plus, unquote

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, errors_before

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
    guard_logs()
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


_CONTROLS: Final = r"\x00-\x1f\x7f-\x9f"
_INVISIBLE: Final = r"\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f"
"""Marks that change the direction of the text around them, or take no space."""
_UNPRINTABLE: Final = re.compile(f"[{_CONTROLS}{_INVISIBLE}\ud800-\udfff]")
_UNPRINTABLE_IN_LINES: Final = re.compile(f"(?![\n\t])[{_CONTROLS}{_INVISIBLE}\ud800-\udfff]")


def counted(number: int, noun: str) -> str:
    """
    Return a number with its noun, such as ``1 job`` or ``1,200 jobs``.

    The plural of the noun ends in ``s`` or ``ies``.
    """
    if number == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if re.search("[^aeiou]y$", noun) else f"{noun}s"
    return f"{number:,} {plural}"


def printable(text: str) -> str:
    r"""Return a text in one line, with escapes such as ``\x1b`` and ``\n`` for all that is no visible character."""
    return text if text.isprintable() else _UNPRINTABLE.sub(_escape, text)


def printable_lines(text: str) -> str:
    """Return a text as :func:`printable`, but with its line breaks and tabs."""
    return text if text.isprintable() else _UNPRINTABLE_IN_LINES.sub(_escape, text)


def is_printable(text: str) -> bool:
    """Return whether a text has no character that :func:`printable` would replace."""
    return text.isprintable() or _UNPRINTABLE.search(text) is None


def _escape(found: re.Match[str]) -> str:
    return found.group().encode("unicode_escape").decode()


class Lines(str):
    """Several printable lines, for a message of a log that has more than one."""

    __slots__ = ()


_PACKAGE: Final = __name__.partition(".")[0]


def guard_logs() -> None:
    """Let the records of all loggers of this package have masked and printable text only, from now on."""
    # A program may have set a factory of its own since the last call.
    made_by = logging.getLogRecordFactory()
    if not isinstance(made_by, _GuardedRecords):
        logging.setLogRecordFactory(_GuardedRecords(made_by))


def show_logs_of_script() -> None:
    """
    Write the log lines of this package to stderr as long as the program has configured no logging.

    Python otherwise shows warnings only, and the lines that tell what a try restores are information.
    """
    own = logging.getLogger(_PACKAGE)
    if logging.getLogger().handlers or own.handlers or own.level or not own.propagate:
        return
    own.addHandler(_ScriptHandler())
    own.setLevel(_AssumedLevel(logging.INFO))
    # A record that the program's own level hides must not reach its handlers on the way to which it is seen here first.
    own.propagate = False


class _AssumedLevel(int):
    """A level that is not the choice of the program."""


class _ScriptHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """
    Writes lines to stderr, until the program has handlers of its own, which then show the lines by its own levels.
    """

    def __init__(self) -> None:
        # That of the base class would keep today's stderr, which a test or a redirection closes.
        logging.Handler.__init__(self)
        self.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        self._is_over = False

    @property
    def stream(self) -> TextIO:
        """The stderr of this moment."""
        return sys.stderr

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the program has no handler; otherwise undo what this handler has changed."""
        own = logging.getLogger(_PACKAGE)
        if self._is_over or not (logging.getLogger().handlers or own.handlers != [self]):
            return not self._is_over
        if isinstance(own.level, _AssumedLevel):
            own.setLevel(logging.NOTSET)
        # Logging reads this after the handlers of this logger, and goes on to those of the root.
        self._is_over = own.propagate = logging.getLogger(record.name).isEnabledFor(record.levelno)
        return False


class _GuardedRecords:
    """Makes records as another factory does, and guards those of this package."""

    def __init__(self, make: Callable[..., logging.LogRecord]) -> None:
        self._make = make

    def __call__(self, *args: Any, **options: Any) -> logging.LogRecord:
        record = self._make(*args, **options)
        # Formatters make records without a name, whose fields they set themselves.
        if (record.name or "").partition(".")[0] == _PACKAGE:
            _guard(record)
        return record


def _guard(record: logging.LogRecord) -> None:
    if isinstance(record.args, Mapping):
        record.args = {key: _shown(value) for key, value in record.args.items()}
    elif record.args:
        record.args = tuple(map(_shown, record.args))
    # Logging itself reports arguments that do not fit the message.
    with suppress(Exception):
        message = record.getMessage()
        shown = masked(message)
        if shown != message:
            record.msg, record.args = shown, ()
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        guarded = _guarded(error, lambda text: printable_lines(masked(text)))
        record.exc_info = (type(guarded), guarded, error.__traceback__)


class _Shown:
    """An argument of a message whose text is not printable as it is."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return printable(str(self._value))

    def __repr__(self) -> str:
        return printable(repr(self._value))


def _shown(value: Any) -> Any:
    if value is None or isinstance(value, int | float | Lines):
        return value
    try:
        return value if is_printable(str(value)) else _Shown(value)
    except Exception:
        return value  # logging reports an argument without a text when it formats the message


def _guarded(error: BaseException, show: Callable[[str], str]) -> BaseException:
    """
    Return an error with texts, notes and causes as a function shows them: the error itself if they are so already.
    """
    chain = list(errors_before(error))
    texts = [_texts_of(each) for each in chain]
    shown = [[show(text) for text in found] for found in texts]
    if shown == texts:
        return error
    stand_ins = [_stand_in(each, found) for each, found in zip(chain, shown, strict=True)]
    by_id = dict(zip(map(id, chain), stand_ins, strict=True))
    for each, stand_in in zip(chain, stand_ins, strict=True):
        stand_in.__cause__, stand_in.__context__ = by_id.get(id(each.__cause__)), by_id.get(id(each.__context__))
        stand_in.__suppress_context__ = each.__suppress_context__
    return stand_ins[0]


def _texts_of(error: BaseException) -> list[str]:
    """Return the text of an error, its notes, and the errors of a group as a traceback shows them."""
    parts = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    try:
        return [str(error), *notes, *("".join(traceback.format_exception(part)) for part in parts)]
    except Exception:
        return [f"<{type(error).__name__} without a text>"]


def _stand_in(error: BaseException, texts: list[str]) -> BaseException:
    # Handlers name the class of an error, and format its text themselves.
    kind, (text, *notes) = type(error), texts
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__str__": lambda _: text}
    shown: BaseException = type(kind.__name__, (Exception,), names)()
    for note in notes:
        shown.add_note(note)
    return shown.with_traceback(error.__traceback__)
