"""NVIDIA's services on this node: which daemons run, and what the IMEX service says of itself."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress

from egmctl.facts.root import Reasons, Root, Unreadable
from egmctl.launch.program import output_of
from egmctl.model.machine import Reason
from egmctl.model.system import Imex

DAEMONS = {
    "nvidia-imex": "nvidia-imex",
    # The kernel keeps 15 characters of a process' name (TASK_COMM_LEN).
    "nv-fabricmanage": "nv-fabricmanager",
    "nvidia-persiste": "nvidia-persistenced",
    "nvidia-cuda-mps": "nvidia-cuda-mps-control",
    "nvlsm": "nvlsm",
}
"""Names as ``/proc/<pid>/comm`` has them, and in full."""

IMEX_NODES = "/etc/nvidia-imex/nodes_config.cfg"
IMEX_CONTROL = ("/usr/bin/nvidia-imex-ctl", "/opt/nvidia/imex/bin/nvidia-imex-ctl")
IMEX_TIMEOUT_S = 1.5
"""It answers at once, or hangs (kubernetes-sigs/dra-driver-nvidia-gpu issue 1417)."""

IMEX_LOG = "/var/log/nvidia-imex.log"
_LOG_BYTES = 1 << 16

COMPUTE_DOMAIN_PLUGIN = "/var/lib/kubelet/plugins/compute-domain.nvidia.com"
_COMPUTE_DOMAIN_CDI = "k8s.compute-domain.nvidia.com"
_COMPUTE_DOMAIN_COMM = "compute-domain-"
"""Programs and files of Kubernetes' DRA driver (https://github.com/kubernetes-sigs/dra-driver-nvidia-gpu, 0.5)."""
_KUBELETS = frozenset({"kubelet", "kubelite", "k3s-server", "k3s-agent"})
"""Names of processes that are Kubernetes' agent, or have it in them."""

_MOST_PROCESSES = 1 << 16
_MOST_OUTPUT = 1 << 20

_DAEMON_STATES = (
    "INITIALIZING|STARTING_AUTH_SERVER|WAITING_FOR_PEERS|WAITING_FOR_RECOVERY|INIT_GPU|READY|SHUTTING_DOWN|UNAVAILABLE"
)
"""Words of ``nvidia-imex-ctl -q`` (DCGM, DcgmImexManager)."""


Processes = Mapping[str, Sequence[str]]
"""Ids of processes by name, as ``/proc/<pid>/comm`` has it."""


def processes(root: Root) -> Processes:
    """Return the processes that run, by name.

    Raises
    ------
    Unreadable
        If there is no ``/proc``.
    """
    found: dict[str, list[str]] = {}
    for process in [name for name in root.names("/proc") if re.fullmatch(r"[0-9]{1,8}", name)][:_MOST_PROCESSES]:
        with suppress(Unreadable):
            found.setdefault(root.read(f"/proc/{process}/comm"), []).append(process)
    return found


def daemons(running: Processes) -> tuple[str, ...]:
    """Return the daemons of :data:`DAEMONS` that run, in that order."""
    return tuple(dict.fromkeys(full for comm, full in DAEMONS.items() if comm in running))


def imex(root: Root, running: Processes | None) -> Imex:
    """Read the service's list of nodes and who manages it, and ask its control program where one is installed."""
    why = Reasons()
    addresses = why.read("configured_nodes", lambda: _addresses(root))
    if addresses is None:
        why.unread["duplicate_nodes"] = why.unread["configured_nodes"]
    state = why.read("daemon_state", lambda: _word(root, ("-q",), rf"\b({_DAEMON_STATES})\b"))
    domain = None
    if state is None:
        # A program that hangs once will hang again.
        why.unread["domain_status"] = why.unread["daemon_state"]
    else:
        # With -N the same document comes again for every change: the last one counts.
        domain = why.read("domain_status", lambda: _word(root, ("-N", "-j"), r'"status"\s*:\s*"(UP|DOWN|DEGRADED)"'))
    return Imex(
        configured_nodes=None if addresses is None else addresses.total(),
        duplicate_nodes=None if addresses is None else addresses.total() - len(addresses),
        daemon_state=state,
        domain_status=domain,
        runs_in=why.read("runs_in", lambda: _places(root, _listed(running))),
        kubelet=why.read("kubelet", lambda: not _KUBELETS.isdisjoint(_listed(running))),
        compute_domains=why.read("compute_domains", lambda: _compute_domains(root, _listed(running))),
        compute_domain_mode=why.read("compute_domain_mode", lambda: _mode(root, _listed(running))),
        session_in_use=why.read("session_in_use", lambda: _session_in_use(root)),
        unread=why.unread,
    )


def _listed(running: Processes | None) -> Processes:
    if running is None:
        raise Unreadable(Reason.NOT_PRESENT, "/proc: no processes")
    return running


def _places(root: Root, running: Processes) -> tuple[str, ...]:
    found = set()
    for process in running.get("nvidia-imex", ()):
        cgroup = root.read(f"/proc/{process}/cgroup")
        found.add("pod" if "kubepods" in cgroup else "host" if "/nvidia-imex.service" in cgroup else "elsewhere")
    return tuple(sorted(found))


def _compute_domains(root: Root, running: Processes) -> bool:
    if _COMPUTE_DOMAIN_COMM in running:
        return True
    with suppress(Unreadable):
        root.status(COMPUTE_DOMAIN_PLUGIN)
        return True
    return any(name.startswith(_COMPUTE_DOMAIN_CDI) for name in root.names_if_any("/var/run/cdi"))


def _mode(root: Root, running: Processes) -> str:
    unread = Unreadable(Reason.NOT_PRESENT, "compute-domain-kubelet-plugin: no such process")
    for process in running.get(_COMPUTE_DOMAIN_COMM, ()):
        program = root.read(f"/proc/{process}/cmdline").partition("\0")[0].rpartition("/")[2]
        if program == "compute-domain-daemon":
            return "driverManaged"
        if program != "compute-domain-kubelet-plugin":
            continue
        try:
            environment = root.read(f"/proc/{process}/environ")
        except Unreadable as error:
            unread = error
            continue
        # The variable came with the second mode (dra-driver-nvidia-gpu 0.5): without it there is only the first.
        found = re.search(r"(?:^|\0)IMEX_MODE=(driverManaged|hostManaged)(?:\0|$)", environment)
        return found[1] if found else "driverManaged"
    raise unread


def _session_in_use(root: Root) -> bool:
    log = root.read_bytes(IMEX_LOG, _LOG_BYTES, from_end=True)
    return log.rfind(b"NV_ERR_IN_USE") > log.rfind(b"READY")


def _addresses(root: Root) -> Counter[str]:
    lines = (line.partition("#")[0].strip() for line in root.lines(IMEX_NODES))
    return Counter(line for line in lines if line)


def _word(root: Root, arguments: tuple[str, ...], pattern: str) -> str:
    """Return the last word that fits in what the control program prints."""
    path = next((path for path in IMEX_CONTROL if root.exists(path)), None)
    if path is None:
        raise Unreadable(Reason.NOT_PRESENT, f"{IMEX_CONTROL[0]}: ENOENT")
    shown = " ".join((path, *arguments))
    if not root.is_live:
        raise Unreadable(Reason.NOT_ASKED, f"{shown}: programs of a copied tree are not run")
    found = re.findall(pattern, _output(root.path(path), arguments, shown), re.ASCII)
    if not found:
        raise Unreadable(Reason.FAILED, f"{shown}: no such word in its output")
    return str(found[-1])


def _output(program: str, arguments: tuple[str, ...], shown: str) -> str:
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
    try:
        output = output_of([program, *arguments], timeout_s=IMEX_TIMEOUT_S, limit=_MOST_OUTPUT, environment=environment)
    except TimeoutError:
        raise Unreadable(Reason.TIMED_OUT, f"{shown}: no response within {IMEX_TIMEOUT_S:g} s") from None
    except OSError as error:
        raise Unreadable.from_os_error(error, shown) from None
    return output.decode(errors="replace")
