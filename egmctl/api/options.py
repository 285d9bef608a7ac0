"""The options that commands and library share. Each is a field, declared once with its spelling and its help.

What ``--gpus`` and ``--numa`` select of a machine is at the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from egmctl.dataclass import dataclass
from egmctl.errors import UsageError
from egmctl.units import format_kernel_list, printable

if TYPE_CHECKING:
    from egmctl.model.gpu import Gpu
    from egmctl.model.machine import Machine
    from egmctl.model.task import Axis

_Group = TypeVar("_Group")
_Item = TypeVar("_Item")
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


# --- the values of --gpus and --numa: 0-3,5, 0-7/2, all, local, UUID prefixes, PCI bus ids ----------------------------

# They are compiled when they are used: every command imports this file, and its help as well.
_NUMBERS = r"(?P<first>[0-9]{1,18})(?:-(?P<last>[0-9]{1,18})(?:/(?P<step>[0-9]{1,18}))?)?"
_BUS_ID = r"(?:(?P<domain>[0-9a-f]{1,8}):)?(?P<bus>[0-9a-f]{1,2}):(?P<device>[0-9a-f]{1,2})(?:\.(?P<function>[0-7]))?"


def select_gpus(text: str, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs that ``text`` names, in its order and without duplicates.

    Parameters
    ----------
    text
        A comma-separated list of ``all``, indices (``0``, ``0-3``, ``0-7/2``), UUIDs or unique prefixes of a UUID
        (``GPU-4c1f``), and PCI bus ids with or without the domain (``0000:1b:00.0``).
    gpus
        The GPUs of the machine.

    Raises
    ------
    UsageError
        A part of ``text`` is malformed or names no GPU, or nothing is selected. The message lists what exists.
    """
    by_index = {gpu.index: gpu for gpu in gpus}
    exist = f"the GPUs here are {format_kernel_list(set(by_index))}" if by_index else "there is no GPU here"

    def find(part: str) -> Iterable[Gpu]:
        if part.lower().startswith("gpu-"):
            named = [gpu for gpu in gpus if gpu.uuid is not None and gpu.uuid.lower().startswith(part.lower())]
        elif ":" in part:
            named = [gpu for gpu in gpus if _is_at(gpu.bus_id, part)]
        else:
            return _numbered(part, by_index, "--gpus", "GPU", exist)
        if len(named) != 1:
            fits = (
                f"fits {', '.join(f'GPU{gpu.index}' for gpu in named)}" if named else "is no GPU's UUID or PCI bus id"
            )
            raise UsageError(f"--gpus {_quote(part)} {fits}; {exist} (egmctl topo -v shows their UUIDs and bus ids)")
        return named

    return _select(text, "--gpus", find, tuple(gpus), exist)


def select_numa(text: str, machine: Machine, gpus: Sequence[Gpu] | None = None) -> tuple[int, ...]:
    """Return the ids of the NUMA nodes that ``text`` names, in its order and without duplicates.

    Parameters
    ----------
    text
        A comma-separated list of ``all``, ``local`` (the host nodes of ``gpus``) and ids (``1``, ``0-1``). Only nodes
        with CPUs can be selected: a GPU's own memory is not host memory.
    machine
        The machine that has the nodes.
    gpus
        The GPUs of ``local``; by default all GPUs of the machine.

    Raises
    ------
    UsageError
        A part of ``text`` is malformed or names no such node, or nothing is selected. The message lists what exists.
    """
    ids = {node: node for node in machine.cpu_nodes}
    listed = format_kernel_list(set(ids))
    exist = f"the CPU NUMA nodes here are {listed}" if ids else "no CPU NUMA node was found here"

    def find(part: str) -> Iterable[int]:
        if part == "local":
            return _local(machine.gpus or () if gpus is None else gpus, ids, exist)
        return _numbered(part, ids, "--numa", "CPU NUMA node", exist)

    return _select(text, "--numa", find, tuple(ids), exist)


def _select(
    text: str, option: str, find: Callable[[str], Iterable[_Item]], everything: tuple[_Item, ...], exist: str
) -> tuple[_Item, ...]:
    if not text.strip():
        raise UsageError(f"{option} is empty; {exist}")
    chosen: list[_Item] = []
    for part in (part.strip() for part in text.split(",")):
        if not part:
            raise UsageError(f"{option} {_quote(text)} has an empty part; {exist}")
        if part == "all" and not everything:
            raise UsageError(f"{option} all selects nothing: {exist}")
        chosen += (item for item in (everything if part == "all" else find(part)) if item not in chosen)
    return tuple(chosen)


def _numbered(part: str, items: Mapping[int, _Item], option: str, noun: str, exist: str) -> Iterator[_Item]:
    match = re.fullmatch(_NUMBERS, part)
    if match is None:
        raise UsageError(f"{option} {_quote(part)} is not a {noun}; {exist}")
    first, step = int(match["first"]), int(match["step"] or 1)
    last = int(match["last"] or first)
    if last < first or step == 0:
        raise UsageError(f"{option} {_quote(part)} {'has a step of 0' if step == 0 else 'runs backwards'}; {exist}")
    for number in range(first, last + 1, step):
        if number not in items:
            raise UsageError(f"{option} {_quote(part)}: there is no {noun} {number}; {exist}")
        yield items[number]


def _is_at(bus_id: str, part: str) -> bool:
    """Return whether ``part`` is this bus id, perhaps without leading zeros, domain and function."""
    match = re.fullmatch(_BUS_ID, part.lower())
    if match is None:
        return False
    place = f"{int(match['bus'], 16):02x}:{int(match['device'], 16):02x}.{match['function'] or 0}"
    domain, _, at = bus_id.partition(":")
    return at == place and (match["domain"] is None or domain == f"{int(match['domain'], 16):04x}")


def _local(gpus: Sequence[Gpu], ids: Mapping[int, int], exist: str) -> tuple[int, ...]:
    local = [node for gpu in gpus if (node := gpu.host_numa_id) in ids and node is not None]
    if not local:
        raise UsageError(f"--numa local: no GPU here says which NUMA node it belongs to; {exist}")
    return tuple(dict.fromkeys(local))


def _quote(part: str) -> str:
    shown = printable(part)
    return f"'{shown}'" if len(shown) <= 40 else f"'{shown[:37]}...'"
