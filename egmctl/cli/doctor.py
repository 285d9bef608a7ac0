"""``egmctl doctor``: find what stops EGM, P2P, IPC, fabric handles and GPUDirect RDMA here, with remedies."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from egmctl.api.options import PREVIEW, DoctorOptions, option
from egmctl.cli.fabric import answers_alone, job
from egmctl.cli.options import (
    ExitStyle,
    ExitStyleOption,
    MachineOption,
    MpiOptions,
    reading_this_node,
    refuse_together,
    requested_machine,
    takes_options,
)
from egmctl.cli.output import OutputOptions, Outputs, say
from egmctl.cli.progress import probing, show_progress
from egmctl.dataclass import dataclass
from egmctl.errors import ExitCode, UsageError
from egmctl.report.kinds import CHECKS, DOCTOR

if TYPE_CHECKING:
    from egmctl.api.doctor import Doctor
    from egmctl.model.diagnosis import Diagnosis
    from egmctl.model.machine import Machine
    from egmctl.mpi.world import Launched

PEERS = ("nics", "system")
"""The additional sections that an MPI job reads, to compare its nodes."""

OTHER_NODES = "peers.nodes"
"""The check that reports the failed checks of other nodes."""


@dataclass(frozen=True, kw_only=True)
class WayOptions:
    """The mode of the doctor: active tests, the view of another process, lists of checks, brief output."""

    HEADINGS: ClassVar[dict[str, str]] = {"Checking": "isolation", PREVIEW: "list_checks explain"}
    active: bool = option(
        "Also run tests: HOST_NUMA memory, copies between GPUs, memory shared by two processes. Loads CUDA; "
        "takes seconds and a little GPU memory.",
        default=False,
    )
    isolation: bool = option(
        "Only try whether memory that was not shared stays closed, on two idle GPUs. Ends processes of its own with "
        "error 700; each leaves an Xid 31 in the kernel log.",
        default=False,
    )
    pid: int = option(
        "Judge what that process (a running job) may use; as root, also its access to GPUs.",
        "PID",
        default=0,
        min=0,
        show_default=False,
    )
    list_checks: bool = option("List the checks and their purposes, then exit.", None, "--list", default=False)
    explain: str | None = option("Explain a check: why it matters, how it is read, how to fix it.", "ID")
    brief: bool = option("Only one line per problem, and the counts.", default=False)


@takes_options(DOCTOR.formats)
def doctor(
    options: DoctorOptions,
    way: WayOptions,
    mpi: MpiOptions,
    output: OutputOptions,
    machine: MachineOption = None,
    exit_style: ExitStyleOption = ExitStyle.EGMCTL,
) -> int:
    """Say what stops EGM, P2P, IPC, fabric handles and GPUDirect RDMA here, and what to do about it.

    Reads files and NVML, changes nothing and may run beside jobs; only --active loads CUDA. Under mpirun or srun it
    compares the nodes too, and with --active they open each other's memory.
    """
    with contextlib.ExitStack() as joined:
        launch = mpi.joined_job() if machine is None and not way.pid else None
        outputs = output.chosen(DOCTOR.formats, brief=way.brief)
        refuse_together({"--brief": way.brief, "--verbose": output.verbose > 0})
        if way.pid and machine is not None:
            raise UsageError("--pid and --machine exclude each other: a recorded machine has no processes")
        if way.active and (way.pid or machine is not None):
            raise UsageError("--active works on this node and process only: leave out --pid and --machine")
        refuse_together({"--list": way.list_checks, "--explain": way.explain is not None})
        if way.list_checks or way.explain is not None:
            from egmctl.api.doctor import purposes_of
            from egmctl.doctor.runner import check_list, find_check, select

            checks = select(purposes_of(options.purposes)) if way.explain is None else (find_check(way.explain),)
            output.checked(CHECKS.formats).show(check_list(checks), answers=False)
            return ExitCode.OK
        from egmctl.api.doctor import Doctor
        from egmctl.model.finding import TOLD, Status

        if way.isolation:
            diagnosis = _isolation(Doctor(**vars(options)), way, launch, machine, outputs)
            return diagnosis.answer.nagios if exit_style is ExitStyle.NAGIOS else diagnosis.exit_code
        if options.check and launch is not None:
            # Failures on other nodes are reported whatever --check selects.
            options = replace(options, check=(*options.check, OTHER_NODES))
        asked = Doctor(**vars(options))
        if launch is None:
            node = _read(joined, asked, way, machine, outputs, launch)
        else:
            node, launch, outputs = _read_with_others(joined, asked, way, outputs, launch)
        diagnosis = asked.diagnose(node)
        outputs.show(diagnosis, lambda: asked.diagnose(node, redacted=True))
    determined = diagnosis.machine.gpus and any(diagnosis.counts[status] for status in (Status.PASS, *TOLD))
    if not determined and diagnosis.answer.nothing is not None and not outputs.explains_itself:
        say(diagnosis.answer.nothing)
    if launch is not None and launch.rank:
        return ExitCode.OK
    return diagnosis.answer.nagios if exit_style is ExitStyle.NAGIOS else diagnosis.exit_code


def _isolation(
    asked: Doctor, way: WayOptions, launch: Launched | None, machine: str | None, outputs: Outputs
) -> Diagnosis:
    """Try what ``--isolation`` tries, on this node alone; write and return the diagnosis."""
    from egmctl.api.isolation import SECTIONS, announced, diagnosis, isolation

    refuse_together({"--isolation": True, "--active": way.active})
    if way.pid or machine is not None:
        raise UsageError("--isolation works on this node and process only: leave out --pid and --machine")
    if launch is not None:
        raise UsageError("--isolation works on one node: run it without mpirun or srun")
    if asked.check or asked.skip or asked.purposes is not None:
        raise UsageError("--isolation runs its own two checks: leave out --check, --skip and --for")
    outputs.check()
    node = requested_machine(None, SECTIONS, quiet=outputs.options.quiet)
    say(announced(asked, node))
    node = isolation(asked, node)
    found = diagnosis(asked, node)
    outputs.show(found, lambda: diagnosis(asked, node, redacted=True))
    return found


def _read(
    joined: contextlib.ExitStack,
    asked: Doctor,
    way: WayOptions,
    machine: str | None,
    outputs: Outputs,
    launch: Launched | None,
) -> Machine:
    """Return the machine to judge, with ``--active`` including the results of the active probes.

    Parameters
    ----------
    joined
        What ends with the command.
    """
    outputs.check()
    quiet = outputs.options.quiet
    of_peers = PEERS if launch is not None else ()
    sections = (*asked.sections, *of_peers)
    # In an MPI job only rank 0 runs these probes, because the result of its node is shown.
    if not way.active or (launch is not None and launch.rank):
        return requested_machine(machine, sections, quiet=quiet, cuda=way.active, pid=way.pid)
    with reading_this_node(sections, quiet=quiet) as read, show_progress(quiet) as shown:
        # Killed processes end while the answer is shown.
        waiting = joined.enter_context(asked.probing_processes())
        node = read()
        outputs.load_ahead(DOCTOR)
        return asked.probe(node, on_probe=probing(shown, node), waiting=waiting)


def _read_with_others(
    joined: contextlib.ExitStack, asked: Doctor, way: WayOptions, outputs: Outputs, launch: Launched
) -> tuple[Machine, Launched | None, Outputs]:
    """Return this node with the answers of the other nodes of an MPI job, and the job and outputs to continue with.

    If MPI does not start, each node reports for itself: the job is ``None``, and each node has outputs of its own.
    """
    from egmctl.doctor.peers import with_peers
    from egmctl.model.probes import Peers
    from egmctl.mpi.world import MpiFailed

    try:
        world = joined.enter_context(job(launch))
    except MpiFailed as error:
        outputs = answers_alone(launch, outputs, str(error))
        node = _read(joined, asked, way, None, outputs, None)
        return replace(node, peers=Peers(nodes=(), problem=error.reason)), None, outputs
    node = with_peers(
        world,
        lambda: _read(joined, asked, way, None, outputs, launch),
        lambda machine: asked.diagnose(machine).failures,
        active=way.active,
    )
    return node, launch, outputs
