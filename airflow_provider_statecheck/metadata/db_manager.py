"""DB manager with which ``airflow db migrate`` creates and upgrades the tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.utils.db_manager import BaseDBManager

from airflow_provider_statecheck.metadata.provider_tables import ProviderTables
from airflow_provider_statecheck.metadata.tables import METADATA, VERSION_TABLE
from airflow_provider_statecheck.overriding import override

_HERE = Path(__file__).parent

_NO_TABLES = "base"
REVISION_HEADS = {"0.1.0": "0001_0_1_0"}


class StatecheckDBManager(BaseDBManager):
    """Manager of the tables ``statecheck_*``, which have their own version table."""

    metadata = METADATA
    version_table_name = VERSION_TABLE
    migration_dir = (_HERE / "migrations").as_posix()
    alembic_file = (_HERE / "alembic.ini").as_posix()
    supports_table_dropping = True
    revision_heads_map = REVISION_HEADS

    @override
    def downgrade(self, to_revision: str, from_revision: str | None = None, show_sql_only: bool = False) -> None:
        """
        Downgrade the tables to an earlier revision.

        :param to_revision: Target revision; ``base`` removes all tables, with the one of the version.
        :param from_revision: First revision of the printed statements. The default is the newest revision.
        :param show_sql_only: Print the statements instead of running them.
        """
        from alembic import command

        config: Any = self.get_alembic_config()  # type: ignore[no-untyped-call]
        # Without a database, alembic needs both revisions.
        revision = f"{from_revision or 'heads'}:{to_revision}" if show_sql_only else to_revision
        command.downgrade(config, revision, sql=show_sql_only)
        if to_revision == _NO_TABLES and not show_sql_only:
            # Alembic leaves the table of the version, without a row.
            ProviderTables(self.session.get_bind()).drop()
