"""Reads ``--expect``: what should be here. A GPU that has vanished is otherwise invisible."""

from __future__ import annotations

import os
import re

from egmctl.doctor.scope import Expectation
from egmctl.errors import UsageError
from egmctl.facts import replay
from egmctl.model.machine import NumaKind
from egmctl.units import printable

_COUNT = re.compile(r"\s*(gpus|nics|numa)\s*=\s*([0-9]{1,5})\s*", re.ASCII)
_VALID = "valid are gpus=8,nics=4,numa=2, one of them, or a machine"


def expectation(text: str) -> Expectation:
    """Return what ``gpus=8,nics=4,numa=2``, or a recorded or shipped machine, says that should be here.

    Raises
    ------
    UsageError
        If it is neither.
    """
    if "=" not in text or text.endswith(".json"):
        if not os.path.exists(text) and text.strip().lower() in ("gpu", "gpus", "nic", "nics", "numa"):
            raise UsageError(f"--expect {text} does not say how many; {_VALID}")
        return _of_machine(text)
    values: dict[str, int] = {}
    for part in text.split(","):
        match = _COUNT.fullmatch(part)
        if match is None:
            raise UsageError(f"--expect {printable(part[:40])!r} is no count; {_VALID}")
        values[match[1]] = int(match[2])
    return Expectation(gpus=values.get("gpus"), nics=values.get("nics"), numa_nodes=values.get("numa"))


def _of_machine(name: str) -> Expectation:
    try:
        machine = replay.load(name)
    except UsageError as error:
        no_count = "" if os.path.exists(name) else "no count such as gpus=8,nics=4,numa=2, and "
        raise UsageError(f"--expect: {no_count}{error}") from error
    nodes = machine.host.numa_nodes if machine.host else None
    return Expectation(
        gpus=None if machine.gpus is None else len(machine.gpus),
        nics=None if machine.nics is None else len(machine.nics),
        numa_nodes=None if nodes is None else sum(n.kind in (NumaKind.CPU, NumaKind.CPU_ONLY) for n in nodes),
        reference=machine,
    )
