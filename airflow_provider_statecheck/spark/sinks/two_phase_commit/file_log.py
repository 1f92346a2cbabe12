"""
A log of commits in a directory, for destinations that cannot keep it themselves.

::

    <log>/<lineage>/attempts/<epoch>.json            the log as one attempt left it; only that attempt writes the file
    <log>/<lineage>/commits/<generation>-<id>.json   the transactions of one checkpoint

An attempt first leaves its file, which is a claim, and then reads those of older ones. Whoever adds a commit looks for newer
claims afterwards. So either the newer attempt reads the commit, or the older one sees the claim and does nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_statecheck.exceptions import CorruptStateError, StaleAttemptError
from airflow_provider_statecheck.spark.sinks.two_phase_commit.commit_log import CommitLog
from airflow_provider_statecheck.spark.sinks.two_phase_commit.commit_range import CommitRange
from airflow_provider_statecheck.spark.sinks.two_phase_commit.destination import LogChange, Publication
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import redact

_ATTEMPT = re.compile(r"(\d+)\.json")
_COMMIT = re.compile(r"(\d+)-(\d+)\.json")

Transaction = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """What a change of the log does to the output."""

    published: str = ""
    """The name of a file of transactions; empty for none."""
    retracted: tuple[CommitRange, ...] = ()

    @property
    def is_nothing(self) -> bool:
        """Tell whether there is nothing to do."""
        return not self.published and not self.retracted


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCommitLog:
    """
    The log of one lineage, and what carries its changes out.

    :param commit: Commits a transaction; may be repeated.
    :param abort: Takes a transaction back, committed or not, for good; may be repeated.
    """

    storage: CheckpointStorage
    lineage: str
    commit: Callable[[Transaction], None] = field(repr=False)
    abort: Callable[[Transaction], None] = field(repr=False)

    @property
    def name(self) -> str:
        """The log, fit to be shown."""
        return f"the destination with the log {redact(self.storage.base_uri)}"

    def log_of(self, lineage: str) -> CommitLog:
        """Return the log of any sink as it stands, without claiming it."""
        other = replace(self, lineage=lineage)
        return other._newest(other._claims())[0]

    def load(self, epoch: int) -> CommitLog:
        """
        Claim the log for an attempt, finish what was begun, and return it.

        :raises StaleAttemptError: A newer attempt has claimed it.
        """
        epochs = self._claims()
        if epoch not in epochs:
            self.storage.write_bytes(self._attempt(epoch), b"", overwrite=True)
            epochs = self._claims()
        self._require_newest(epoch, epochs)
        found, effects = self._newest(epochs)
        if not effects.is_nothing:
            self._carry_out(effects)
            self._write(epoch, found, Effects())
        return found

    def apply(self, epoch: int, change: LogChange) -> bool:
        """
        Write the change, and carry it out unless a newer attempt has claimed the log.

        :raises StaleAttemptError: One has; nothing is done then.
        """
        effects = Effects(published=self._write_publication(change.publication), retracted=change.retracted)
        self._write(epoch, change.after, effects)
        self._require_newest(epoch, self._claims())
        if not effects.is_nothing:
            self._carry_out(effects)
            self._write(epoch, change.after, Effects())
        return True

    def _carry_out(self, effects: Effects) -> None:
        # The new output first: a reader never sees less than before.
        if effects.published:
            for transaction in self._transactions(effects.published):
                self.commit(transaction)
        for name in self._names_of(effects.retracted):
            for transaction in self._transactions(name):
                self.abort(transaction)

    def _newest(self, epochs: list[int]) -> tuple[CommitLog, Effects]:
        for epoch in sorted(epochs, reverse=True):
            text = self.storage.read_bytes(self._attempt(epoch)).decode()
            if text:  # else a claim of an attempt that ended before it knew the log
                return self._decode(text, self._attempt(epoch))
        return CommitLog(), Effects()

    def _decode(self, text: str, uri: str) -> tuple[CommitLog, Effects]:
        try:
            document = json.loads(text)
            effects = Effects(
                published=str(document["published"]),
                retracted=tuple(CommitRange.from_json(each) for each in document["retracted"]),
            )
            return CommitLog.decode(document["log"], redact(uri)), effects
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptStateError(
                f"Expected the log of a sink in {redact(uri)}, found {text[:100]!r}; somebody changed it."
            ) from error

    def _write(self, epoch: int, log: CommitLog, effects: Effects) -> None:
        document = {
            "log": log.encode(),
            "published": effects.published,
            "retracted": [each.to_json() for each in effects.retracted],
        }
        self.storage.write_bytes(self._attempt(epoch), json.dumps(document).encode(), overwrite=True)

    def _write_publication(self, publication: Publication | None) -> str:
        if publication is None:
            return ""
        name = f"{publication.generation}-{publication.checkpoint_id}.json"
        transactions = [each.transaction for each in publication.committables]
        document = {"epoch": publication.epoch, "transactions": transactions}
        data = json.dumps(document, sort_keys=True).encode()
        self.storage.write_bytes(f"{self._root}/commits/{name}", data)
        return name

    def _transactions(self, name: str) -> list[Transaction]:
        uri = f"{self._root}/commits/{name}"
        try:
            return list(json.loads(self.storage.read_bytes(uri))["transactions"])
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptStateError(
                f"Expected the transactions of a checkpoint in {redact(uri)}, found something else; somebody changed it."
            ) from error

    def _names_of(self, ranges: tuple[CommitRange, ...]) -> list[str]:
        if not ranges:
            return []
        found = (_COMMIT.fullmatch(name) for name in self.storage.list_files(f"{self._root}/commits"))
        keys = sorted((int(match[1]), int(match[2]), match[0]) for match in found if match)
        return [name for _, n, name in keys if any(each.first <= n <= each.last for each in ranges)]

    def _claims(self) -> list[int]:
        found = (_ATTEMPT.fullmatch(name) for name in self.storage.list_files(f"{self._root}/attempts"))
        return [int(match[1]) for match in found if match]

    def _require_newest(self, epoch: int, epochs: list[int]) -> None:
        if max(epochs, default=0) > epoch:
            raise StaleAttemptError(
                f"Attempt {max(epochs)} has taken {self.name} over, attempt {epoch} may not write there any more; stop, and "
                "let the newer one go on."
            )

    @property
    def _root(self) -> str:
        return f"{self.storage.base_uri}/{self.lineage}"

    def _attempt(self, epoch: int) -> str:
        return f"{self._root}/attempts/{epoch}.json"
