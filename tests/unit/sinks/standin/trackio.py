"""A stand-in for Trackio with what the sink uses of it, and the tables that it stores."""

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

TABLES = """
CREATE TABLE IF NOT EXISTS metrics (id INTEGER PRIMARY KEY, run_name TEXT, step INT, metrics TEXT);
CREATE TABLE IF NOT EXISTS configs (id INTEGER PRIMARY KEY, run_name TEXT UNIQUE, config TEXT);
"""


class Run:
    def __init__(self, project: str, name: str, config: dict[str, Any]) -> None:
        folder = Path(os.environ["TRACKIO_DIR"])
        folder.mkdir(exist_ok=True)
        self.name = name
        self._database = sqlite3.connect(folder / f"{project}.db")
        self._database.executescript(TABLES)
        row = (name, json.dumps(config))
        self._database.execute("INSERT INTO configs (run_name, config) VALUES (?, ?)", row)

    def log(self, metrics: dict[str, Any], step: int | None = None) -> None:
        row = (self.name, step, json.dumps(metrics))
        self._database.execute(
            "INSERT INTO metrics (run_name, step, metrics) VALUES (?, ?, ?)", row
        )

    def finish(self) -> None:
        self._database.commit()
        self._database.close()


def init(
    project: str,
    name: str,
    config: dict[str, Any],
    resume: str,
    embed: bool,
    auto_log_gpu: bool,
    auto_log_cpu: bool,
) -> Run:
    assert os.environ.get("TRACKIO_SPACE_ID") is None, "it would be sent to another machine"
    return Run(project, name, config)
