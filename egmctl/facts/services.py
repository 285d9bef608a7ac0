"""The node's services for GPUs: what the fabric manager and IMEX say of themselves, and what gives containers its GPUs.

No program is asked: only versions and known phrases of logs, packages and configuration are kept.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence

from egmctl.driver.reading import Reasons, Unreadable, read_or
from egmctl.facts.root import Root
from egmctl.model.host import CdiSpecification, ContainerEngine, Containers, FabricManager
from egmctl.model.record import Reason

IMEX_LOG = "/var/log/nvidia-imex.log"
FABRIC_LOG = "/var/log/fabricmanager.log"
SYSTEM_LOGS = ("/var/log/syslog", "/var/log/messages")
"""Where the system's logger keeps what services write to it, by distribution."""
PACKAGES = "/var/lib/dpkg/status"

_LOG_BYTES = 1 << 16
_IMEX_LOG_BYTES = 1 << 17
_SYSTEM_LOG_BYTES = 1 << 20
_PACKAGES_BYTES = 1 << 24

_VERSION = r"[0-9]{3,4}(?:\.[0-9]{1,4}){1,2}"
_REFUSED = re.compile(
    rf"driver interface version ({_VERSION}) do(?:es)?n't match with driver version ({_VERSION})(?![0-9.]*[0-9])",
    re.ASCII,
)
"""The fabric manager's line on a driver of another version (https://github.com/NVIDIA/gpu-operator/issues/544)."""
_PACKAGE = re.compile(
    rf"^Package: nvidia-fabricmanager(?:-[0-9]{{3}})?\nStatus: \S+ \S+ installed\n(?:(?!\n).*\n)*?"
    rf"Version: (?:[0-9]+:)?({_VERSION})",
    re.ASCII | re.MULTILINE,
)
_IMEX_STARTS = re.compile(rf"IMEX version ({_VERSION}) is running", re.ASCII)
"""IMEX's line at its start (https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu/pull/1465)."""
_UNIMPORT = re.compile(r"failed to receive response for unimport event id|Response not received for unimport event")
"""IMEX's lines on a node that does not answer when memory is released."""


def fabric_manager(root: Root, runs_in: Callable[[], tuple[str, ...]]) -> FabricManager:
    """Read the version of the fabric manager's package, and the versions in the last line that refused a driver.

    Parameters
    ----------
    runs_in
        A function that returns where the fabric manager runs.
    """
    reasons = Reasons()
    versions = reasons.fields("refused_by refused_driver", lambda: _refusal(root))
    return reasons.record(FabricManager, version=lambda: _package(root), runs_in=runs_in, **versions)


def _package(root: Root) -> str:
    packages = root.read_bytes(PACKAGES, _PACKAGES_BYTES)
    # The database has megabytes, and few packages of this name.
    first = max(0, packages.find(b"\nPackage: nvidia-fabricmanager"))
    versions = _PACKAGE.findall(packages[first:].decode(errors="replace"))
    if not versions:
        raise Unreadable(Reason.NOT_PRESENT, f"{PACKAGES}: no package nvidia-fabricmanager")
    return str(versions[-1])


def _refusal(root: Root) -> tuple[str, str]:
    """Return the versions in the last line of a fabric manager that refused a driver: its own, and the driver's.

    Raises
    ------
    Unreadable
        No log has such a line; if one that is there cannot be read, that is the reason.
    """
    problem = Unreadable(Reason.NOT_PRESENT, f"{FABRIC_LOG}: no line on another driver version")
    for path in _latest_first(root):
        limit = _LOG_BYTES if path == FABRIC_LOG else _SYSTEM_LOG_BYTES
        try:
            text = root.read_bytes(path, limit, from_end=True).decode(errors="replace")
        except Unreadable as error:
            if error.unread.reason is not Reason.NOT_PRESENT:
                problem = error
            continue
        for own, driver in _REFUSED.findall(text)[-1:]:
            return own, driver
    raise problem


def _latest_first(root: Root) -> list[str]:
    """Return the logs, the one that was written to last first: the lines of a service may go to another log today."""
    paths = (FABRIC_LOG, *SYSTEM_LOGS)
    return sorted(paths, key=lambda path: read_or(0.0, lambda: root.status(path).st_mtime), reverse=True)


def imex_session_in_use(root: Root) -> bool:
    """Return whether IMEX's log has a rejected second daemon after the last one that became ready."""
    log = root.read_bytes(IMEX_LOG, _LOG_BYTES, from_end=True)
    return log.rfind(b"NV_ERR_IN_USE") > log.rfind(b"READY")


def imex_version(root: Root) -> str:
    """Return the version of the IMEX daemon that started last.

    Raises
    ------
    Unreadable
        The log cannot be read, or the part of it that is read has no start.
    """
    log, is_whole = _imex_log(root)
    starts = _IMEX_STARTS.findall(log)
    if not starts:
        where = "no line of a start" if is_whole else f"no line of a start in its last {_IMEX_LOG_BYTES >> 10} KiB"
        raise Unreadable(Reason.NOT_PRESENT if is_whole else Reason.FAILED, f"{IMEX_LOG}: {where}")
    return str(starts[-1])


def imex_unanswered(root: Root) -> bool:
    """Return whether another node did not answer IMEX, since its last start, when memory was released.

    Raises
    ------
    Unreadable
        The log cannot be read, or what came after the last start is longer than the part that is read.
    """
    log, is_whole = _imex_log(root)
    starts = list(_IMEX_STARTS.finditer(log))
    if _UNIMPORT.search(log, starts[-1].end() if starts else 0):
        return True
    if starts or is_whole:
        return False
    raise Unreadable(Reason.FAILED, f"{IMEX_LOG}: the last start is before its last {_IMEX_LOG_BYTES >> 10} KiB")


def _imex_log(root: Root) -> tuple[str, bool]:
    """Return the end of IMEX's log, and whether that is the whole log."""
    log = root.read_bytes(IMEX_LOG, _IMEX_LOG_BYTES + 1, from_end=True)
    return log.decode(errors="replace"), len(log) <= _IMEX_LOG_BYTES


# --- containers: the NVIDIA Container Toolkit, CDI specifications, and container engines ------------------------------

CDI_FOLDERS = ("/etc/cdi", "/var/run/cdi")
"""The folders in which engines look for specifications (Container Device Interface, SPEC.md)."""
KNOWN_NAMES = frozenset(
    ("nvidia.yaml", "nvidia.json", "management.nvidia.com-gpu.yaml", "k8s.device-plugin.nvidia.com-gpu.json")
)
"""The names that are recorded: nvidia-ctk's and nvidia-cdi-refresh's, the GPU Operator's and the device plugin's. Any
other one may name a pod or a job."""
REFRESH = tuple(
    f"{folder}/nvidia-cdi-refresh.service"
    for folder in ("/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
)
"""The unit that writes ``/var/run/cdi/nvidia.yaml`` after an update of the driver."""
TOOLKIT = ("/usr/bin/nvidia-ctk", "/usr/local/nvidia/toolkit/nvidia-ctk")
"""Where packages, and NVIDIA's GPU operator, install the toolkit."""
ENGINES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "docker": ("dockerd", ("/etc/docker/daemon.json",)),
    "containerd": (
        "containerd",
        (
            "/etc/containerd/config.toml",
            "/etc/containerd/conf.d",
            # K3s and RKE2 start a containerd of their own.
            "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
            "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
        ),
    ),
    # nvidia-ctk writes to conf.d; CRI-O itself reads crio.conf.d.
    "crio": ("crio", ("/etc/crio/crio.conf", "/etc/crio/crio.conf.d", "/etc/crio/conf.d")),
}
"""By engine, the name of its process and its configuration: files, and folders of files."""
_WITH_FILE = ("containerd",)
"""The engines that others start with a configuration elsewhere, so that a missing file is not their default."""

_SPECIFICATION = re.compile(r"[A-Za-z0-9_.-]{0,100}nvidia[A-Za-z0-9_.-]{0,100}\.(yaml|json)", re.ASCII)
_LIBRARY = re.compile(r"libcuda\.so\.([0-9]{3,4}(?:\.[0-9]{1,4}){1,2})(?![0-9.]*[0-9])", re.ASCII)
_RUNTIME = "nvidia-container-runtime"
_BYTES = 1 << 22
_MOST_FILES = 64


def containers(root: Root, running: Callable[[], Mapping[str, Sequence[str]]]) -> Containers:
    """Read the toolkit, the CDI specifications and the engines.

    Parameters
    ----------
    running
        A function that returns the ids of the running processes by name.
    """
    return Reasons().record(
        Containers,
        toolkit=any(root.exists(path) for path in TOOLKIT),
        cdi_refresh=any(root.exists(path) for path in REFRESH),
        specifications=lambda: _specifications(root),
        engines=lambda: tuple(
            _engine(root, name, paths) for name, (process, paths) in ENGINES.items() if process in running()
        ),
    )


def _paths(root: Root) -> list[str]:
    names = [(folder, name) for folder in CDI_FOLDERS for name in root.names_if_any(folder)]
    return [f"{folder}/{name}" for folder, name in names if _SPECIFICATION.fullmatch(name)][:_MOST_FILES]


def _specifications(root: Root) -> tuple[CdiSpecification, ...]:
    """Return the specifications that name a libcuda, and those that cannot be read."""
    specifications = (_specification(root, path) for path in _paths(root))
    return tuple(specification for specification in specifications if specification.driver_versions != ())


def _specification(root: Root, path: str) -> CdiSpecification:
    folder, _, name = path.rpartition("/")
    versions = functools.partial(_versions, root, path, shown := path if name in KNOWN_NAMES else folder)
    return Reasons().record(CdiSpecification, path=shown, driver_versions=versions)


def _versions(root: Root, path: str, shown: str) -> tuple[str, ...]:
    try:
        text = root.read_bytes(path, _BYTES).decode(errors="replace")
    except Unreadable as error:
        detail = (error.unread.detail or "").replace(path, shown)
        raise Unreadable(error.unread.reason, detail) from None
    return tuple(sorted(set(_LIBRARY.findall(text))))


def _engine(root: Root, name: str, paths: Sequence[str]) -> ContainerEngine:
    is_named = functools.partial(_names_runtime, root, paths, has_file=name in _WITH_FILE)
    return Reasons().record(ContainerEngine, name=name, nvidia_runtime=is_named)


def _names_runtime(root: Root, paths: Sequence[str], *, has_file: bool) -> bool:
    """Return whether a file of the configuration names NVIDIA's runtime.

    Parameters
    ----------
    has_file
        Whether the engine has a file; if not, a configuration without files is that of its defaults.

    Raises
    ------
    Unreadable
        No file names it, and one cannot be read, or none is there though the engine has one.
    """
    problem: Unreadable | None = None
    read = 0
    for path in paths:
        try:
            for file in [f"{path}/{name}" for name in root.names_if_any(path)[:_MOST_FILES]] or [path]:
                if _RUNTIME in root.read_bytes(file, _BYTES).decode(errors="replace"):
                    return True
                read += 1
        except Unreadable as error:
            if error.unread.reason is not Reason.NOT_PRESENT:
                problem = problem or error
    if problem is not None:
        raise problem
    if has_file and not read:
        raise Unreadable(Reason.NOT_PRESENT, f"{paths[0]}: no configuration there, nor of K3s or RKE2")
    return False
