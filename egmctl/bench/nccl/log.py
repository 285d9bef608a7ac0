"""Read NCCL's own log (``NCCL_DEBUG=INFO``): version, transports, channels, variables and warnings. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

from egmctl.dataclass import dataclass
from egmctl.model.nccl import NcclWarning

_VERSION = re.compile(r"\bNCCL version (\d+\.\d+\.\d+(?:\+cuda[\d.]+)?)")
_CONNECTION = re.compile(
    r"NCCL INFO Channel \d+(?:/\d+)? : \d+\[\w+\] -> \d+\[\w+\] (?:\[(?:send|receive)\] )?via ([\w /().-]{1,60}?)"
    r"(?= comm 0x|\s*$)",
    re.MULTILINE,
)
"""A connection from one rank to another: ``Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM``; in older versions without
the number after the slash. Only the network names the direction, and some versions the communicator."""
_CHANNELS = re.compile(r"NCCL INFO (\d+) coll channels, \d+ collnet channels, (\d+) nvls channels")
_NVLS = re.compile(r"NCCL INFO NVLS comm 0x")
"""The line of a communicator that uses multicast. "NVLS multicast support is available" says only that it could."""
_VARIABLE = re.compile(r"NCCL INFO (NCCL_\w+) set by environment to (\S.*?)\.?\s*$", re.MULTILINE)
_WARNING = re.compile(r"(?:([\w./-]+\.(?:cc|h|cu):\d+) )?NCCL WARN (.*\S)")
_ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?:<\d+>)?|\[?[0-9a-fA-F:]*::[0-9a-fA-F:]+\]?(?:<\d+>)?")


@dataclass(frozen=True, slots=True)
class NcclLog:
    """What the log of one or several ranks says."""

    version: str | None
    """``2.28.9+cuda13.0``; ``None`` if it is not in the log."""
    transports: Mapping[str, int]
    """The number of connections by transport, the most frequent first. A network is named without its device."""
    channels: int | None
    variables: Mapping[str, str]
    """The variables that NCCL read, from the environment or from its configuration files."""
    warnings: tuple[NcclWarning, ...]
    """The warnings, each once."""


def read_log(texts: Iterable[str]) -> NcclLog:
    """Return what the logs of all ranks say together."""
    text = "\n".join(texts)
    versions, channels = _VERSION.findall(text), _CHANNELS.findall(text)
    transports = Counter(_transport(name) for name in _CONNECTION.findall(text))
    if multicast := len(_NVLS.findall(text)):
        transports["NVLS"] = multicast
    warnings = (NcclWarning(_ADDRESS.sub("...", words), source) for source, words in _WARNING.findall(text))
    return NcclLog(
        version=versions[0] if versions else None,
        transports=dict(transports.most_common()),
        channels=int(channels[0][0]) if channels else None,
        variables=dict(_VARIABLE.findall(text)),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _transport(name: str) -> str:
    """Return a transport's name without the device of a network: ``NET/IB/1/GDRDMA`` is ``NET/IB/GDRDMA``."""
    parts = name.strip().split("/")
    return "/".join(part for part in parts if not (parts[0] == "NET" and re.fullmatch(r"\d+(\(\d+\))?", part)))
