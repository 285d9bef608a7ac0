"""What gives containers this host's GPUs: the NVIDIA Container Toolkit, CDI specifications, and container engines."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence

from egmctl.driver.reading import Reasons, Unreadable
from egmctl.facts.root import Root
from egmctl.model.host import CdiSpecification, ContainerEngine, Containers
from egmctl.model.record import Reason

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
