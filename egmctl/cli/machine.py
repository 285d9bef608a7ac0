"""``--machine``: the node that a command is about, live or replayed, and the list of those that ship."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from egmctl.cli.output import Color, emit, say
from egmctl.errors import ExitCode, UsageError
from egmctl.report.forms import Form

if TYPE_CHECKING:
    from egmctl.model.machine import Machine


def read_machine(name: str | None, sections: Iterable[str], *, quiet: bool, cuda: bool = True, pid: int = 0) -> Machine:
    """Return the live node or the machine to replay, and say on standard error if it was recorded elsewhere.

    Parameters
    ----------
    sections, cuda, pid
        As for :func:`egmctl.facts.collect.collect`; of a machine to replay, all there is.

    Raises
    ------
    UsageError
        If there is no such machine or process.
    """
    if name is None:
        from egmctl.facts.collect import collect

        return collect(sections, cuda=cuda, pid=pid)
    from egmctl.facts.replay import load
    from egmctl.model.machine import OriginKind

    seen = load(name)
    if seen.origin.kind is OriginKind.RECORDED and not quiet:
        say(f"recorded: {seen.origin.name}, this is not the live node")
    return seen


def list_machines(form: Form, output: Path | None, force: bool, color: Color) -> int:
    """Show the machines that ship, for ``--machine list``."""
    from egmctl.facts.replay import load, names
    from egmctl.report.topo_machines import machines_csv, machines_json, machines_text

    if form not in (Form.TEXT, Form.JSON, Form.CSV):
        raise UsageError(f"--machine list is text, JSON or CSV: it has no form {form}")
    machines = [load(name) for name in names()]
    if form is Form.JSON:
        emit(machines_json(machines), output=output, force=force)
    elif form is Form.CSV:
        emit(machines_csv(machines), output=output, force=force)
    else:
        emit(machines_text(machines), output=output, force=force, color=color)
    return ExitCode.OK
