"""
Add the Dags of each job, and the figures of jobs by which a list of jobs is sorted.

Revision ID: 0010_0_1_0
Revises: 0009_0_1_0
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0010_0_1_0"
down_revision = "0009_0_1_0"
branch_labels = None
depends_on = None
statecheck_version = "0.1.0"

_TIME = sa.DateTime(timezone=True)
_FIGURES: dict[str, sa.types.TypeEngine[Any]] = {
    "status": sa.String(16),
    "checkpoint_id": sa.BigInteger(),
    "completed_at": _TIME,
    "full_size_bytes": sa.BigInteger(),
    "failed_at": _TIME,
    "failure": sa.Text(),
}
_COORDINATES = 4
"""Number of pairs in the owner of an attempt. One pair names the Dag."""
_FAILURE_LENGTH = 300


def _table(name: str, **columns: sa.types.TypeEngine[Any]) -> sa.TableClause:
    return sa.table(
        f"statecheck_{name}",
        *(sa.column(column, kind) for column, kind in ({"job_id": sa.String()} | columns).items()),
    )


_JOB = _table("job", **_FIGURES)
_DAG = _table("job_dag", operator_id=sa.String(), dag_id=sa.String())
_OPERATOR = _table("operator", operator_id=sa.String(), epoch=sa.Integer(), generation=sa.Integer())
_ATTEMPT = _table(
    "attempt",
    operator_id=sa.String(),
    epoch=sa.Integer(),
    status=sa.String(),
    owner=sa.JSON(),
    ended_at=_TIME,
    message=sa.Text(),
)
_CHECKPOINT = _table(
    "checkpoint",
    checkpoint_id=sa.BigInteger(),
    operator_id=sa.String(),
    generation=sa.Integer(),
    status=sa.String(),
    properties=sa.JSON(),
    completed_at=_TIME,
    ended_at=_TIME,
    discarded_at=_TIME,
    full_size_bytes=sa.BigInteger(),
    failure_reason=sa.String(),
    failure_message=sa.Text(),
    unusable_reason=sa.Text(),
)


def upgrade() -> None:
    """Add the table and the columns, and fill them from the rows of attempts and checkpoints."""
    op.create_table(
        "statecheck_job_dag",
        sa.Column("job_id", sa.String(32), nullable=False),
        sa.Column("operator_id", sa.String(32), nullable=False),
        sa.Column("dag_id", sa.String(250), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "operator_id", "dag_id", name=op.f("pk_statecheck_job_dag")),
    )
    op.create_index(op.f("idx_statecheck_job_dag_dag_id_job_id"), "statecheck_job_dag", ["dag_id", "job_id"])
    for name, kind in _FIGURES.items():
        with op.batch_alter_table("statecheck_job") as changed:
            changed.add_column(sa.Column(name, kind, nullable=True))
    _set_collation("C")
    _fill_dags()
    op.execute(sa.update(_JOB).values(status=_status(), checkpoint_id=_newest_checkpoint()))
    op.execute(sa.update(_JOB).values({name: _of_checkpoint(name) for name in ("completed_at", "full_size_bytes")}))
    op.execute(sa.update(_JOB).values(failed_at=_last_failure("ended_at"), failure=_last_failure("reason")))


def _set_collation(collation: str) -> None:
    if op.get_context().dialect.name == "postgresql":
        op.alter_column("statecheck_job", "name", type_=sa.String(500, collation=collation), existing_nullable=False)


def _fill_dags() -> None:
    for position in range(_COORDINATES):
        name, value = (_ATTEMPT.c.owner[("airflow", position, part)].as_string() for part in (0, 1))
        found = sa.select(_ATTEMPT.c.job_id, _ATTEMPT.c.operator_id, value).where(name == "dag_id", value != "")
        op.execute(sa.insert(_DAG).from_select(["job_id", "operator_id", "dag_id"], found.distinct()))


def _status() -> sa.ColumnElement[str]:
    is_newest = sa.and_(_OPERATOR.c.operator_id == _ATTEMPT.c.operator_id, _OPERATOR.c.epoch == _ATTEMPT.c.epoch)
    is_of_operator = sa.and_(_OPERATOR.c.job_id == _ATTEMPT.c.job_id, is_newest)

    def has(*conditions: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
        newest = sa.select(_ATTEMPT.c.epoch).join_from(_ATTEMPT, _OPERATOR, is_of_operator)
        return sa.exists(newest.where(_ATTEMPT.c.job_id == _JOB.c.job_id, *conditions).correlate(_JOB))

    return sa.case(
        (has(_ATTEMPT.c.status == "running"), "running"),
        (has(_ATTEMPT.c.status == "failed"), "failed"),
        (sa.and_(has(), sa.not_(has(_ATTEMPT.c.status != "finished"))), "finished"),
        (sa.exists().where(_ATTEMPT.c.job_id == _JOB.c.job_id).correlate(_JOB), "idle"),
    )


def _newest_checkpoint() -> sa.ColumnElement[int]:
    properties = _CHECKPOINT.c.properties
    is_own = sa.or_(
        properties["snapshot_type"].as_string().in_(["checkpoint", "full_checkpoint"]),
        properties["unclaimed"].as_boolean(),
    )
    is_of_operator = sa.and_(
        _CHECKPOINT.c.job_id == _OPERATOR.c.job_id,
        _CHECKPOINT.c.operator_id == _OPERATOR.c.operator_id,
        _CHECKPOINT.c.generation == _OPERATOR.c.generation,
    )
    query = sa.select(_CHECKPOINT.c.checkpoint_id).join_from(_OPERATOR, _CHECKPOINT, is_of_operator)
    query = query.where(
        _OPERATOR.c.job_id == _JOB.c.job_id,
        _CHECKPOINT.c.discarded_at.is_(None),
        _CHECKPOINT.c.status == "completed",
        _CHECKPOINT.c.unusable_reason.is_(None),
        is_own,
    )
    order = (_CHECKPOINT.c.completed_at.desc(), _CHECKPOINT.c.checkpoint_id.desc())
    return query.order_by(*order).limit(1).correlate(_JOB).scalar_subquery()


def _of_checkpoint(name: str) -> sa.ColumnElement[Any]:
    is_newest = sa.and_(_CHECKPOINT.c.job_id == _JOB.c.job_id, _CHECKPOINT.c.checkpoint_id == _JOB.c.checkpoint_id)
    return sa.select(_CHECKPOINT.c[name]).where(is_newest).correlate(_JOB).scalar_subquery()


def _failures() -> sa.Subquery:
    number = sa.cast(_ATTEMPT.c.epoch, sa.String)
    ended = "attempt " + number + " was replaced or abandoned before it ended"
    attempts = sa.select(
        _ATTEMPT.c.job_id,
        _ATTEMPT.c.ended_at,
        sa.func.substr(sa.case((_ATTEMPT.c.message == "", ended), else_=_ATTEMPT.c.message), 1, _FAILURE_LENGTH).label(
            "reason"
        ),
    ).where(_ATTEMPT.c.status.in_(["failed", "fenced"]), _ATTEMPT.c.ended_at.is_not(None))
    reason = "checkpoint " + sa.cast(_CHECKPOINT.c.checkpoint_id, sa.String) + ": " + _CHECKPOINT.c.failure_message
    checkpoints = sa.select(
        _CHECKPOINT.c.job_id, _CHECKPOINT.c.ended_at, sa.func.substr(reason, 1, _FAILURE_LENGTH)
    ).where(_CHECKPOINT.c.status == "aborted", _CHECKPOINT.c.failure_reason != "attempt_ended")
    return attempts.union_all(checkpoints).subquery("failures")


def _last_failure(name: str) -> sa.ColumnElement[Any]:
    failures = _failures()
    query = sa.select(failures.c[name]).where(failures.c.job_id == _JOB.c.job_id)
    order = (failures.c.ended_at.desc(), failures.c.reason.desc())
    return query.order_by(*order).limit(1).correlate(_JOB).scalar_subquery()


def downgrade() -> None:
    """Drop the columns and the table."""
    _set_collation("default")
    for name in _FIGURES:
        op.drop_column("statecheck_job", name)
    op.drop_table("statecheck_job_dag")
