"""What the fabric manager and IMEX say of themselves: the versions and the errors in their logs, and their packages.

Neither program is asked: only known phrases and versions of a log are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from egmctl.driver.reading import Reasons, Unreadable, read_or
from egmctl.facts.root import Root
from egmctl.model.host import FabricManager
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
