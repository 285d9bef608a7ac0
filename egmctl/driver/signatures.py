"""What is known of failing CUDA and NVML calls: the entries of ``signatures.toml``.

The error number alone does not identify the cause: 1 is "invalid value" in general, but from ``cuIpcOpenMemHandle`` it
means that the importer cannot use the GPU that owns the memory. So an entry is for a call and a number.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path

from egmctl.dataclass import dataclass
from egmctl.driver.messages import known_cause
from egmctl.files import read_toml
from egmctl.model.explanation import KnownCause, Library


def cause_of(call: str | None, number: int | None) -> KnownCause | None:
    """Return the cause in the environment of a call's CUresult, or ``None``.

    Only entries whose first cause is the node's state count, because a bench reports such a failure as explained. A
    process without a free file descriptor cannot read the entries and gets ``None``.
    """
    with contextlib.suppress(OSError):
        for name in (call, None):
            entry = signatures().errors.get((Library.CUDA, name, number or 0))
            if entry is not None and entry.node:
                return entry.causes[0]
    return None


def cause_of_crash(call: str | None) -> KnownCause | None:
    """Return the known cause if a process dies in this call, or ``None``."""
    crashing = (entry for entry in signatures().errors.values() if entry.crash and entry.call == call)
    return next((entry.causes[0] for entry in crashing), None)


@dataclass(frozen=True, slots=True)
class Signature:
    """An entry: an error of a call, or of any call, and its causes, the most likely first."""

    library: Library
    call: str | None
    number: int
    causes: tuple[KnownCause, ...]
    sources: tuple[str, ...]
    node: bool
    """Whether the first cause is the node's state."""
    crash: bool
    """Whether the call also ends its process instead of returning the error."""
    asynchronous: bool
    """Whether it tells of earlier work of the GPU, so that it may follow from a fault of the GPU."""
    vague: bool
    """Whether the error means something else for each function, so that it is of no use without one."""


@dataclass(frozen=True, slots=True)
class ErrorName:
    """The names and the words of an error number."""

    name: str
    runtime_name: str
    words: str


@dataclass(frozen=True, slots=True)
class Signatures:
    """The contents of ``signatures.toml``."""

    errors: Mapping[tuple[Library, str | None, int], Signature]
    names: Mapping[tuple[Library, int], ErrorName]
    numbers: Mapping[str, tuple[Library, int]]
    """The library and the number of each name, of the driver and of the runtime."""
    older_words: Mapping[str, int]
    """The number of CUDA's error for words that an older release had for it."""
    runtime: Mapping[str, str]
    """The driver's function that fails in place of one of the runtime."""
    noise: frozenset[str]
    """The calls whose failure is no fault."""
    noise_log: tuple[str, ...]
    """Words of CUDA's error log with which a failure is no fault."""

    def driver_call(self, call: str) -> str:
        """Return the driver's function for a function as it was written: ``cudaMalloc`` is ``cuMemAlloc``."""
        plain = _VERSION.sub("", call)
        return self.runtime.get(plain, plain)

    def of_call(self, call: str) -> list[Signature]:
        """Return the entries of a function."""
        return [each for each in self.errors.values() if each.call == self.driver_call(call)]

    def find(self, library: Library, call: str | None, number: int) -> list[Signature]:
        """Return the entry of a call's error, else that of the error from any call, else none."""
        keys = ((library, name and self.driver_call(name), number) for name in (call, None))
        return [self.errors[key] for key in keys if key in self.errors][:1]


def nearest_function(call: str) -> str | None:
    """Return the function of cuda-bindings or pynvml that a misspelt name most resembles; ``None`` if it may be one.

    The bindings lack functions of the runtime that the driver has, and newer ones: what is unlike all is no mistake.
    """
    modules = map(importlib.import_module, ("cuda.bindings.driver", "cuda.bindings.runtime", "pynvml"))
    names, name = {name for module in modules for name in dir(module)}, signatures().driver_call(call)
    known = names & {name, name.replace("cuda", "cu", 1)}
    return None if known else next(iter(get_close_matches(name, names, n=1, cutoff=0.85)), None)


_VERSION = re.compile(r"(_v[0-9]+|_ptsz|_ptds)+$")
"""What headers append to the names of functions: versions, and the per-thread default stream."""


@cache
def signatures() -> Signatures:
    """Return the entries, which are read on the first call."""
    tables = read_toml(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    causes = {name: known_cause(table) for name, table in tables["causes"].items()}
    names = {
        (Library.CUDA, int(number)): ErrorName(name or runtime_name, runtime_name, words)
        for number, (name, runtime_name, words) in tables["cuda"].items()
    } | {(Library.NVML, int(number)): ErrorName(name, "", words) for number, (name, words) in tables["nvml"].items()}
    numbers = {name: key for key, each in names.items() for name in (each.name, each.runtime_name) if name}
    entries = (
        Signature(
            library=numbers[each["error"]][0],
            call=each.get("call"),
            number=numbers[each["error"]][1],
            causes=tuple(causes[name] for name in each["causes"]),
            sources=tuple(tables["sources"][name] for name in each["sources"]),
            node=each.get("node", False),
            crash=each.get("crash", False),
            asynchronous=each.get("asynchronous", False),
            vague=each.get("vague", False),
        )
        for each in tables["errors"]
    )
    return Signatures(
        errors={(entry.library, entry.call, entry.number): entry for entry in entries},
        names=names,
        numbers=numbers,
        older_words=tables["older-words"],
        runtime=tables["runtime"],
        noise=frozenset(tables["noise"]["calls"]),
        noise_log=tuple(tables["noise"]["log"]),
    )
