"""Runs ``dag.test()`` on a Dag of the tests; ends with 0 if the run succeeded."""

from __future__ import annotations

import sys
from datetime import datetime

from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db

dag_id, date = sys.argv[1:]
DagBundlesManager().sync_bundles_to_db()
bag = DagBag()
sync_bag_to_db(bag, "dags-folder", None)
run = bag.dags[dag_id].test(logical_date=datetime.fromisoformat(date))
sys.exit(0 if run.state == "success" else 1)
