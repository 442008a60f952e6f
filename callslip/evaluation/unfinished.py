"""Reports of a comparison that is not finished, kept so that a stopped one goes on where it was."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from callslip.errors import CallslipError
from callslip.evaluation.plain import plain, to_json
from callslip.evaluation.report import Report
from callslip.runtime import durable

FOLDER, KEY = "unfinished", "comparison.json"


class Unfinished:
    """The finished reports of a comparison, in a folder beside its results until all systems are done.

    `about` is everything that a report depends on: data, split, measures, settings, versions. Reports of a comparison
    with another one are discarded.
    """

    def __init__(self, out: str | Path, about: Mapping[str, Any]) -> None:
        self.folder = Path(out) / FOLDER
        key = self.folder / KEY
        wanted = plain(about)
        try:
            same = key.is_file() and json.loads(key.read_text(encoding="utf-8")) == wanted
        except (OSError, ValueError):
            same = False
        if not same:
            shutil.rmtree(self.folder, ignore_errors=True)
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                durable.replace(key, to_json(wanted).encode())
            except OSError as error:
                raise durable.not_written(Path(out), error) from None

    def path(self, name: str) -> Path:
        return self.folder / f"report-{re.sub(r'[^A-Za-z0-9._-]', lambda found: f'_{ord(found[0]):x}_', name)}.json"

    def get(self, name: str) -> Report | None:
        """The report of a system that an earlier run finished."""
        try:
            return Report.load(self.path(name)) if self.path(name).is_file() else None
        except CallslipError:  # damaged, so it is measured again
            return None

    def put(self, name: str, report: Report) -> None:
        durable.replace(self.path(name), to_json(report.to_dict()).encode())
