"""``--machine``: the node that a command is about, live or replayed, and the list of those that ship."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from egmctl.cli.output import say
from egmctl.cli.outputs import Outputs
from egmctl.errors import ExitCode
from egmctl.report.kinds import MACHINES
from egmctl.report.rendering import render

if TYPE_CHECKING:
    from egmctl.model.machine import Machine


def read_machine(name: str | None, sections: Iterable[str], *, quiet: bool, cuda: bool = True, pid: int = 0) -> Machine:
    """Return the live node or the machine to replay; say on standard error what takes long, or that it is recorded.

    Parameters
    ----------
    sections, cuda, pid
        As for :func:`egmctl.facts.collect.collect`; of a machine to replay, all there is.

    Raises
    ------
    UsageError
        If there is no such machine or process.
    """
    from egmctl.facts.collect import collect
    from egmctl.facts.replay import load
    from egmctl.model.machine import OriginKind

    if name is None:
        return collect(sections, cuda=cuda, pid=pid, on_wait=None if quiet else say)
    seen = load(name)
    if seen.origin.kind is OriginKind.RECORDED and not quiet:
        say(f"replaying the recorded machine {seen.origin.name}, not this node")
    return seen


def list_machines(outputs: Outputs) -> int:
    """Show the machines that ship, for ``--machine list``."""
    from egmctl.facts.replay import load, names
    from egmctl.report.views.machines import machine_list

    outputs.all_in(MACHINES.formats, "--machine list")
    outputs.check()
    listed = machine_list([load(name) for name in names()])
    outputs.write(lambda target: render(listed, target.format, width=target.width), answers=False)
    return ExitCode.OK
