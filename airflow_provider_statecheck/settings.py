"""
The settings of stages and servers, each described once.

The configuration, the commands and the documentation take them from here. Signatures and docstrings, which people and
type checkers read, are written out; a test compares them. Every Airflow process loads this module, so it imports
nothing.
"""

from __future__ import annotations

from enum import Enum, Flag, auto
from typing import Any, NamedTuple


class Place(Flag):
    """Places where a setting can be given."""

    SECTION = auto()
    """``[statecheck]`` of Airflow's configuration."""
    TASK = auto()
    """Airflow operators and the decorator that run a function or an application."""
    STAGE_TASK = auto()
    """Airflow operators that run a stage with state."""
    SCRIPT = auto()
    """``StageContext.open``."""
    STAGE_SCRIPT = auto()
    """``run_stage``."""


NOWHERE = Place(0)
TASKS = Place.TASK | Place.STAGE_TASK
SCRIPTS = Place.SCRIPT | Place.STAGE_SCRIPT
STAGES = Place.STAGE_TASK | Place.STAGE_SCRIPT
ARGUMENT = TASKS | SCRIPTS
"""An argument of all Airflow operators, and of both functions for scripts."""
OPTION = Place.SECTION | ARGUMENT
"""Such an argument whose default is in the section."""


class Kind(Enum):
    """Kinds of values: name, type in Airflow's configuration, and a sentence about the unit of a number."""

    TEXT = ("text", "string", "")
    NAMES = ("names", "string", "")
    LOCATION = ("location", "string", "")
    LOCATIONS = ("locations", "string", "")
    CHOICE = ("choice", "string", "")
    DURATION = ("duration", "string", "A bare number is milliseconds; text has a unit, such as ``5 min``.")
    SIZE = ("size", "string", "A bare number is bytes; text has a unit: ``KiB``, ``MiB``, ``KB`` or ``MB``.")
    INTEGER = ("integer", "integer", "")
    NUMBER = ("number", "float", "")
    SECONDS = ("seconds", "float", "The unit is seconds.")
    TRUTH = ("truth", "boolean", "")
    MAPPING = ("mapping", "", "")

    @property
    def airflow_type(self) -> str:
        """The type of an option in Airflow's configuration."""
        return self.value[1]

    @property
    def unit(self) -> str:
        """A sentence about the unit, empty without one."""
        return self.value[2]


class Setting(NamedTuple):
    """A setting of stages or servers."""

    name: str
    kind: Kind
    places: Place
    text: str
    """What it does, for all places; with markup for code as in docstrings."""
    default: Any = None
    example: str | None = None
    of_place: tuple[tuple[Place, str], ...] = ()
    """Further sentences for some places."""
    required_in: Place = NOWHERE
    flink: str | None = None
    """Attribute of ``CheckpointConfig`` whose key in the section is another name of the option."""

    def doc(self, place: Place) -> str:
        """Return the documentation of the setting in a place."""
        further = (text for places, text in self.of_place if place in places)
        return " ".join(filter(None, (self.text, self.kind.unit, *further)))

    def option(self) -> dict[str, Any]:
        """Return the declaration of the option for Airflow."""
        return {
            "description": self.doc(Place.SECTION).replace("``", ""),
            "version_added": "0.1.0",
            "type": self.kind.airflow_type,
            "example": self.example,
            "default": None if self.default is None else str(self.default),
        }

    def help(self) -> str:
        """Return the first sentence, for a flag of a command."""
        return self.text.partition(". ")[0].removesuffix(".").replace("``", "")


_NEXT_RUN = (
    "A new run continues from the state of the last one. Names that are dates, such as ``2026-01-05``, are ordered, "
    "and a run before the last one is refused."
)
_SETTINGS = (
    Setting(
        "job",
        Kind.TEXT,
        ARGUMENT,
        "Name of the job, the unit of recovery.",
        of_place=((TASKS, "By default each Dag run has its own job."),),
        required_in=SCRIPTS,
    ),
    Setting(
        "uid",
        Kind.TEXT,
        TASKS | Place.SCRIPT,
        "Name of this stage within the job, which owns its state and output.",
        of_place=((TASKS, "The default is the task id."), (Place.SCRIPT, "The default is ``stage``.")),
    ),
    Setting(
        "map_key",
        Kind.TEXT,
        TASKS,
        "For a mapped task: a stable name of the instance, independent of the order of instances.",
    ),
    Setting(
        "checkpoint_dir",
        Kind.LOCATION,
        OPTION,
        "Directory for checkpoints: a path or any fsspec URI that the Spark driver can reach.",
        example="s3://lake/checkpoints",
        of_place=((Place.SECTION, "Required unless each Airflow operator has its own."),),
        required_in=SCRIPTS,
        flink="checkpoint_dir",
    ),
    Setting(
        "storage_conn_id",
        Kind.TEXT,
        Place.SECTION | TASKS,
        "Airflow connection with the credentials for ``checkpoint_dir``. Without it, every process uses the "
        "credentials of its environment.",
        example="aws_default",
    ),
    Setting(
        "storage_options",
        Kind.MAPPING,
        SCRIPTS,
        "Options of the fsspec filesystem of ``checkpoint_dir``, such as credentials.",
    ),
    Setting(
        "metadata",
        Kind.TEXT,
        SCRIPTS,
        "SQLAlchemy URL of the metadata database, such as ``sqlite:///state.db``; missing tables are created.",
        required_in=SCRIPTS,
    ),
    Setting(
        "run",
        Kind.TEXT,
        SCRIPTS,
        "Name of the run.",
        default="script",
        of_place=(
            (Place.SCRIPT, "A new run keeps ``state`` and finished items, but recomputes all snapshots."),
            (Place.STAGE_SCRIPT, _NEXT_RUN),
        ),
    ),
    Setting(
        "num_retained",
        Kind.INTEGER,
        OPTION,
        "Maximum number of completed checkpoints to retain, at least 1.",
        default=2,
        flink="num_retained",
    ),
    Setting(
        "retained_runs",
        Kind.INTEGER,
        OPTION,
        "Number of earlier runs whose last checkpoint is retained in addition to ``num_retained``, for a job that "
        "continues from run to run. As many runs can be run again.",
        default=1,
    ),
    Setting(
        "checkpoint_timeout_seconds",
        Kind.SECONDS,
        OPTION,
        "Maximum time from the start of a checkpoint to its acknowledgement.",
        default=600.0,
        flink="timeout",
    ),
    Setting(
        "tolerable_failed_checkpoints",
        Kind.INTEGER,
        OPTION,
        "Number of consecutive checkpoint failures that a stage tolerates before it fails; ``-1`` for no limit.",
        default=-1,
        flink="tolerable_failed_checkpoints",
    ),
    Setting(
        "overhead_budget",
        Kind.NUMBER,
        Place.SECTION | Place.TASK | Place.SCRIPT,
        "Maximum share of a stage's time that checkpointing may take, above 0 and up to 1. Beyond it, optional "
        "checkpoints and snapshots are delayed. Without a value nothing is delayed.",
        example="0.05",
    ),
    Setting(
        "checkpoint_interval",
        Kind.DURATION,
        OPTION,
        "Interval of periodic checkpoints, or ``auto``, which derives it from the cost of checkpoints and the "
        "failures of the job. Without a value, a loop takes a checkpoint after its configured number of items, and a "
        "stage with state after each increment.",
        example="5 min",
        flink="checkpoint_interval",
    ),
    Setting(
        "min_pause",
        Kind.DURATION,
        OPTION,
        "Minimum pause between a completed checkpoint and the next periodic checkpoint.",
        default=0,
        example="30 s",
        flink="min_pause_between_checkpoints",
    ),
    Setting(
        "externalized_checkpoint_retention",
        Kind.CHOICE,
        Place.SECTION | TASKS,
        "Retention of checkpoints after the end of a run: ``RETAIN_ON_CANCELLATION`` retains them after a failure and "
        "if a user marks the run as failed, ``DELETE_ON_CANCELLATION`` after a failure only, "
        "``NO_EXTERNALIZED_CHECKPOINTS`` never. A job with a fixed name always retains them.",
        default="RETAIN_ON_CANCELLATION",
        flink="externalized_checkpoint_retention",
    ),
    Setting(
        "savepoint_dir",
        Kind.LOCATION,
        OPTION,
        "Default directory for savepoints: any fsspec URI. A request can name another one.",
        example="s3://lake/savepoints",
        flink="savepoint_dir",
    ),
    Setting(
        "from_savepoint",
        Kind.TEXT,
        ARGUMENT,
        "Pointer to a savepoint, or to a checkpoint of another job. The stage starts from it if it has no checkpoint "
        "of its own to restore; of a savepoint of a whole job, from the member with its uid.",
    ),
    Setting(
        "from_checkpoint",
        Kind.TEXT,
        ARGUMENT,
        "For a fork: the checkpoint of ``job`` to start from, as an id, ``run:<run>`` or ``before:<run>``, or a "
        "pointer.",
        of_place=((TASKS, "A run is named by its logical date or run id."),),
    ),
    Setting(
        "fork",
        Kind.TEXT,
        ARGUMENT,
        "Name of the fork, which is the job ``<job>@<fork>``.",
        of_place=(
            (TASKS, "The default is the logical date, else the partition, else the run id."),
            (SCRIPTS, "The default is the name of the run."),
        ),
    ),
    Setting(
        "claim_mode",
        Kind.CHOICE,
        ARGUMENT,
        "Owner of the restored savepoint or checkpoint: with ``no_claim`` (default) its previous owner keeps it, with "
        "``claim`` this job takes it over.",
        default="no_claim",
    ),
    Setting(
        "renamed_uids",
        Kind.MAPPING,
        ARGUMENT,
        "For a stage whose uid changed: the old uid and the new one. The stage takes over the operator of the old uid "
        "in its job, and a savepoint of it. Keep the argument as long as the job exists.",
        of_place=((Place.STAGE_SCRIPT, "It also names functions of the stage whose uid has changed."),),
    ),
    Setting(
        "allow_non_restored_state",
        Kind.TRUTH,
        ARGUMENT,
        "Start with empty state if the savepoint belongs to other stages, or if the stage is new in a job from which "
        "another stage was removed.",
        default=False,
        of_place=((Place.STAGE_SCRIPT, "Also drop the state of functions that no longer exist."),),
    ),
    Setting(
        "savepoint_at_end",
        Kind.TRUTH,
        ARGUMENT,
        "Whether to take a savepoint when the stage has finished; needs a directory for savepoints.",
        default=False,
    ),
    Setting(
        "data_inline_threshold",
        Kind.SIZE,
        OPTION,
        "Maximum size of a small value of a stage that is stored in the metadata of a checkpoint instead of a "
        "separate file, up to 1 MiB.",
        default="20 KiB",
        flink="data_inline_threshold",
    ),
    Setting(
        "allowed_locations",
        Kind.LOCATIONS,
        OPTION,
        "URIs where checkpoints and savepoints may reference files, in addition to the bucket or host (for local "
        "paths the directory) of ``checkpoint_dir``, ``savepoint_dir`` and a given pointer: a list, or text with "
        "commas. A reference to any other location is rejected before it is opened.",
        example="s3://archive, file:///mnt/old-checkpoints",
    ),
    Setting(
        "on_clear",
        Kind.CHOICE,
        OPTION,
        "Behaviour of a cleared task: ``resume_unchanged`` keeps the steps whose code did not change (after a "
        "success, its run starts again), ``resume`` keeps every step, ``restart`` starts its run again.",
        default="resume_unchanged",
        of_place=((SCRIPTS, "A script that starts again counts as a cleared task."),),
    ),
    Setting(
        "on_overlap",
        Kind.CHOICE,
        Place.SECTION | TASKS,
        "Behaviour while the same operator of the job still runs for another run: ``fail`` at once, or ``wait`` for "
        "its end.",
        default="fail",
    ),
    Setting(
        "parallelism",
        Kind.INTEGER,
        STAGES,
        "Number of subtasks. The default is that of the stage, or else the number of task slots of Spark.",
    ),
    Setting(
        "api_url",
        Kind.TEXT,
        Place.SECTION,
        "Root URL of the api-server as seen from tasks and Spark drivers. The default is derived from [core] "
        "execution_api_server_url.",
        example="https://airflow.example.com",
    ),
    Setting(
        "maintenance_dags",
        Kind.NAMES,
        Place.SECTION,
        "Comma-separated ids of the Dags whose tasks may take savepoints of whole jobs, restore jobs in place, and "
        "remove database rows of ended attempts, checkpoints and jobs.",
        default="statecheck_maintenance",
    ),
    Setting(
        "migrate_on_start",
        Kind.TRUTH,
        Place.SECTION,
        "Whether an api-server that starts creates the tables of this package or upgrades them, as ``airflow db "
        "migrate`` does.",
        default=True,
    ),
    Setting(
        "read_other_jobs",
        Kind.TRUTH,
        Place.SECTION,
        "Whether tasks may read jobs on which their Dag does not work: their records, pointers and, where state is "
        "served, queryable state and snapshots. With [core] multi_team, they read jobs of their own team only. "
        "Sensors and hooks that wait for the job of another Dag need it. Only the api-server reads this option.",
        default=True,
    ),
    Setting(
        "serve_state",
        Kind.TRUTH,
        Place.SECTION,
        "Whether the api-server serves queryable state. It needs read access to ``checkpoint_dir`` with "
        "``storage_conn_id``. Otherwise, run airflow statecheck serve-state on another machine.",
        default=True,
    ),
    Setting(
        "state_requests_per_second",
        Kind.NUMBER,
        Place.SECTION,
        "Maximum number of requests for queryable state per second, for each process of a server: on the api-server "
        "for each task and user, on other servers for each token; 0 for any number.",
        default=0.0,
        example="50.0",
    ),
)
SETTINGS = {setting.name: setting for setting in _SETTINGS}
"""All settings by name."""


def settings_in(place: Place) -> dict[str, Setting]:
    """Return the settings that can be given in a place."""
    return {name: setting for name, setting in SETTINGS.items() if place in setting.places}
