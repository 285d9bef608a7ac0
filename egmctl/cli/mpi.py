"""``--mpi``: whether this process is one of several of an MPI job, and how they begin and end together."""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from egmctl.api.options import option
from egmctl.cli import output
from egmctl.compat import StrEnum
from egmctl.errors import EgmctlError, ExitCode

if TYPE_CHECKING:
    from egmctl.cli.output import OutputOptions, Outputs
    from egmctl.mpi.environment import Launched
    from egmctl.mpi.world import World
    from egmctl.report.kinds import Kind


class Mpi(StrEnum):
    """The words of ``--mpi``."""

    AUTO = "auto"
    """The variables of a launcher decide."""
    OFF = "off"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class MpiOptions:
    """Whether the command joins an MPI job."""

    mpi: Mpi = option(
        "auto: join the MPI job if mpirun or srun started this process; off: run alone.", default=Mpi.AUTO
    )

    def launched(self) -> Launched | None:
        """Return what the launcher says, if this is one of several processes and they belong together.

        From now on all but rank 0 are silent.
        """
        if self.mpi is Mpi.OFF:
            return None
        from egmctl.mpi.environment import launched

        launch = launched(os.environ)
        if launch is not None:
            output.relayed = True
            output.muted = launch.rank > 0
        return launch


def answers_alone(launch: Launched, outputs: Outputs) -> Outputs:
    """Have one process of each node answer for it, and the others end in silence.

    Returns
    -------
    Outputs
        On all nodes but that of rank 0 with the node's name in each file's: two nodes never write the same file.
    """
    if not launch.first_of_node:
        raise typer.Exit
    output.muted = False
    return outputs.of_node(socket.gethostname()) if launch.rank else outputs


def node_outputs(chosen: OutputOptions, kind: Kind, machine: str | None) -> Outputs:
    """Return where a command writes that answers for one node: as one of an MPI job's processes, for its own node."""
    launch = MpiOptions().launched() if machine is None else None
    outputs = chosen.chosen(kind.formats)
    outputs = outputs if launch is None else answers_alone(launch, outputs)
    outputs.check()
    return outputs


@contextlib.contextmanager
def job(launch: Launched) -> Iterator[World]:
    """Join the job, and leave it with all others.

    Raises
    ------
    MpiFailed
        If MPI does not start.
    EgmctlError
        On rank 0, what was raised on all ranks; the others end in silence.
    """
    from egmctl.mpi.world import RanksMissing, World

    world = World(launch, on_wait=lambda: output.say(f"waiting for all {launch.size} processes to start MPI"))
    try:
        yield world
    except RanksMissing as error:
        # Nobody waits for anybody any more: rank 0 says why, and takes all with it.
        if world.rank == 0:
            output.say(str(error))
            world.abort(ExitCode.CRASHED)
        raise typer.Exit(ExitCode.CRASHED) from None
    except EgmctlError:
        world.finish()
        if world.rank:
            raise typer.Exit from None
        raise
    except typer.Exit as ended:
        if world.broken:
            world.abort(ended.exit_code)
        world.finish()
        raise
    except Exception:
        # A fault of the tool: it is told wherever it is, and with the end of this process all others are ended.
        output.muted = False
        atexit.register(world.abort, ExitCode.CRASHED)
        raise
    else:
        world.finish()
