"""NVIDIA's services on this node: which daemons run, and what the IMEX service says of itself."""

from __future__ import annotations

import re
from collections import Counter
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

_MOST_PROCESSES = 1 << 16
_MOST_OUTPUT = 1 << 20

_DAEMON_STATES = (
    "INITIALIZING|STARTING_AUTH_SERVER|WAITING_FOR_PEERS|WAITING_FOR_RECOVERY|INIT_GPU|READY|SHUTTING_DOWN|UNAVAILABLE"
)
"""Words of ``nvidia-imex-ctl -q`` (DCGM, DcgmImexManager)."""


def daemons(root: Root) -> tuple[str, ...]:
    """Return the daemons of :data:`DAEMONS` that run, in that order.

    Raises
    ------
    Unreadable
        If there is no ``/proc``.
    """
    processes = [name for name in root.names("/proc") if re.fullmatch(r"[0-9]{1,8}", name)][:_MOST_PROCESSES]
    running = set()
    for process in processes:
        with suppress(Unreadable):
            running.add(root.read(f"/proc/{process}/comm"))
    return tuple(dict.fromkeys(full for comm, full in DAEMONS.items() if comm in running))


def imex(root: Root) -> Imex:
    """Read the service's list of nodes, and ask its control program where one is installed."""
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
        unread=why.unread,
    )


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
