"""A process and what confines it: cgroups, container, environment, namespaces, limits, filters of system calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from egmctl.model.record import Plain, Record, Share

INITIAL_NAMESPACES = {"ipc": 0xEFFFFFFF, "user": 0xEFFFFFFD, "pid": 0xEFFFFFFC, "cgroup": 0xEFFFFFFB}
"""Inode numbers of the namespaces that the kernel starts with (include/linux/proc_ns.h); ``mnt`` and ``net`` have no
fixed ones."""

CAPABILITIES = {
    "NET_ADMIN": 12,
    "IPC_LOCK": 14,
    "SYS_PTRACE": 19,
    "SYS_ADMIN": 21,
    "SYS_NICE": 23,
    "SYS_RESOURCE": 24,
    "MKNOD": 27,
    "BPF": 39,
}
"""Bits of :attr:`Confinement.capabilities` that matter here (include/uapi/linux/capability.h)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cgroup(Record):
    """One line of ``/proc/self/cgroup``."""

    version: int
    controllers: tuple[Plain, ...] = ()
    path: Annotated[str, Share.CGROUP_PATH]


@dataclass(frozen=True, slots=True, kw_only=True)
class Process(Record):
    """The process: its cgroups, signs of a container, and the environment that steers drivers."""

    pid: int = 0
    """0 is the tool itself; else the process that ``--pid`` names."""
    effective_uid: int | None = None
    cgroups: tuple[Cgroup, ...] | None = None
    container_signs: tuple[Plain, ...] | None = None
    """Words such as ``/.dockerenv``, ``/run/.containerenv``, ``KUBERNETES_SERVICE_HOST``, ``overlay root``; empty:
    none seen."""
    environment: Mapping[Plain, Annotated[str, Share.ENVIRONMENT]] | None = None
    """Only the variables on a known list that are set (``egmctl.facts.process.ENVIRONMENT_KEYS``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount(Record):
    """One mount of ``/proc/self/mountinfo`` that decides which device nodes there are and what they are good for."""

    path: Plain
    """``/``, ``/dev``, ``/dev/shm``, or something of NVIDIA's or InfiniBand's below ``/dev`` or ``/proc/driver``."""
    kind: Plain
    """The type of file system: ``devtmpfs``, ``tmpfs``, ``overlay``, ``proc``."""
    options: tuple[Plain, ...] = ()
    """Options of the mount, not of the file system: ``ro``, ``nosuid``, ``nodev``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProgram(Record):
    """A BPF program that decides which devices a cgroup of version 2 may use."""

    id: int
    name: Annotated[str, Share.CGROUP_PATH] | None = None
    """Names the manager where that gives one: ``Slurm_Cgroup_v2``, ``sd_devices``; often empty."""
    cgroup: Annotated[str, Share.CGROUP_PATH] | None = None
    """The cgroup it is attached to: the process' own or one above it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceList:
    """``devices.list`` of a cgroup of version 1, the process' own or one above it."""

    cgroup: Annotated[str, Share.CGROUP_PATH]
    rules: tuple[Plain, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceUnit:
    """The device settings in systemd's files of a unit that the process' cgroup lies in."""

    unit: Annotated[str, Share.CGROUP_PATH]
    file: Annotated[str, Share.CGROUP_PATH]
    settings: tuple[Plain, ...]
    """``DevicePolicy=closed``, ``DeviceAllow=/dev/nvidia0 rw``, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement(Record):
    """The limits of a process: namespaces, capabilities, filters, limits, mounts and the device cgroup."""

    namespaces: Mapping[Plain, int | None] | None = None
    """Inode numbers under the names of ``/proc/self/ns``; compare with :data:`INITIAL_NAMESPACES`."""
    pid_namespace_depth: int | None = None
    """How many numbers ``NSpid`` has: 1 also inside of a container that has its own ``/proc``."""
    uid_map: tuple[tuple[int, int, int], ...] | None = None
    """Ranges of ``/proc/self/uid_map``: first inside, first outside, length. ``(0, 0, 4294967295)`` is no namespace."""
    capabilities: int | None = None
    """``CapEff``: bits of :data:`CAPABILITIES` and others."""
    seccomp: Plain | None = None
    """``none``, ``strict`` or ``filter``."""
    no_new_privileges: bool | None = None
    limits: Mapping[Plain, int | None] | None = None
    """Soft limits ``as`` (address space), ``memlock``, ``stack`` (bytes), ``nofile`` and ``nproc``; -1 is unlimited."""
    pids_left: int | None = None
    """How many more processes and threads the process' cgroups allow (``pids.max``); -1: none limits them."""
    mounts: tuple[Mount, ...] | None = None
    shm_total_bytes: int | None = None
    """The size of ``/dev/shm``."""
    shm_free_bytes: int | None = None
    ptrace_scope: int | None = None
    """Yama's ``kernel.yama.ptrace_scope``; not present where the kernel has no Yama, which is as good as 0."""
    device_rules: tuple[Plain, ...] | None = None
    """``devices.list`` of the cgroup of version 1: ``c 195:0 rw``. Only a hint: a list of denials prints ``a *:* rwm``
    too, so access(2) of each node is what counts."""
    device_lists: tuple[DeviceList, ...] = ()
    """The same of each cgroup from the top down to the process' own; empty where there is none, or it is not read."""
    device_units: tuple[DeviceUnit, ...] = ()
    """Units in the cgroup's path whose files set a device policy; empty where none does, or no file can be read."""
    device_programs: tuple[DeviceProgram, ...] | None = None
    """BPF programs in force on the cgroup of version 2. Only root may ask."""
    system_calls: Mapping[Plain, Plain | None] | None = None
    """``get_mempolicy``, ``mbind``, ``set_mempolicy`` (without effect) and ``pidfd_open``: ``ok``, the name of the
    error number, or ``killed``."""

    def capable(self, name: str) -> bool | None:
        """Return whether the process has one of :data:`CAPABILITIES`; ``None`` where that was not read."""
        return None if self.capabilities is None else bool(self.capabilities >> CAPABILITIES[name] & 1)
