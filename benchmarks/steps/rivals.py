"""The same flows on DBOS, with SQLite.

A program in an environment of its own (requirements-rivals.txt). First it prints SQLite's settings
of durability as JSON. For each line that it reads, like "commits 200" or "outside 200", it runs as
many workflows of five steps, and prints the seconds from the first start to the last result. A step
of "commits" writes a row in the commit of the step, by DBOS's datasource. A step of "outside" does
nothing, and DBOS stores its result.

    python benchmarks/steps/rivals.py /dev/shm/rivals 1
"""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

import sqlalchemy
from dbos import DBOS, SQLAlchemyDatasource

STEPS = 5
INSERT = sqlalchemy.text("INSERT INTO bench_row VALUES (:id, :number)")
COUNT = sqlalchemy.text("SELECT count(*) FROM bench_row")


def opened(folder: str, threads: int) -> SQLAlchemyDatasource:
    """Return the database of the app; DBOS's system database is another SQLite file."""
    options: dict[str, Any] = {"max_executor_threads": threads} if threads else {}
    DBOS(
        config={
            "name": "rivals",
            "system_database_url": f"sqlite:///{folder}/system.sqlite",
            "log_level": "ERROR",
            "run_admin_server": False,
            **options,
        }
    )
    source = SQLAlchemyDatasource.create(f"sqlite:///{folder}/app.sqlite")
    with source.engine.begin() as connection:
        connection.execute(
            sqlalchemy.text("CREATE TABLE bench_row (id TEXT PRIMARY KEY, number INTEGER)")
        )
    return source


def workflows(source: SQLAlchemyDatasource) -> dict[str, Callable[[str], int]]:
    """Return the workflows by name."""

    @source.transaction
    def write(workflow: str, number: int) -> int:
        source.sql_session().execute(INSERT, {"id": f"{workflow}-{number}", "number": number})
        return number

    @DBOS.step()
    def call(workflow: str, number: int) -> int:
        return number

    @DBOS.workflow()
    def commits(workflow: str) -> int:
        return sum(write(workflow, number) for number in range(STEPS))

    @DBOS.workflow()
    def outside(workflow: str) -> int:
        return sum(call(workflow, number) for number in range(STEPS))

    return {"commits": commits, "outside": outside}


def run(workflow: Callable[[str], int], count: int) -> float:
    """Run some workflows; return the seconds."""
    began = time.perf_counter()
    handles = [DBOS.start_workflow(workflow, uuid.uuid4().hex) for _ in range(count)]
    results = [handle.get_result() for handle in handles]
    took_s = time.perf_counter() - began
    if results != [sum(range(STEPS))] * count:
        raise RuntimeError("DBOS lost results")
    return took_s


def durability(source: SQLAlchemyDatasource) -> dict[str, Any]:
    """Return SQLite's settings of durability."""
    with source.engine.connect() as connection:
        return {
            name: connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("synchronous", "journal_mode")
        }


def main() -> None:
    """Run workflows until standard input ends."""
    folder, threads = sys.argv[1], int(sys.argv[2])
    source = opened(folder, threads)
    by_name = workflows(source)
    DBOS.launch()
    written = 0
    print(json.dumps(durability(source)), flush=True)
    for line in sys.stdin:
        name, count = line.split()
        took_s = run(by_name[name], int(count))
        written += STEPS * int(count) * (name == "commits")
        with source.engine.connect() as connection:
            if connection.execute(COUNT).scalar() != written:
                raise RuntimeError("DBOS lost rows")
        print(took_s, flush=True)
    os._exit(0)  # DBOS's threads poll SQLite without end.


if __name__ == "__main__":
    main()
