"""Lets ``airflow db migrate`` make and upgrade the tables; the only module of this package's tables that knows Airflow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.utils.db_manager import BaseDBManager
from typing_extensions import override

from airflow_provider_statecheck.metadata.models import Base

_HERE = Path(__file__).parent

VERSION_TABLE = "alembic_version_statecheck"
REVISION_HEADS = {"0.1.0": "0007_0_1_0"}


class StatecheckDBManager(BaseDBManager):
    """The tables ``statecheck_*`` and their own version table."""

    metadata = Base.metadata
    version_table_name = VERSION_TABLE
    migration_dir = (_HERE / "migrations").as_posix()
    alembic_file = (_HERE / "alembic.ini").as_posix()
    supports_table_dropping = True
    revision_heads_map = REVISION_HEADS

    @override
    def downgrade(self, to_revision: str, from_revision: str | None = None, show_sql_only: bool = False) -> None:
        """
        Take the tables back to an earlier revision, ``base`` for none at all.

        :param to_revision: The revision to go to.
        :param from_revision: Where the statements begin that are shown, by default the newest revision.
        :param show_sql_only: Print the statements instead of running them.
        """
        from alembic import command

        config: Any = self.get_alembic_config()  # type: ignore[no-untyped-call]
        # Without a database to look at, alembic wants to be told both ends.
        revision = f"{from_revision or 'heads'}:{to_revision}" if show_sql_only else to_revision
        command.downgrade(config, revision, sql=show_sql_only)
