"""A triggerer with one trigger: runs it until its event, and writes what the task is resumed with."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

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
    event = json.loads(json.dumps(asyncio.run(first_event(trigger))))
    resume = {"next_method": deferral["next_method"], "next_kwargs": {**deferral["next_kwargs"], "event": event}}
    (work / "resume.json").write_text(json.dumps(serialize(resume)))


if __name__ == "__main__":
    main()
