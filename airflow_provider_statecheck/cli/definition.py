"""What Airflow is told about the commands; every airflow command loads this, so it imports nothing of them."""

from __future__ import annotations

import argparse
import re
from datetime import timedelta

from airflow.cli.cli_config import (
    ARG_OUTPUT,
    ActionCommand,
    Arg,
    CLICommand,
    GroupCommand,
    lazy_load_command,
    positive_int,
)

_CLI = "airflow_provider_statecheck.cli"
_MODULES = {
    "savepoint": "savepoint_commands",
    "dispose": "savepoint_commands",
    "rescale": "savepoint_commands",
    "rewind": "rewind_command",
    "stats": "stats_commands",
    "state": "state_commands",
    "diff": "state_commands",
}
_UNITS = {"h": "hours", "d": "days", "w": "weeks"}
_AGE = re.compile(r"(\d{1,5})([hdw])")
_EXITS = """
Exit status: 0 all right; 1 something was found (not restorable, could not be deleted); 2 wrong usage, or no such job;
3 storage or database did not answer.
"""


def age(text: str) -> timedelta:
    """Read an age such as ``30d``, ``48h`` or ``6w``."""
    match = _AGE.fullmatch(text)
    found = timedelta(**{_UNITS[match.group(2)]: int(match.group(1))}) if match else timedelta(0)
    if found < timedelta(days=1):
        raise argparse.ArgumentTypeError(f"expected an age of a day or more, such as 30d or 48h, found {text!r}")
    return found


ARG_JOB = Arg(("job",), help="Name of the job, or its id")
ARG_JOBS = Arg(("jobs",), nargs="*", metavar="JOB", help="Name of a job, or its id")
ARG_JOB_OR_POINTER = Arg(
    ("job",), metavar="JOB|POINTER", help="Name of the job, or its id; or the URI of a checkpoint, such as s3://…/chk-7"
)
ARG_NAME = Arg(("--name",), metavar="PATTERN", help="Only jobs of such names; * and ? stand for any characters")
ARG_LIMIT = Arg(("--limit",), type=positive_int(allow_zero=False), default=100, help="How many at most (default: 100)")
ARG_UID = Arg(("--uid",), help="Only those of this operator")
ARG_STATUS = Arg(
    ("--status",), choices=("pending", "completed", "subsumed", "aborted", "disposed"), help="Only those of this status"
)
ARG_BEFORE_ID = Arg(
    ("--before",), type=positive_int(allow_zero=False), metavar="ID", help="Only those with a lower checkpoint id"
)
ARG_HISTORY = Arg(("--history",), action="store_true", help="The last checkpoints one by one, newest first")
ARG_ALL = Arg(("--all",), action="store_true", help="All jobs")
ARG_DRY_RUN = Arg(("--dry-run",), action="store_true", help="Change nothing, only say what would be done")
ARG_STORAGE = Arg(("--storage-conn-id",), help="Airflow connection with the credentials of the checkpoint storage")
ARG_CHECKPOINT = Arg(("--checkpoint",), type=positive_int(allow_zero=False), metavar="ID", help="Only this checkpoint")
ARG_DEEP = Arg(("--deep",), action="store_true", help="Read every page of every file too")
ARG_QUARANTINE = Arg(
    ("--quarantine",), action="store_true", help="Note orphans and delete them only if a later call finds them again"
)
ARG_QUARANTINE_AGE = Arg(
    ("--quarantine-age",),
    type=age,
    default=timedelta(days=1),
    metavar="AGE",
    help="How long ago they have to have been noted (default: 1d)",
)
ARG_OLDER_THAN = Arg(
    ("--older-than",),
    type=age,
    metavar="AGE",
    help="How long ago it has to have ended, such as 30d; given, jobs go as a whole whose Dag run is over "
    "(rows of other jobs go after 30d by default)",
)
ARG_TEST_JOBS = Arg(("--test-jobs",), action="store_true", help="Remove the jobs of test runs as a whole")
ARG_DIRECTORY = Arg(
    ("directory",), metavar="CHECKPOINT_DIR", help="The checkpoint directory, such as s3://lake/checkpoints"
)
ARG_ONLY_JOB = Arg(("--job",), metavar="JOB", help="Only the job of this name or id")
ARG_SAVEPOINTS = Arg(("--savepoints",), metavar="URI", help="Directory with savepoints that are to be known again")
ARG_SAVEPOINT = Arg(("pointer",), help="URI of the savepoint's directory, such as s3://…/savepoint-1a2b3c-4d5e6f708192")
ARG_TARGET = Arg(
    ("--target",), metavar="URI", help="Directory below which it is written (default: [statecheck] savepoint_dir)"
)
ARG_FORMAT = Arg(
    ("--format",),
    choices=("canonical", "native"),
    default="canonical",
    help="Format that the metadata records; both write the same files today",
)
ARG_STOP = Arg(
    ("--stop",),
    choices=("suspend", "terminate"),
    help="Stop the stage with the savepoint: at its next boundary (suspend), or when it has come to its end (terminate)",
)
ARG_NO_WAIT = Arg(("--no-wait",), action="store_true", help="Only ask; a stage that runs takes it at its next boundary")
ARG_TIMEOUT = Arg(
    ("--timeout",),
    type=positive_int(allow_zero=False),
    default=600,
    metavar="SECONDS",
    help="How long to wait for a stage that runs (default: 600)",
)
ARG_POINTER = Arg(("pointer",), help="URI of a checkpoint or savepoint, such as s3://…/chk-7")
ARG_STATE = Arg(("name",), metavar="NAME", nargs="?", help="Name of a state; without it, the states are listed")
ARG_STATE_NAME = Arg(("name",), metavar="NAME", help="Name of the state")
ARG_BEFORE = Arg(("before",), help="URI of a checkpoint or savepoint")
ARG_AFTER = Arg(("after",), help="URI of a later one")
ARG_FUNCTION = Arg(("--uid",), help="Uid of the function, where several have a state of that name")
ARG_NAMESPACES = Arg(("--namespaces",), action="store_true", help="Also the rows of namespaces, with a column for them")
ARG_ROWS = Arg(
    ("--limit",), type=positive_int(allow_zero=False), default=20, help="How many rows at most (default: 20)"
)
ARG_MAX_PARALLELISM = Arg(
    ("--max-parallelism",),
    type=positive_int(allow_zero=False),
    required=True,
    metavar="N",
    help="The new number of key groups; at least the parallelism with which the state was written, at most 32768",
)
ARG_BEFORE_RUN = Arg(
    ("--before",),
    required=True,
    metavar="RUN",
    help="The first run that is to work again: its logical date as 'checkpoints' shows it, or its run id if it has none",
)
ARG_YES = Arg(("-y", "--yes"), action="store_true", help="Do not ask")


def get_statecheck_commands() -> list[CLICommand]:
    """Return the commands."""
    return [
        GroupCommand(
            name="statecheck",
            help="Checkpoints of Spark tasks",
            subcommands=(*_reading(), *_changing()),
        )
    ]


def _reading() -> tuple[ActionCommand, ...]:
    return (
        _command("jobs", "List jobs with their newest checkpoint", ARG_NAME, ARG_LIMIT),
        _command(
            "checkpoints",
            "List the newest checkpoints of a job",
            ARG_JOB,
            ARG_UID,
            ARG_STATUS,
            ARG_LIMIT,
            ARG_BEFORE_ID,
        ),
        _command("stats", "Tell what was counted of the checkpoints of a job", ARG_JOB, ARG_UID, ARG_HISTORY),
        _command(
            "verify",
            "Check that the retained checkpoints of a job, or one checkpoint, can be restored",
            ARG_JOB_OR_POINTER,
            ARG_CHECKPOINT,
            ARG_DEEP,
            ARG_STORAGE,
        ),
        _command(
            "state",
            "Show the state in a checkpoint: which there is, or the rows of one",
            ARG_POINTER,
            ARG_STATE,
            ARG_FUNCTION,
            ARG_ROWS,
            ARG_NAMESPACES,
            ARG_STORAGE,
        ),
        _command(
            "diff",
            "Show which keys of a state two checkpoints differ in",
            ARG_BEFORE,
            ARG_AFTER,
            ARG_STATE_NAME,
            ARG_FUNCTION,
            ARG_ROWS,
            ARG_NAMESPACES,
            ARG_STORAGE,
        ),
    )


def _changing() -> tuple[ActionCommand, ...]:
    return (
        _command(
            "gc",
            "Delete the bytes of ended checkpoints",
            ARG_JOBS,
            ARG_ALL,
            ARG_QUARANTINE,
            ARG_QUARANTINE_AGE,
            ARG_DRY_RUN,
            ARG_STORAGE,
        ),
        _command(
            "prune",
            "Remove the rows of what has ended long ago, or whole jobs with their bytes",
            ARG_JOBS,
            ARG_OLDER_THAN,
            ARG_TEST_JOBS,
            ARG_DRY_RUN,
            ARG_YES,
            ARG_STORAGE,
        ),
        _command(
            "rewind",
            "Take the state of a job back to where it stood before a run, so that runs can be done again",
            ARG_JOB,
            ARG_BEFORE_RUN,
            ARG_UID,
            ARG_DRY_RUN,
            ARG_YES,
        ),
        _command(
            "savepoint",
            "Take a savepoint of a job, whether it runs or not",
            ARG_JOB,
            ARG_UID,
            ARG_TARGET,
            ARG_FORMAT,
            ARG_STOP,
            ARG_NO_WAIT,
            ARG_TIMEOUT,
            ARG_STORAGE,
        ),
        _command(
            "recover",
            "Make the rows of jobs anew from their checkpoints, after the database was lost",
            ARG_DIRECTORY,
            ARG_ONLY_JOB,
            ARG_SAVEPOINTS,
            ARG_DRY_RUN,
            ARG_STORAGE,
        ),
        _command(
            "rescale",
            "Write a checkpoint anew as a savepoint of another maximum parallelism",
            ARG_POINTER,
            ARG_MAX_PARALLELISM,
            ARG_TARGET,
            ARG_STORAGE,
        ),
        _command("dispose", "Delete a savepoint", ARG_SAVEPOINT, ARG_DRY_RUN, ARG_STORAGE),
    )


def _command(name: str, text: str, *args: Arg) -> ActionCommand:
    function = lazy_load_command(f"{_CLI}.{_MODULES.get(name, 'commands')}.{name}")
    return ActionCommand(name=name, help=text, func=function, args=(*args, ARG_OUTPUT), epilog=_EXITS)
