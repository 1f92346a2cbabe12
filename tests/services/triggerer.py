"""A triggerer with one trigger: runs it until its event or its failure, and writes what the task is resumed with."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from airflow.sdk.bases.operator import TRIGGER_FAIL_REPR, TriggerFailureReason
from airflow.sdk.serde import deserialize, serialize


async def first_event(trigger: Any) -> Any:
    try:
        async for event in trigger.run():
            return event.payload
        raise AssertionError("The trigger ended without an event.")
    finally:
        await trigger.cleanup()


def main() -> None:
    work = Path(sys.argv[1])
    os.environ["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] = "airflow-db-not-allowed:///"
    deferral: Any = deserialize(json.loads((work / "deferral.json").read_text()))
    trigger = resolve_name(deferral["classpath"])(**deferral["trigger_kwargs"])
    trigger.trigger_id = 1
    (work / "triggerer").touch()
    (work / "resume.json").write_text(json.dumps(serialize(resumption(deferral, trigger))))


def resumption(deferral: dict[str, Any], trigger: Any) -> dict[str, Any]:
    """Run a trigger, and return with which method and arguments Airflow resumes its task."""
    try:
        event = json.loads(json.dumps(asyncio.run(first_event(trigger))))
    except Exception as error:
        failure = {"error": TriggerFailureReason.TRIGGER_FAILURE.value, "traceback": traceback.format_exception(error)}
        return {"next_method": TRIGGER_FAIL_REPR, "next_kwargs": failure}
    return {"next_method": deferral["next_method"], "next_kwargs": {**deferral["next_kwargs"], "event": event}}


if __name__ == "__main__":
    main()
