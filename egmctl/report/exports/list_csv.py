"""The lists of runs that are kept, of profiles and of shipped machines as CSV."""

from __future__ import annotations

from dataclasses import fields

from egmctl.model.codec import to_json
from egmctl.model.listing import History, MachineList, ShippedMachine
from egmctl.model.profile import ProfileList
from egmctl.report.exports.csv_text import csv_text

RUNS = ("file", "started_at", "gpus", "measurements", "ok", "exit_code", "ending")
REFERENCES = ("profile", "case", "link", "flows", "unit", "typical", "warn", "fail", "source")
"""The columns, in order. New ones are added at the end."""


def history_csv(history: History) -> str:
    """Return a row for each run."""
    return csv_text(
        RUNS,
        (
            {
                "file": run.file,
                "started_at": run.started_at,
                "gpus": " ".join(run.gpus),
                "measurements": run.measurements,
                "ok": run.ok,
                "exit_code": run.exit_code,
                "ending": run.ending,
            }
            for run in history.runs
        ),
    )


def profiles_csv(profiles: ProfileList) -> str:
    """Return a row for each reference; ``source`` is its kind: measured, published, nominal or a rule."""
    return csv_text(
        REFERENCES,
        (
            {
                "profile": one.profile.name,
                "case": reference.case,
                "link": reference.link,
                "flows": reference.flows,
                "unit": reference.unit.value,
                "typical": reference.typical,
                "warn": reference.warn,
                "fail": reference.fail,
                "source": one.profile.sources[reference.source].kind.value,
            }
            for one in profiles.profiles
            for reference in one.profile.references
        ),
    )


def machines_csv(listed: MachineList) -> str:
    """Return a row for each machine."""
    columns = tuple(field.name for field in fields(ShippedMachine))
    return csv_text(columns, (to_json(machine) for machine in listed.machines))
