"""
Log records of this package: without the secrets that the process knows, and in printable text.

Records are changed where they are made, so that handlers of any kind get them in this form only: those of logging,
which format the arguments of a message and the text of an error, and those of Airflow, which read the error itself.
"""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TextIO

from airflow_provider_statecheck.checkpoint.printable import Lines, is_printable, printable, printable_lines

_PACKAGE: Final = __name__.partition(".")[0]


def guard_logs(mask: Callable[[str], str] = str) -> None:
    """
    Let the records of all loggers of this package have printable text only, and mask them, from now on.

    :param mask: Returns a text without the secrets that the process knows; by default none is known.
    """
    # A program may have set a factory of its own since the last call.
    made_by = logging.getLogRecordFactory()
    if isinstance(made_by, _GuardedRecords):
        made_by.mask = mask
    else:
        logging.setLogRecordFactory(_GuardedRecords(made_by, mask))


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

    def __init__(self, make: Callable[..., logging.LogRecord], mask: Callable[[str], str]) -> None:
        self._make = make
        self.mask = mask

    def __call__(self, *args: Any, **options: Any) -> logging.LogRecord:
        record = self._make(*args, **options)
        # Formatters make records without a name, whose fields they set themselves.
        if (record.name or "").partition(".")[0] == _PACKAGE:
            _guard(record, self.mask)
        return record


def _guard(record: logging.LogRecord, mask: Callable[[str], str]) -> None:
    if isinstance(record.args, Mapping):
        record.args = {key: _shown(value) for key, value in record.args.items()}
    elif record.args:
        record.args = tuple(map(_shown, record.args))
    # Logging itself reports arguments that do not fit the message.
    with suppress(Exception):
        message = record.getMessage()
        shown = mask(message)
        if shown != message:
            record.msg, record.args = shown, ()
    error = record.exc_info[1] if record.exc_info else None
    if error is not None:
        guarded = _guarded(error, lambda text: printable_lines(mask(text)))
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
    chain = _chain_of(error)
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


def _chain_of(error: BaseException) -> list[BaseException]:
    """Return an error with its causes, which may be causes of each other."""
    found: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        each = waiting.pop()
        if each is not None and not any(each is other for other in found):
            found.append(each)
            waiting += [each.__cause__, each.__context__]
    return found


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
