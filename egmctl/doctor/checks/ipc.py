"""Checks of sharing memory between processes: namespaces, descriptors of other processes, /dev/shm, limits."""

# ruff: noqa: S108 (paths are named, not used)

from __future__ import annotations

from collections.abc import Iterator, Sequence

from egmctl.doctor.check import Scope, Verdicts, check, known, skip
from egmctl.doctor.findings import fact, failed, noted, passed, unknown, warned
from egmctl.doctor.remedies import site
from egmctl.model.finding import Guard
from egmctl.model.host import INITIAL_NAMESPACES, Confinement, CudaProcesses, Process, System
from egmctl.model.machine import Machine
from egmctl.model.record import Reason
from egmctl.model.remedy import Site, todo
from egmctl.units import GIB, MIB, format_size, group_by

SHM_FAIL, SHM_WARN = 64 * MIB, GIB
"""The default of containers, and the size that the NCCL user guide recommends (--shm-size=1g), in bytes."""
NOFILE = 65536
"""The number of descriptors that large jobs need (NCCL user guide, troubleshooting)."""
FEW_FILES = 1024
"""The soft limit that most systems begin with, with which NCCL fails from about four nodes on."""
UNLIMITED = -1
_RAISE_NOFILE = todo(
    "Raise it in the job, up to the hard limit, or in limits.conf and LimitNOFILE= of slurmd.",
    run=f"ulimit -n {NOFILE}",
)
_RAISE_MEMLOCK = todo(
    "Raise memlock: beyond the hard limit by docker run --ulimit, LimitMEMLOCK= of the systemd unit that starts jobs, "
    "or limits.conf.",
    run="ulimit -l unlimited",
)


@check("ipc.pid-namespace", Guard.IPC, sections=("confinement",))
def _pid_namespace(machine: Machine, _scope: Scope) -> Verdicts:
    return _namespace(machine, "pid", "legacy CUDA IPC works only within it (201 INVALID_CONTEXT from other processes)")


@check("ipc.ipc-namespace", Guard.IPC, sections=("confinement",))
def _ipc_namespace(machine: Machine, _scope: Scope) -> Verdicts:
    return _namespace(machine, "ipc", "System V shared memory and usually /dev/shm are not shared with the others")


def _namespace(machine: Machine, name: str, note: str) -> Verdicts:
    namespaces = (machine.confinement or Confinement()).namespaces or {}
    number = known(namespaces.get(name), f"/proc/self/ns/{name} was not read")
    yield fact(f"/proc/self/ns/{name}", number)
    if number == INITIAL_NAMESPACES[name]:
        yield passed(f"in the {name.upper()} namespace of the host")
    else:
        yield passed(f"in {'an' if name == 'ipc' else 'a'} {name.upper()} namespace of its own", note=note)


_ALLOW_PTRACE = todo(
    "Where ranks share memory by pidfd_getfd: PR_SET_PTRACER in the exporter, CAP_SYS_PTRACE for the container, or "
    "kernel.yama.ptrace_scope=0 on the host."
)


_ONE_DRIVER = todo(
    "Start all processes that share memory with the same libraries: one image, or the same LD_LIBRARY_PATH.",
    look="ldconfig -p | grep -E 'libcuda|libcudart'",
)


@check("ipc.libraries", Guard.IPC, sections=("process",))
def _libraries(machine: Machine, _scope: Scope) -> Verdicts:
    process = machine.process or Process()
    unread = process.unread.get("cuda_processes")
    if process.cuda_processes is None and (unread is None or unread.reason in _NOT_HERE):
        skip("the libraries of other processes were not recorded, or NVML's process ids are not those of here")
    groups = known(process.cuda_processes, "the maps of the processes that use the GPUs were not read", unread)
    not_read = process.cuda_processes_unread or 0
    if not_read:
        yield fact("processes on these GPUs whose maps were not read", not_read)
    for group in groups:
        yield fact(f"user {group.user}, {group.processes} of the processes on these GPUs", _words(group))
    # With --pid only the processes that may share memory with it matter.
    users = [members for _, members in group_by(groups, lambda group: group.user)]
    users = [members for members in users if not process.pid or any(group.asked for group in members)]
    users = [members for members in users if sum(group.processes for group in members) > 1]
    different = dict.fromkeys(name for members in users for name in _differing(members))
    if not users and not not_read:
        skip("fewer than two processes of one user and IPC namespace were seen on these GPUs")
    elif different:
        names = " and ".join(different)
        cause = "processes that share memory must run with one CUDA driver and runtime (CUDA programming guide, IPC)"
        note = "it matters only where they share memory"
        if process.pid:
            text = f"process {process.pid} and others of its user have different {names}"
            yield warned(text, _ONE_DRIVER, cause=cause, note=note)
        else:
            text = f"processes of one user that use these GPUs have different {names}"
            yield noted(text, remedy=_ONE_DRIVER, cause=cause, note=note)
    elif not_read:
        yield unknown(
            f"maps of processes on these GPUs were not read ({not_read}): too many, too long, or no answer in time"
        )
    elif any(group.libcuda_version is None for members in users for group in members):
        yield unknown("the version of a process' libcuda is not in its file's name")
    else:
        yield passed("the processes on these GPUs that could be read have one libcuda for each user")


def _differing(groups: Sequence[CudaProcesses]) -> Iterator[str]:
    """Yield the libraries of which processes have different versions; a version that was not read is none of them."""
    drivers = {(group.libcuda_version, group.libcuda_compat) for group in groups if group.libcuda_version is not None}
    if len(drivers) > 1:
        yield "libcuda"
    if len({group.runtime_version for group in groups} - {None}) > 1:
        yield "CUDA runtimes"


_NOT_HERE = (Reason.NOT_ASKED, Reason.NOT_STATED, Reason.NOT_SUPPORTED)


def _words(group: CudaProcesses) -> str:
    compat = " (compat)" if group.libcuda_compat else ""
    return (
        f"libcuda {group.libcuda_version or 'of no version'}{compat}, libcudart {group.runtime_version or 'not seen'}"
    )


@check("ipc.ptrace", Guard.IPC, sections=("confinement",))
def _ptrace(machine: Machine, _scope: Scope) -> Verdicts:
    confinement = machine.confinement or Confinement()
    value, call = confinement.ptrace_scope, (confinement.system_calls or {}).get("pidfd_open")
    absent = value is None and confinement.reason_of("ptrace_scope") is Reason.NOT_PRESENT
    yield fact("/proc/sys/kernel/yama/ptrace_scope", "no Yama" if absent else value)
    yield fact("pidfd_open(2)", call or "not asked", None if call in (None, "ok", "killed") else call)
    remedy = todo("Pass descriptors over a socket, let the exporter set PR_SET_PTRACER, or add CAP_SYS_PTRACE.")
    over_sockets = "descriptors can still be passed over sockets"
    refused = "pidfd_open is refused, so pidfd_getfd cannot work"
    if call not in (None, "ok"):
        # Kernels before 5.3 have no pidfd_open, which nobody has set.
        yield passed(over_sockets, note=refused) if call == "ENOSYS" else warned(f"{refused}; {over_sockets}", remedy)
    elif not (absent or confinement.capable("SYS_PTRACE")) and known(value, "Yama's ptrace_scope was not read") > 1:
        yield warned(f"only root may use pidfd_getfd; {over_sockets}", remedy)
    elif call is None:
        yield unknown("whether pidfd_open is refused was not read")
    elif absent or confinement.capable("SYS_PTRACE") or value == 0:
        yield passed("pidfd_getfd works between processes of the same user")
    elif site(machine) is Site.HOST:
        note = "pidfd_getfd(2) needs PR_SET_PTRACER or CAP_SYS_PTRACE under this ptrace_scope"
        yield passed(over_sockets, note=note)
    else:
        refused = f"pidfd_getfd is refused between ranks (ptrace_scope {value}); {over_sockets}"
        cause = "Yama then allows it from a parent to its children only"
        yield noted(refused, remedy=_ALLOW_PTRACE, cause=cause)


@check("ipc.shm", Guard.IPC, Guard.PERF, sections=("confinement", "system"))
def _shm(machine: Machine, scope: Scope) -> Verdicts:
    confinement = machine.confinement or Confinement()
    free, remove_ipc = confinement.shm_free_bytes, (machine.system or System()).remove_ipc
    total = known(
        confinement.shm_total_bytes, "the size of /dev/shm was not read", confinement.unread.get("shm_total_bytes")
    )
    text = f"{format_size(max(total, 0))}, {'?' if free is None else format_size(max(free, 0))} free"
    yield fact("statvfs(/dev/shm)", text)
    remedy = todo(
        "Make it larger: docker run --shm-size=1g; in Kubernetes an emptyDir with medium Memory at /dev/shm; on a host "
        "mount -o remount,size=50% /dev/shm."
    )
    reference = scope.expectation.reference
    expected = (reference and reference.confinement and reference.confinement.shm_total_bytes) or 0
    if total <= SHM_FAIL:
        too_small = f"/dev/shm is too small for ranks that share memory ({text})"
        cause = "ranks end with a bus error when it is full; containers have 64 MiB by default"
        yield (failed if expected >= SHM_WARN else warned)(too_small, remedy, cause=cause, blocks=(Guard.IPC,))
    elif total < SHM_WARN or (free is not None and free < SHM_FAIL):
        cause = "ranks end with a bus error when it is full"
        yield warned(f"/dev/shm is small ({text}): NCCL and PyTorch workers need more", remedy, cause=cause)
    else:
        known(free, "how much of /dev/shm is free was not read")
        note = "RemoveIPC=yes: a user's shared memory is removed when the last session ends, even while jobs run"
        yield passed("/dev/shm is large enough", note=note if remove_ipc else "")


@check("ipc.limits", Guard.IPC, Guard.RDMA, sections=("confinement", "system"))
def _limits(machine: Machine, _scope: Scope) -> Verdicts:
    confinement = machine.confinement or Confinement()
    limits = known(confinement.limits, "the limits were not read")
    memlock, nofile, stack = (limits.get(name) for name in ("memlock", "nofile", "stack"))
    yield fact("RLIMIT_MEMLOCK", _bytes(memlock))
    yield fact("RLIMIT_NOFILE", nofile)
    yield fact("RLIMIT_STACK", _bytes(stack))
    yield fact("/proc/sys/vm/max_map_count", (machine.system or System()).max_map_count)
    few_files = ""
    if nofile not in (None, UNLIMITED) and nofile < NOFILE:
        few_files = f"open files are limited to {nofile}, too few for large jobs"
        if nofile <= FEW_FILES and site(machine) is Site.JOB:
            cause = "each rank has connections to those of all other nodes (https://github.com/NVIDIA/nccl/issues/550)"
            yield noted(f"{few_files} on several nodes", remedy=_RAISE_NOFILE, cause=cause)
    if stack == UNLIMITED:
        cause = "glibc then gives each thread 2 MiB, and NCCL's threads overflow it (NCCL user guide, troubleshooting)"
        remedy = todo("Set a limit of 8 MiB.", run="ulimit -s 8192")
        yield warned("the stack is unlimited, which makes thread stacks small", remedy, cause=cause)
    # CAP_IPC_LOCK overrides the limit (mlock(2)).
    if memlock not in (None, UNLIMITED) and not confinement.capable("IPC_LOCK"):
        yield passed(
            f"locked memory is limited to {_bytes(memlock)}, and RDMA locks all memory that it registers",
            note="; ".join(filter(None, (few_files, "--for rdma makes that a fault"))),
            remedy=_RAISE_MEMLOCK,
            blocks=(Guard.RDMA,),
        )
    elif None in (memlock, nofile, stack):
        yield unknown("some of these limits were not read")
    elif stack != UNLIMITED:
        summary = "the limits of this shell are not judged" if few_files else "the limits are high enough"
        yield passed(summary, note=few_files)


def _bytes(value: int | None) -> str | None:
    if value is None:
        return None
    return "unlimited" if value == UNLIMITED else format_size(max(value, 0))
