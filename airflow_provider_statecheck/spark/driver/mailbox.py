"""
Mailbox of a submitted driver: where it is named, and what the driver begins with.

The Airflow operator names the mailbox in one property of Spark. A job without properties of its own names it in an
argument of its application, or gives it to :meth:`StageContext.current
<airflow_provider_statecheck.spark.context.StageContext.current>`. The name is no secret, and neither is the handover in
the mailbox: the driver opens the storage with the credentials of its environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_statecheck.checkpoint.codec import MalformedMessageError, decode
from airflow_provider_statecheck.checkpoint.messages import RegisterAttempt
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, CorruptStateError, EnvironmentNotReadyError
from airflow_provider_statecheck.gateway.mailbox.box import Mailbox
from airflow_provider_statecheck.gateway.mailbox.driver import MailboxGateway
from airflow_provider_statecheck.spark.driver.application import MAILBOX_ARGUMENT, MAILBOX_PROPERTY
from airflow_provider_statecheck.spark.driver.attempts import (
    HANDOVER_VARIABLE,
    Connection,
    DriverHandover,
    running_session,
    take_handover,
)
from airflow_provider_statecheck.spark.driver.settings import DriverSettings
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class MailboxContent:
    """What a driver finds in its mailbox."""

    registration: RegisterAttempt
    driver: DriverSettings
    """Without options of the storage, which may be credentials."""
    patience_seconds: float
    """Longest time that the driver waits for an answer."""

    @classmethod
    def of(cls, mailbox: Mailbox) -> Self:
        """
        Read this from a mailbox.

        :raises CheckpointNotFoundError: if the mailbox was removed.
        :raises CorruptStateError: if it is of another version.
        """
        try:
            return decode(cls, mailbox.handover())
        except MalformedMessageError as error:
            raise CorruptStateError(
                f"Expected a handover of this version in {redact(mailbox.uri)}, found another: {error}."
            ) from error

    def open(self, mailbox: Mailbox) -> None:
        """Write this for the driver."""
        mailbox.open(replace(self, driver=replace(self.driver, storage_options={})))


@dataclass(frozen=True, slots=True, kw_only=True)
class MailboxHandover:
    """Access of a driver to its attempt through a mailbox."""

    mailbox: Mailbox
    registration: RegisterAttempt
    driver: DriverSettings
    patience_seconds: float = field(repr=False)

    @classmethod
    def read(cls, uri: str, storage_options: Mapping[str, Any]) -> Self:
        """
        Read the handover in a mailbox.

        :param storage_options: Options of the filesystem; without any, the credentials of the environment are used.
        :raises EnvironmentNotReadyError: if there is none, or it has another version.
        :raises InvalidConfigurationError: if the URI is not that of a mailbox.
        :raises StorageError: if the storage fails.
        """
        mailbox = Mailbox.at(uri, storage_options)
        try:
            content = MailboxContent.of(mailbox)
        except CheckpointNotFoundError as error:
            raise EnvironmentNotReadyError(
                f"Expected a handover in the mailbox {redact(uri)}, found none; its task has ended. Submit the "
                "application again with the Airflow operator."
            ) from error
        except CorruptStateError as error:
            raise EnvironmentNotReadyError(
                f"{error} Run the driver with the package that the Airflow operator ships."
            ) from error
        driver = replace(content.driver, storage_options=dict(storage_options))
        return cls(
            mailbox=mailbox,
            registration=content.registration,
            driver=driver,
            patience_seconds=content.patience_seconds,
        )

    def connect(self) -> Connection:
        """Return a connection through the mailbox; this process is a new instance."""
        gateway = MailboxGateway(self.mailbox, self.patience_seconds)
        return Connection(gateway, gateway.require_open)


def find_handover(
    spark: SparkSession | None = None,
    mailbox: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> DriverHandover:
    """
    Return what the Airflow operator has handed to this driver.

    :param spark: Session of the driver, if there is one.
    :param mailbox: URI of the mailbox; by default it is in the environment, in a property of Spark or in an argument.
    :param storage_options: Options of the filesystem of the mailbox.
    :raises EnvironmentNotReadyError: if no Airflow operator submitted this driver.
    """
    # Sessions of some services refuse to say whether they have a property.
    uri = mailbox or (
        None if os.environ.get(HANDOVER_VARIABLE) else taken_argument(MAILBOX_ARGUMENT) or _in_properties(spark)
    )
    return take_handover() if uri is None else MailboxHandover.read(uri, storage_options or {})


def _in_properties(spark: SparkSession | None) -> str | None:
    session = spark or _submitted_session()
    return None if session is None else session.conf.get(MAILBOX_PROPERTY, None)


def _submitted_session() -> SparkSession | None:
    """Return the session of this process, a new one only if ``spark-submit`` started this process."""
    from pyspark.sql import SparkSession

    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    return running_session() if is_submitted else SparkSession.getActiveSession()


def taken_argument(name: str) -> str | None:
    """Return an argument of the application, and remove it, as it is none of the application's own."""
    arguments = sys.argv
    for place, text in enumerate(arguments):
        found, equals, value = text.partition("=")
        if found == name:
            value = value if equals else "".join(arguments[place + 1 : place + 2])
            del arguments[place : place + (1 if equals else 2)]
            return value
    return None
