"""What Xids mean: whose fault each is, how grave, and what to do.

Names are those of ``nverror.h`` (open-gpu-kernel-modules 595.45.04). Blame and action follow NVIDIA's Xid catalogue
(https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, October 2025) and, for the letters H, D and A of
older numbers, its Xid table of before. An Xid that only an application can cause is no fault of the hardware.
"""

from __future__ import annotations

from dataclasses import dataclass

from egmctl.compat import StrEnum
from egmctl.model.finding import Remedy, Status
from egmctl.model.kernel_log import KernelEvent


class Blame(StrEnum):
    """Whose fault an error is."""

    APPLICATION = "application"
    DRIVER = "driver or firmware"
    HARDWARE = "hardware"
    LINK = "NVLink: this GPU, the other end, or the cable"
    SWITCH = "NVSwitch, or the GPU at that link"
    PCIE = "PCIe: the card, its riser or cable"
    NOBODY = "information, no fault"
    UNKNOWN = "not in the catalogue"


class Action(StrEnum):
    """What to do about an Xid."""

    NONE = "none"
    APPLICATION = "application"
    RESTART = "restart"
    """The application did nothing wrong."""
    RESET = "reset"
    RESET_IF_IT_RETURNS = "reset-if-it-returns"
    REBOOT = "reboot"
    LINKS = "links"
    REPORTED = "reported"
    """The Xid itself says what (154)."""


@dataclass(frozen=True, slots=True)
class Xid:
    """One number's meaning."""

    name: str
    blame: Blame
    status: Status
    """``pass`` for what needs no attention of an operator."""
    action: Action


_A, _D, _H, _L, _N = Blame.APPLICATION, Blame.DRIVER, Blame.HARDWARE, Blame.LINK, Blame.NOBODY
_PASS, _WARN, _FAIL = Status.PASS, Status.WARN, Status.FAIL

XIDS: dict[int, Xid] = {
    13: Xid("graphics engine exception", _A, _PASS, Action.APPLICATION),
    31: Xid("GPU memory page fault", _A, _PASS, Action.APPLICATION),
    32: Xid("invalid or corrupted push buffer", _D, _WARN, Action.APPLICATION),
    43: Xid("channel reset after an application's fault", _A, _PASS, Action.NONE),
    44: Xid("fault during a context switch", _D, _WARN, Action.RESET_IF_IT_RETURNS),
    45: Xid("channel removed, after another fault or a kill", _A, _PASS, Action.NONE),
    46: Xid("GPU stopped processing", _D, _FAIL, Action.RESET),
    48: Xid("uncorrectable ECC error", _H, _FAIL, Action.RESET),
    62: Xid("internal micro-controller halt", _H, _FAIL, Action.RESET),
    63: Xid("row remapping recorded, pending until a reset", _H, _WARN, Action.RESET),
    64: Xid("row remapping failed", _H, _FAIL, Action.RESET),
    69: Xid("graphics engine class error", _D, _WARN, Action.RESET_IF_IT_RETURNS),
    74: Xid("NVLink error", _L, _FAIL, Action.LINKS),
    78: Xid("vGPU start error", _D, _WARN, Action.NONE),
    79: Xid("GPU fell off the bus", _H, _FAIL, Action.REBOOT),
    92: Xid("high rate of corrected ECC errors", _H, _WARN, Action.RESET_IF_IT_RETURNS),
    93: Xid("InfoROM erase limit", _N, _PASS, Action.NONE),
    94: Xid("contained ECC error: only the application ended", _H, _WARN, Action.RESTART),
    95: Xid("uncontained ECC error", _H, _FAIL, Action.RESET),
    108: Xid("NVLink remote translation error", _A, _PASS, Action.APPLICATION),
    109: Xid("context switch timeout", _D, _WARN, Action.RESET_IF_IT_RETURNS),
    110: Xid("security fault", _H, _FAIL, Action.RESET),
    119: Xid("GSP firmware does not answer", _D, _FAIL, Action.RESET),
    120: Xid("GSP firmware error", _D, _FAIL, Action.RESET),
    121: Xid("corrected C2C link error", _H, _PASS, Action.NONE),
    136: Xid("NVLink training failed", _L, _FAIL, Action.LINKS),
    137: Xid("NVLink access without permission", _A, _PASS, Action.APPLICATION),
    140: Xid("unrecovered ECC error", _H, _FAIL, Action.RESET),
    141: Xid("fast path error", _N, _PASS, Action.NONE),
    143: Xid("GPU initialization error", _H, _FAIL, Action.RESET),
    144: Xid("NVLink SAW error", _L, _WARN, Action.LINKS),
    145: Xid("NVLink RLW error", _L, _WARN, Action.LINKS),
    146: Xid("NVLink TLW error", _L, _WARN, Action.LINKS),
    147: Xid("NVLink TREX error", _L, _WARN, Action.LINKS),
    148: Xid("NVLink NVLPW error", _L, _WARN, Action.LINKS),
    149: Xid("NVLink NETIR error", _L, _WARN, Action.LINKS),
    150: Xid("NVLink MSE error", _L, _WARN, Action.LINKS),
    151: Xid("key rotation error", _D, _WARN, Action.NONE),
    154: Xid("GPU recovery action changed", _N, _WARN, Action.REPORTED),
    155: Xid("NVLink software-defined error", _L, _WARN, Action.RESET),
    156: Xid("resource retired", _H, _WARN, Action.RESET),
    157: Xid("resource retirement failed", _H, _WARN, Action.RESET_IF_IT_RETURNS),
    158: Xid("GPU fatal timeout", _H, _FAIL, Action.RESET),
    159: Xid("CHI error on the coherent interface", _H, _WARN, Action.RESET_IF_IT_RETURNS),
    160: Xid("memory channel retired", _H, _WARN, Action.RESET_IF_IT_RETURNS),
    161: Xid("memory channel retirement failed", _H, _WARN, Action.RESET_IF_IT_RETURNS),
    167: Xid("PCIe fatal timeout", Blame.PCIE, _FAIL, Action.RESET),
    168: Xid("less GPU memory after errors", _H, _WARN, Action.RESET_IF_IT_RETURNS),
    169: Xid("SEC2 halt", _H, _WARN, Action.RESET),
    171: Xid("uncorrectable DRAM error", _H, _FAIL, Action.RESET),
    172: Xid("uncorrectable SRAM error", _H, _FAIL, Action.RESET),
    173: Xid("C2C link failed", _H, _FAIL, Action.REBOOT),
    176: Xid("PCIe correctable errors", Blame.PCIE, _WARN, Action.RESET_IF_IT_RETURNS),
}
"""One line is all that a number needs: everything else that is said or concluded of it follows from it."""

RECOVERY_CHANGED = 154
"""What the driver logs when it asks for a recovery of a GPU, after the Xid that is why."""
C2C_XIDS = frozenset({121, 159, 173})
"""Those of the link between a GPU and its CPU, and of the coherent interface behind it."""

_UNKNOWN = Xid("not in egmctl's catalogue", Blame.UNKNOWN, _WARN, Action.NONE)


def meaning(event: KernelEvent) -> Xid:
    """Return what an Xid means; NVLink 5's own word (Fatal, Nonfatal) outranks the catalogue."""
    found = XIDS.get(event.number or -1, _UNKNOWN)
    if event.caused_by is not None and event.number == 45:
        return XIDS[45]
    if found.blame is Blame.LINK and event.fatal is not None:
        return Xid(found.name, found.blame, _FAIL if event.fatal else _WARN, found.action)
    if event.number == 154 and "to 0x0 " in event.text:
        return Xid(found.name, found.blame, _PASS, Action.NONE)
    return found


def remedy(meaning_: Xid) -> Remedy:
    """Return what to do about an Xid."""
    match meaning_.action:
        case Action.RESET:
            return Remedy(
                text="Drain the node, end every process on the GPU, and reset it; reboot where a reset is refused.",
                command="nvidia-smi --gpu-reset",
                needs_root=True,
            )
        case Action.RESET_IF_IT_RETURNS:
            return Remedy(
                text="Drain and reset the GPU if it happens again; report it to NVIDIA if a reset does not help."
            )
        case Action.REBOOT:
            return Remedy(
                text="Drain and power-cycle the node; inspect or replace the GPU or its board if it happens again.",
                needs_root=True,
                needs_reboot=True,
            )
        case Action.LINKS:
            return Remedy(
                text="Compare the link's state and error counters at both ends; reset the GPU, then inspect or replace "
                "the cable, the switch port or the GPU.",
                command="nvidia-smi nvlink --errorcounters",
            )
        case Action.APPLICATION:
            return Remedy(text="Restart the application, and look for its out-of-bounds access with compute-sanitizer.")
        case Action.RESTART:
            return Remedy(
                text="Restart the application, whose fault it is not; reset the GPU once it is idle, so that the row "
                "of its memory is remapped.",
                command="nvidia-smi -q -d ROW_REMAPPER",
            )
        case Action.REPORTED:
            return Remedy(text="Do what the line requires; nvidia-smi -q shows the pending recovery action.")
        case Action.NONE:
            return Remedy(text="Look the number up in NVIDIA's Xid catalogue.")
