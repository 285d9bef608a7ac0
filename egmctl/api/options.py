"""The options that commands and library share. Each is a field, declared once with its spelling and its help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from egmctl.dataclass import dataclass
from egmctl.errors import UsageError
from egmctl.units import printable

if TYPE_CHECKING:
    from egmctl.model.task import Axis

_Group = TypeVar("_Group")
OUTPUT, PREVIEW = "Output", "Preview and replay"
"""Headings of ``--help``. ``HEADINGS`` of a group names the fields below each heading; those that people use first have
none."""


def option(help: str, metavar: str | None = None, *names: str, default: Any = None, **more: Any) -> Any:
    """Return a dataclass field that is a command-line option.

    Parameters
    ----------
    help, metavar
        The text and the name of the value in ``--help``.
    names
        The spellings; by default ``--`` and the name of the field.
    default
        The value without the option; ``()`` makes an option that can be given several times.
    more
        Further arguments of ``typer.Option``.
    """
    return field(default=default, metadata={"help": help, "metavar": metavar, "names": names, **more})


def documented(group: type[_Group]) -> type[_Group]:
    """Append the options of a class to its docstring, with the text of ``--help``."""
    options = (f"{each.name}\n    {each.metadata['help']}\n" for each in fields(group))  # type: ignore[arg-type]
    group.__doc__ = f"{group.__doc__}\n\nParameters\n----------\n{''.join(options)}"
    return group


@dataclass(frozen=True, kw_only=True)
class TopoOptions:
    """The part of a machine that ``egmctl topo`` shows."""

    gpus: str = option("GPUs: all, 0-3,5, 0-7/2, a UUID (or its start), a PCI bus id.", "LIST", default="all")
    numa: str = option("CPU NUMA nodes: all, local (to the chosen GPUs), 1, 0-1.", "LIST", default="all")
    strict: bool = option("Exit with 1 if doctor finds something wrong with the connections.", default=False)


@dataclass(frozen=True, kw_only=True)
class BenchOptions:
    """The measurements of a bench, and their settings."""

    HEADINGS: ClassVar[dict[str, str]] = {
        "Measuring": "numa size samples copies duration serial no_gate allow_busy memory nvls timeout"
    }
    gpus: str | None = option(
        "GPUs: all (the default), 0-3,5, 0-7/2, a UUID (or its start), a PCI bus id. A named GPU that cannot be "
        "measured is a failure.",
        "LIST",
    )
    numa: str = option("CPU NUMA nodes: all, local (to the chosen GPUs), 1, 0-1.", "LIST", default="all")
    suites: Sequence[str] = option("Suites of cases; --list names them.", "NAME[,..]", "--suite", default=())
    cases: Sequence[str] = option(
        "Only cases whose names match; can be given several times.", "GLOB", "--case", default=()
    )
    pair: str | None = option("Only these paths, from A to B: GPUs (0, GPU0) and NUMA nodes (NUMA0).", "A:B[,..]")
    quick: bool = option("A quick look at every link: --suite quick.", default=False)
    full: bool = option("Every case: --suite full.", default=False)
    size: str | None = option("Bytes of each buffer: 512M (the default), 64MiB (2^20), 64MB (10^6).", "SIZE")
    sweep: str | None = option(
        "Measure a series: by size of the buffers (4 KiB to --size, by default the largest that fits, up to 8 GiB), "
        "number of SMs, footprint of a latency, load beside it, or streams.",
        "size|sms|footprint|load|streams",
    )
    samples: int | None = option("Samples of each path: 3 or 5, by the suite.", "N")
    copies: int | None = option("Copies of the buffer in one sample; by default as many as take 20 ms.", "N")
    duration: float | None = option("Soak test: repeat all measurements for this long.", "SECONDS")
    serial: bool = option("Measure one pair at a time, even if pairs share no GPU or link.", default=False)
    no_gate: bool = option("Do not queue work behind a gate kernel: for profilers.", default=False)
    allow_busy: bool = option("Measure GPUs that other processes use, and mark the results.", default=False)
    memory: int = option("Share of the free memory that buffers may take, 1 to 95.", "PERCENT", default=50)
    nvls: bool = option("With --suite nccl: let NCCL use NVLink multicast (NVLS).", default=False)
    timeout: float = option("Give up a step after this long and continue.", "SECONDS", default=60.0)

    @property
    def suite_names(self) -> tuple[str, ...]:
        """The suites that ``--suite``, ``--quick`` or ``--full`` names; empty without one of them.

        Raises
        ------
        UsageError
            If there is no such suite, or the options exclude each other.
        """
        from egmctl.bench.suites import select_suites

        if sum((bool(self.suites), self.quick, self.full)) > 1:
            raise UsageError("--suite, --quick and --full exclude each other")
        if self.suites:
            return select_suites(",".join(self.suites))
        if self.quick:
            return ("quick",)
        return ("full",) if self.full else ()

    @property
    def axis(self) -> Axis | None:
        """The axis of the sweep; ``None`` without ``--sweep``.

        Raises
        ------
        UsageError
            If there is no such axis.
        """
        from egmctl.model.task import Axis

        if self.sweep is None:
            return None
        if self.sweep not in list(Axis):
            raise UsageError(f"--sweep {printable(self.sweep)!r}: there are {', '.join(Axis)}")
        return Axis(self.sweep)


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """The GPUs and NUMA nodes that must work, and the expected hardware."""

    gpus: str | None = option(
        "GPUs that must work: all, 0-3,5, a UUID (or its start), a PCI bus id. A named GPU that cannot be used "
        "is a failure.",
        "LIST",
    )
    numa: str | None = option("CPU NUMA nodes whose memory must work: all, local, 1, 0-1.", "LIST")
    expect: str | None = option(
        "What must be here: counts (gpus=8,nics=4,numa=2), egm, an NVLink domain (domain, domain=UUID/CLIQUE, "
        "domain-gpus=72), or a recorded or shipped machine.",
        "gpus=N|egm|domain|FILE",
    )


@dataclass(frozen=True, kw_only=True)
class BringupOptions(NodeOptions):
    """What a node has to have, and the purposes that have to work on it."""

    HEADINGS: ClassVar[dict[str, str]] = {OUTPUT: "serials"}
    purposes: str | None = option("What must work here: egm, p2p, ipc, fabric, rdma, perf.", "LIST", "--for")
    serials: bool = option(
        "Name the node and the serial numbers of its boards, in files too: for a hand-over or an RMA.", default=False
    )


@dataclass(frozen=True, kw_only=True)
class DoctorOptions(NodeOptions):
    """The checks of doctor."""

    HEADINGS: ClassVar[dict[str, str]] = {"Checking": "skip expect since strict"}
    purposes: str | None = option(
        "Answer for these purposes: egm, p2p, ipc, fabric, rdma, perf. What blocks one is a fault.", "LIST", "--for"
    )
    check: Sequence[str] = option("Only this check or glob (numa.*); can be given several times.", "ID", default=())
    skip: Sequence[str] = option("Skip this check or glob; can be given several times.", "ID", default=())
    since: str | None = option(
        "Kernel messages of this long only: 30m, 2h, 1d. Default: since boot.", "AGE", show_default=False
    )
    strict: bool = option("Treat warnings and notes as failures (exit code 1).", default=False)
