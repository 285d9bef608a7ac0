"""Sharing memory between processes: namespaces, descriptors of other processes, /dev/shm, limits."""

# ruff: noqa: S108 (it is named, not used)

from __future__ import annotations

from collections.abc import Iterator

from egmctl.doctor.check import Check, Scope, failed, passed, unknown, warned
from egmctl.model.finding import Evidence, Finding, Guard, Remedy
from egmctl.model.machine import Confinement, Machine, System
from egmctl.model.process import INITIAL_NAMESPACES
from egmctl.units import GIB, MIB, format_size

SHM_FAIL, SHM_WARN = 64 * MIB, GIB
"""The first is the default of containers; the NCCL user guide asks for the second (--shm-size=1g)."""
NOFILE = 65536
"""Descriptors below which large jobs run out of them (NCCL user guide, troubleshooting)."""
UNLIMITED = -1
IPC_LOCK = 14
"""CAP_IPC_LOCK: who has it may lock memory beyond the limit (mlock(2))."""


def _pid_namespace(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    yield _namespace(
        machine,
        "pid",
        "legacy CUDA IPC works only with processes in the same PID namespace (201 INVALID_CONTEXT from others); file "
        "descriptors and fabric handles pass between namespaces",
    )


def _ipc_namespace(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    yield _namespace(
        machine, "ipc", "System V shared memory and usually /dev/shm are not shared with processes outside it"
    )


def _namespace(machine: Machine, name: str, note: str) -> Finding:
    confinement = machine.confinement or Confinement()
    number = (confinement.namespaces or {}).get(name)
    if number is None:
        return unknown(f"/proc/self/ns/{name} was not read")
    evidence = (Evidence(source=f"/proc/self/ns/{name}", value=str(number)),)
    if number == INITIAL_NAMESPACES[name]:
        return passed(f"in the {name.upper()} namespace of the host", evidence=evidence)
    return passed(f"in a {name.upper()} namespace of its own", evidence=evidence, note=note)


def _ptrace(machine: Machine, scope: Scope) -> Iterator[Finding]:
    confinement = machine.confinement or Confinement()
    value, why = confinement.ptrace_scope, confinement.unread.get("ptrace_scope")
    call = (confinement.system_calls or {}).get("pidfd_open")
    evidence = (
        Evidence(
            source="/proc/sys/kernel/yama/ptrace_scope",
            value=(why.reason.value if why else "not read") if value is None else str(value),
        ),
        Evidence(
            source="pidfd_open(2)", value=call or "not asked", errno=None if call in (None, "ok", "killed") else call
        ),
    )
    remedy = Remedy(
        text="Pass descriptors over a Unix socket (SCM_RIGHTS), let the exporter call prctl(PR_SET_PTRACER), or "
        "give the container CAP_SYS_PTRACE."
    )
    absent = value is None and why is not None and why.reason.value == "not-present"
    if call not in (None, "ok"):
        tell = warned if scope.asked_purpose(Guard.IPC) else None
        words = "pidfd_open is refused, so pidfd_getfd cannot work"
        yield (
            tell(words, remedy, evidence=evidence)
            if tell
            else passed("descriptors can still be passed over sockets", evidence=evidence, note=words)
        )
    elif value is None and not absent:
        yield unknown("Yama's ptrace_scope was not read", evidence=evidence)
    elif absent or value == 0 or confinement.capable("SYS_PTRACE"):
        yield passed("pidfd_getfd works between processes of the same user", evidence=evidence)
    elif value == 1 or not scope.asked_purpose(Guard.IPC):
        yield passed(
            "descriptors can still be passed over sockets",
            evidence=evidence,
            note="pidfd_getfd(2) between these processes needs PR_SET_PTRACER or CAP_SYS_PTRACE under this "
            "ptrace_scope",
        )
    else:
        yield warned("only root may use pidfd_getfd", remedy, evidence=evidence)


def _shm(machine: Machine, scope: Scope) -> Iterator[Finding]:
    confinement = machine.confinement or Confinement()
    total, free = confinement.shm_total_bytes, confinement.shm_free_bytes
    if total is None:
        why = confinement.unread.get("shm_total_bytes")
        yield unknown(f"the size of /dev/shm was not read ({why.reason.value})" if why else "/dev/shm was not read")
        return
    words = f"{format_size(max(total, 0))}, {'?' if free is None else format_size(max(free, 0))} free"
    keeps = (machine.system or System()).remove_ipc
    evidence = (
        Evidence(source="statvfs(/dev/shm)", value=words),
        Evidence(source="logind.conf: RemoveIPC", value="not set" if keeps is None else "yes" if keeps else "no"),
    )
    remedy = Remedy(
        text="Make it larger: docker run --shm-size=1g; in Kubernetes an emptyDir with medium Memory at /dev/shm; "
        "on a host mount -o remount,size=50% /dev/shm."
    )
    reference = scope.expectation.reference if scope.expectation else None
    expected = (reference and reference.confinement and reference.confinement.shm_total_bytes) or 0
    if total <= SHM_FAIL and (scope.asked_purpose(Guard.IPC) or expected >= SHM_WARN):
        yield failed(f"/dev/shm is too small for ranks that share memory ({words})", remedy, evidence=evidence)
    elif total < SHM_WARN or (free is not None and free < SHM_FAIL):
        yield warned(
            f"/dev/shm is small ({words}): NCCL and PyTorch workers need more",
            remedy,
            evidence=evidence,
            cause="ranks and data loaders share buffers there, and end with a bus error when it is full; containers "
            "have 64 MiB by default",
        )
    elif free is None:
        yield unknown("how much of /dev/shm is free was not read", evidence=evidence)
    else:
        note = "RemoveIPC=yes: a user's shared memory is removed when the last session ends, even while jobs run"
        yield passed("/dev/shm is large enough", evidence=evidence, note=note if keeps else "")


def _limits(machine: Machine, scope: Scope) -> Iterator[Finding]:
    confinement = machine.confinement or Confinement()
    limits = confinement.limits
    if limits is None:
        yield unknown("the limits were not read")
        return
    memlock, nofile, stack = (limits.get(name) for name in ("memlock", "nofile", "stack"))
    maps = (machine.system or System()).max_map_count
    evidence = (
        Evidence(source="RLIMIT_MEMLOCK", value=_bytes(memlock)),
        Evidence(source="RLIMIT_NOFILE", value="not read" if nofile is None else str(nofile)),
        Evidence(source="RLIMIT_STACK", value=_bytes(stack)),
        Evidence(source="/proc/sys/vm/max_map_count", value="not read" if maps is None else str(maps)),
    )
    notes: list[str] = []
    faulty = False
    privileged = confinement.capabilities is not None and bool(confinement.capabilities >> IPC_LOCK & 1)
    if memlock not in (None, UNLIMITED) and not privileged:
        words = f"locked memory is limited to {_bytes(memlock)}, and RDMA locks all memory that it registers"
        if scope.asked_purpose(Guard.RDMA):
            faulty = True
            yield failed(words, _raise("memlock"), evidence=evidence)
        else:
            notes.append(words)
    if nofile is not None and nofile != UNLIMITED and nofile < NOFILE:
        words = f"open files are limited to {nofile}, too few for large jobs"
        if scope.asked_purpose(Guard.IPC) or scope.asked_purpose(Guard.RDMA):
            faulty = True
            yield warned(words, _raise("nofile"), evidence=evidence)
        else:
            notes.append(words)
    if stack == UNLIMITED:
        faulty = True
        yield warned(
            "the stack is unlimited, which makes thread stacks small",
            Remedy(text="Set a limit of 8 MiB.", command="ulimit -s 8192"),
            evidence=evidence,
            cause="glibc then gives each thread 2 MiB, and NCCL's threads overflow it (NCCL user guide, "
            "troubleshooting)",
        )
    unread = [name for name, value in (("memlock", memlock), ("nofile", nofile), ("stack", stack)) if value is None]
    if unread and not faulty:
        yield unknown(f"the limits {', '.join(unread)} were not read", evidence=evidence)
    elif not faulty:
        summary = "the limits of this shell are not judged" if notes else "the limits are high enough"
        yield passed(summary, evidence=evidence, note="; ".join(notes))


def _bytes(value: int | None) -> str:
    return "not read" if value is None else "unlimited" if value == UNLIMITED else format_size(max(value, 0))


def _raise(name: str) -> Remedy:
    word = "unlimited" if name == "memlock" else str(2 * NOFILE)
    docker = "-1" if name == "memlock" else word
    return Remedy(
        text=f"Raise the limit: docker run --ulimit {name}={docker}; LimitMEMLOCK= or LimitNOFILE= of the systemd unit "
        f"that starts the jobs (slurmd, containerd); for shells, {name} in /etc/security/limits.conf.",
        command=f"ulimit -{'l' if name == 'memlock' else 'n'} {word}",
        needs_root=True,
    )


CHECKS = (
    Check("ipc.pid-namespace", _pid_namespace, guards=(Guard.IPC,), sections=("confinement",)),
    Check("ipc.ipc-namespace", _ipc_namespace, guards=(Guard.IPC,), sections=("confinement",)),
    Check("ipc.ptrace", _ptrace, guards=(Guard.IPC,), sections=("confinement",)),
    Check("ipc.shm", _shm, guards=(Guard.IPC, Guard.PERF), sections=("confinement", "system")),
    Check("ipc.limits", _limits, guards=(Guard.IPC, Guard.RDMA), sections=("confinement", "system")),
)
