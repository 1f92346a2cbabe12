"""
Declaration of the commands for Airflow.

Every ``airflow`` command loads this module, so it does not import the modules of the commands.
"""

from __future__ import annotations

import argparse
import math
import re
from datetime import datetime, timedelta

from airflow.cli.cli_config import (
    ARG_OUTPUT,
    ActionCommand,
    Arg,
    CLICommand,
    GroupCommand,
    lazy_load_command,
)

from airflow_provider_statecheck.settings import SETTINGS

_CLI = "airflow_provider_statecheck.cli"
_MODULES = {
    "savepoint": "savepoint_commands",
    "dispose": "savepoint_commands",
    "rescale": "savepoint_commands",
    "restore": "savepoint_commands",
    "uninstall": "uninstall_command",
    "package": "package_command",
    "stats": "state_commands",
    "state show": "state_commands",
    "state get": "state_commands",
    "state names": "state_commands",
    "show": "state_commands",
    "diff": "state_commands",
    "serve-state": "maintenance_commands",
}
_UNITS = {"h": "hours", "d": "days", "w": "weeks"}
_AGE = re.compile(r"(\d{1,5})([hdw])")
_NUMBER = re.compile(r"\d{1,19}", re.ASCII)
_SECONDS = re.compile(r"\d{1,4}(\.\d{1,6})?")
_MAX_STALENESS_SECONDS = 3600
_MAX_PORT = 65_535
_MAX_NUMBER = 10**18
"""A database and Arrow can hold it and add to it."""
_EPILOG = """
Exit status: 0 success; 1 a finding, such as a checkpoint that cannot be restored, files that could not be deleted, or a
difference; 2 wrong usage, or an unknown job, checkpoint or state; 3 storage or database unavailable, or tables missing;
130 interrupted; 141 the reader of the output ended before the command.
"""


def age(text: str) -> timedelta:
    """Parse an age such as ``30d``, ``48h`` or ``6w``."""
    match = _AGE.fullmatch(text)
    parsed = timedelta(**{_UNITS[match.group(2)]: int(match.group(1))}) if match else timedelta(0)
    if parsed < timedelta(days=1):
        raise argparse.ArgumentTypeError(f"expected an age of at least one day, such as 30d or 48h, found {text!r}")
    return parsed


def moment(text: str) -> datetime:
    """Parse a time with a time zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = datetime.min  # noqa: DTZ901 - has no time zone, which the next line refuses
    if found.tzinfo is None:
        raise argparse.ArgumentTypeError(f"expected a time such as 2026-01-31T12:00:00+00:00, found {text!r}")
    return found


def number(text: str) -> int:
    """Parse a whole number from 1 to 10^18."""
    found = int(text) if _NUMBER.fullmatch(text) else 0
    if not 1 <= found <= _MAX_NUMBER:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 to {_MAX_NUMBER}, found {text!r}")
    return found


def port(text: str) -> int:
    """Parse a TCP port."""
    if not text.isdecimal() or int(text) > _MAX_PORT:
        raise argparse.ArgumentTypeError(f"expected a port from 0 to {_MAX_PORT}, found {text!r}")
    return int(text)


def staleness(text: str) -> float:
    """Parse a number of seconds from 0 to an hour."""
    seconds = float(text) if _SECONDS.fullmatch(text) else math.inf
    if seconds > _MAX_STALENESS_SECONDS:
        raise argparse.ArgumentTypeError(
            f"expected a number of seconds from 0 to {_MAX_STALENESS_SECONDS}, found {text!r}"
        )
    return seconds


ARG_JOB = Arg(("job",), metavar="JOB", help="Name or id of the job")
ARG_JOBS = Arg(("jobs",), nargs="*", metavar="JOB", help="Names or ids of jobs")
ARG_JOB_OR_POINTER = Arg(
    ("job",), metavar="JOB|POINTER", help="Name or id of the job, or URI of a checkpoint, such as s3://…/chk-7"
)
ARG_LIMIT = Arg(
    ("--limit",),
    type=number,
    default=100,
    metavar="N",
    help="Maximum number of rows (default: 100)",
)
ARG_UID = Arg(("--uid",), help="Only this operator")
ARG_DRY_RUN = Arg(("--dry-run",), action="store_true", help="Show the changes without making them")
ARG_STORAGE = Arg(("--storage-conn-id",), metavar="CONN_ID", help=SETTINGS["storage_conn_id"].help())
ARG_CHECKPOINT = Arg(("--checkpoint",), type=number, metavar="ID", help="Only this checkpoint")
ARG_TARGET = Arg(
    ("--target",), metavar="URI", help="Parent directory of the savepoint (default: [statecheck] savepoint_dir)"
)
ARG_POINTER = Arg(("pointer",), metavar="POINTER", help="URI of a checkpoint or savepoint, such as s3://…/chk-7")
ARG_FUNCTION = Arg(("--uid",), metavar="UID", help="Uid of the function, if several have a state of this name")
ARG_NAMESPACES = Arg(
    ("--namespaces",), action="store_true", help="Also show the rows of namespaces, with a column for the namespace"
)
ARG_ROWS = Arg(
    ("--limit",),
    type=number,
    default=20,
    metavar="N",
    help="Maximum number of rows (default: 20)",
)
ARG_YES = Arg(("-y", "--yes"), action="store_true", help="Do not ask for confirmation")


def get_statecheck_commands() -> list[CLICommand]:
    """Return the group of commands ``airflow statecheck``."""
    return [
        GroupCommand(
            name="statecheck",
            help="Checkpoints of Spark tasks",
            subcommands=(
                *_read_only_commands(),
                *_changing_commands(),
                _removing_command(),
                _packaging_command(),
                _serving_command(),
            ),
        )
    ]


def _read_only_commands() -> tuple[CLICommand, ...]:
    return (
        _command(
            "jobs",
            "List jobs with their status, work, newest checkpoint and last failure",
            Arg(("--name",), metavar="TEXT", help="Only jobs whose name contains this text, in upper or lower case"),
            Arg(("--status",), choices=("running", "failed", "idle", "finished"), help="Only jobs with this status"),
            Arg(("--dag-id",), metavar="DAG_ID", help="Only jobs with attempts of this Dag"),
            Arg(
                ("--sort",),
                choices=("name", "completed_at", "size", "status", "failed_at"),
                default="completed_at",
                help="Order of the jobs; times and sizes begin with the newest or largest (default: completed_at)",
            ),
            Arg(("--reverse",), action="store_true", help="Reverse the order"),
            ARG_LIMIT,
        ),
        _command(
            "checkpoints",
            "List the newest checkpoints of a job",
            ARG_JOB,
            ARG_UID,
            Arg(
                ("--status",),
                choices=("pending", "completed", "subsumed", "aborted", "disposed"),
                help="Only checkpoints with this status; 'subsumed' means that a newer checkpoint has replaced it",
            ),
            ARG_LIMIT,
            Arg(("--before",), type=number, metavar="ID", help="Only checkpoints with a lower id"),
        ),
        _command(
            "stats",
            "Show checkpoint statistics of a job",
            ARG_JOB,
            ARG_UID,
            Arg(("--history",), action="store_true", help="Show the last ten checkpoints, newest first"),
            Arg(
                ("--checkpoint",),
                type=number,
                metavar="ID",
                help="Show the steps, loops, sources and states of this checkpoint",
            ),
        ),
        _command(
            "verify",
            "Check that the retained checkpoints of a job, or one checkpoint, can be restored",
            ARG_JOB_OR_POINTER,
            ARG_CHECKPOINT,
            Arg(("--deep",), action="store_true", help="Also read and verify every page of every file"),
            ARG_STORAGE,
        ),
        _command(
            "show",
            "List what the checkpoints of a job, or one checkpoint, hold, or show the rows of a snapshot",
            ARG_JOB_OR_POINTER,
            Arg(
                ("name",),
                metavar="NAME",
                nargs="?",
                help="Name of the snapshot to show, or of the loop with --items; without it, the contents are listed",
            ),
            ARG_UID,
            ARG_CHECKPOINT,
            Arg(
                ("--scope",),
                metavar="SCOPE",
                help="Items of the loops around the snapshot, such as days[2026-01-01], if several have a snapshot of "
                "this name",
            ),
            Arg(("--items",), action="store_true", help="List the finished items of loops"),
            ARG_ROWS,
            ARG_STORAGE,
        ),
        GroupCommand(
            name="state", help="State of checkpoints, and queryable state of jobs", subcommands=_state_commands()
        ),
        _command(
            "diff",
            "Show the keys of a state that differ between two checkpoints",
            Arg(("before",), metavar="BEFORE", help="URI of a checkpoint or savepoint"),
            Arg(("after",), metavar="AFTER", help="URI of a later checkpoint or savepoint"),
            Arg(("name",), metavar="NAME", help="Name of the state"),
            ARG_FUNCTION,
            ARG_ROWS,
            ARG_NAMESPACES,
            ARG_STORAGE,
        ),
    )


def _state_commands() -> tuple[ActionCommand, ...]:
    as_of = (
        Arg(("--checkpoint",), type=number, metavar="ID", help="Read this checkpoint instead of the latest one"),
        Arg(("--pointer",), metavar="URI", help="Read this checkpoint or savepoint of the job"),
        Arg(
            ("--at",),
            type=moment,
            metavar="TIME",
            help="Read the checkpoint that was the latest one at this time, such as 2026-01-31T12:00:00+00:00",
        ),
        ARG_STORAGE,
    )
    return (
        _command(
            "state show",
            "List the states of a checkpoint, or show the rows of one state",
            ARG_POINTER,
            Arg(
                ("name",),
                metavar="NAME",
                nargs="?",
                help="Name of the state to show; without it, the states are listed",
            ),
            ARG_FUNCTION,
            ARG_ROWS,
            ARG_NAMESPACES,
            ARG_STORAGE,
        ),
        _command(
            "state get",
            "Show the value of one key of a job's queryable state",
            ARG_JOB,
            Arg(
                ("name",),
                metavar="NAME",
                help="Queryable name of the state; of an instance of a mapped task, name[map_key]",
            ),
            Arg(
                ("key",),
                metavar="KEY",
                nargs="+",
                help="Value of each column of the key, in their order; times in ISO 8601, bytes in base64",
            ),
            Arg(("--namespace",), default="", metavar="NAMESPACE", help="Namespace of the state"),
            Arg(
                ("--user-key",),
                metavar="KEY",
                help="Key of one entry of a map state: text, or another value in JSON; without it, the whole map is "
                "shown",
            ),
            *as_of,
        ),
        _command("state names", "List the queryable states of a job", ARG_JOB, *as_of),
    )


def _changing_commands() -> tuple[ActionCommand, ...]:
    return (
        _command(
            "gc",
            "Delete files of ended checkpoints and orphan files",
            ARG_JOBS,
            Arg(("--all",), action="store_true", help="All jobs"),
            Arg(
                ("--quarantine",),
                action="store_true",
                help="Only record orphan files; a later call deletes those that are still orphans",
            ),
            Arg(
                ("--quarantine-age",),
                type=age,
                metavar="AGE",
                help="With --quarantine: minimum age of the record before an orphan file is deleted (default: 1d)",
            ),
            ARG_DRY_RUN,
            ARG_YES,
            ARG_STORAGE,
        ),
        _command(
            "prune",
            "Remove old database rows of ended checkpoints and attempts, or whole jobs with their files",
            ARG_JOBS,
            Arg(
                ("--older-than",),
                type=age,
                metavar="AGE",
                help="Minimum age of the database rows to remove, such as 60d; also removes whole jobs whose Dag run "
                "is over for that time (default: 30d)",
            ),
            Arg(("--test-jobs",), action="store_true", help="Also remove whole jobs of test runs"),
            ARG_DRY_RUN,
            ARG_YES,
            ARG_STORAGE,
        ),
        _command(
            "rewind",
            "Rewind the state of a job to the position before a run, to run that run and later ones again",
            ARG_JOB,
            Arg(
                ("--before",),
                required=True,
                metavar="RUN",
                help="First run to rewind: its logical date as shown by 'checkpoints', or its run id if it has none",
            ),
            ARG_UID,
            ARG_DRY_RUN,
            ARG_YES,
        ),
        _command(
            "restore",
            "Restore all stages of a job from a savepoint of the whole job, to run them again from there",
            ARG_JOB,
            Arg(
                ("--from",),
                dest="pointer",
                required=True,
                metavar="POINTER",
                help="URI of a savepoint of the whole job, such as s3://…/savepoint-1a2b3c-4d5e6f708192",
            ),
            ARG_DRY_RUN,
            ARG_YES,
            ARG_STORAGE,
        ),
        _command(
            "savepoint",
            "Take a savepoint of a whole job, or of one operator",
            ARG_JOB,
            ARG_UID,
            ARG_TARGET,
            Arg(
                ("--format",),
                choices=("canonical", "native"),
                default="canonical",
                help="Parquet files for any state backend and other tools, or the files of the state backend "
                "(default: canonical)",
            ),
            Arg(
                ("--stop",),
                choices=("suspend", "terminate"),
                help="Stop the stages of the job, or with --uid one stage, with the savepoint: at the next boundary "
                "(suspend) or at the end (terminate)",
            ),
            Arg(
                ("--no-wait",), action="store_true", help="Only request the savepoint; the maintenance Dag completes it"
            ),
            Arg(
                ("--timeout",),
                type=number,
                default=600,
                metavar="SECONDS",
                help="Maximum time to wait for running stages (default: 600)",
            ),
            ARG_STORAGE,
        ),
        _command(
            "recover",
            "Rebuild the database rows of jobs from their checkpoints after a loss of the database",
            Arg(("directory",), metavar="CHECKPOINT_DIR", help="Checkpoint directory, such as s3://lake/checkpoints"),
            Arg(("--job",), metavar="JOB", help="Only the job with this name or id"),
            Arg(("--savepoints",), metavar="URI", help="Directory of savepoints to register"),
            ARG_DRY_RUN,
            ARG_STORAGE,
        ),
        _command(
            "rescale",
            "Rewrite a checkpoint as a savepoint with another maximum parallelism",
            ARG_POINTER,
            Arg(
                ("--max-parallelism",),
                type=number,
                required=True,
                metavar="N",
                help="New number of key groups, from the parallelism that wrote the state up to 32768",
            ),
            ARG_TARGET,
            ARG_STORAGE,
        ),
        _command(
            "dispose",
            "Delete a savepoint",
            Arg(
                ("pointer",),
                metavar="POINTER",
                help="URI of the savepoint, such as s3://…/savepoint-1a2b3c-4d5e6f708192",
            ),
            ARG_DRY_RUN,
            ARG_YES,
            ARG_STORAGE,
        ),
    )


def _removing_command() -> ActionCommand:
    return _command(
        "uninstall",
        "List what this provider keeps in the database and on the storage, and remove it",
        Arg(
            ("--storage",),
            action="store_true",
            help="Also delete the files of all jobs; without it, only the tables are removed",
        ),
        ARG_DRY_RUN,
        ARG_YES,
        ARG_STORAGE,
    )


def _packaging_command() -> ActionCommand:
    return _command(
        "package",
        "Write what drivers and executors need on a cluster without Airflow: this package, and a requirements file",
        Arg(
            ("directory",),
            nargs="?",
            default=".",
            metavar="DIRECTORY",
            help="Directory for the two files: a path, or a URI of a storage such as s3://lake/packages; missing "
            "directories are created (default: .)",
        ),
        ARG_STORAGE,
    )


def _serving_command() -> ActionCommand:
    return _command(
        "serve-state",
        "Serve queryable state from the checkpoint storage, without access to Airflow's database",
        Arg(("--host",), default="127.0.0.1", metavar="HOST", help="Address to listen on (default: 127.0.0.1)"),
        Arg(
            ("--port",),
            type=port,
            default=9069,
            metavar="PORT",
            help="Port to listen on; 0 for any free port (default: 9069)",
        ),
        Arg(
            ("--api-url",),
            metavar="URL",
            help=f"{SETTINGS['api_url'].help()}; without it, that of the connection statecheck_default or of "
            f"[statecheck] api_url",
        ),
        Arg(
            ("--max-staleness",),
            type=staleness,
            default=0,
            metavar="SECONDS",
            help="Maximum time since the last version check of a job for which no new check is made; callers are "
            "authorized every 5 seconds in any case (default: 0)",
        ),
        ARG_STORAGE,
    )


def _command(name: str, text: str, *args: Arg) -> ActionCommand:
    module, function_name = _MODULES.get(name, "maintenance_commands"), re.sub("[ -]", "_", name)
    function = lazy_load_command(f"{_CLI}.{module}.{function_name}")
    return ActionCommand(name=name.split()[-1], help=text, func=function, args=(*args, ARG_OUTPUT), epilog=_EPILOG)
