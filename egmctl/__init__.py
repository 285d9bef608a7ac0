"""Diagnostics and benchmarks for nodes with NVIDIA GPUs, above all for Extended GPU Memory (EGM).

``import egmctl`` provides the functions that the commands use (docs/library.md)::

    machine = egmctl.read_machine()                 # or a recorded one, by its name or file
    diagnosis = egmctl.Doctor().diagnose(machine)
    bench = egmctl.Bench(suites=["quick"])
    report = egmctl.judge_run(bench.run(bench.plan(machine), machine), machine)
    monday = egmctl.load_result("monday.json", egmctl.RunReport)

Each name is imported at its first use; ``egmctl --help`` imports none of them. This file imports nothing, not even from
the standard library, because a child process loads it before it can find other modules (:mod:`egmctl.launch.serve`).
"""

__version__ = "0.2.0"

TYPE_CHECKING = False
if TYPE_CHECKING:
    from egmctl.api.bench import Bench, Profiles, judge_run, load_profiles
    from egmctl.api.doctor import Doctor, explain
    from egmctl.api.machine import machine_names, read_machine, topology_of
    from egmctl.api.records import (
        Bringup,
        Comparison,
        Diagnosis,
        Explanations,
        FleetReport,
        Machine,
        Plan,
        RunReport,
        Saved,
        Topology,
    )
    from egmctl.api.results import load_result, redact_run, to_json
    from egmctl.errors import EgmctlError

__all__ = [
    "Bench",
    "Bringup",
    "Comparison",
    "Diagnosis",
    "Doctor",
    "EgmctlError",
    "Explanations",
    "FleetReport",
    "Machine",
    "Plan",
    "Profiles",
    "RunReport",
    "Saved",
    "Topology",
    "__version__",
    "explain",
    "judge_run",
    "load_profiles",
    "load_result",
    "machine_names",
    "read_machine",
    "redact_run",
    "to_json",
    "topology_of",
]

_MODULES = {
    "egmctl.api.bench": ("Bench", "Profiles", "judge_run", "load_profiles"),
    "egmctl.api.doctor": ("Doctor", "explain"),
    "egmctl.api.machine": ("machine_names", "read_machine", "topology_of"),
    "egmctl.api.records": (
        "Bringup",
        "Comparison",
        "Diagnosis",
        "Explanations",
        "FleetReport",
        "Machine",
        "Plan",
        "RunReport",
        "Saved",
        "Topology",
    ),
    "egmctl.api.results": ("load_result", "redact_run", "to_json"),
    "egmctl.errors": ("EgmctlError",),
}

if not TYPE_CHECKING:
    # A type checker would take it as a promise that every name exists.
    def __getattr__(name: str) -> object:
        """Import a public name at its first use (PEP 562)."""
        import importlib

        for module, names in _MODULES.items():
            if name in names:
                return getattr(importlib.import_module(module), name)
        raise AttributeError(f"module 'egmctl' has no attribute {name!r}; valid are {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
