"""What changed on a node while a run measured it."""

from __future__ import annotations

from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.model.record import BusId, Plain


class ChangeKind(StrEnum):
    """The kinds of changes, the most severe first."""

    LOST = "lost"
    """NVML no longer lists the GPU, or calls it lost."""
    ACCESS = "access"
    """This process may no longer use the GPU: a cgroup denies it, or its device node is gone."""
    FABRIC = "fabric"
    """The state, the error or the health of the GPU's fabric is another one."""
    NVLINKS = "nvlinks"
    """Fewer of the GPU's NVLinks are active."""
    PCIE = "pcie"
    """The GPU's PCIe link has fewer lanes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A fact about a GPU that was different at the end of a run."""

    kind: ChangeKind
    bus_id: BusId
    label: Plain
    """``GPU1``."""
    before: Plain
    """The fact at the start, in half a sentence: ``usable``, ``18 NVLinks active``."""
    after: Plain
