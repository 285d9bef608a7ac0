"""Import modules in the background, so that a command that waits for its processes does its own work meanwhile."""

from __future__ import annotations

import contextlib
import importlib
import threading


def import_ahead(*modules: str) -> None:
    """Import modules in a thread. What fails there fails again where the module is used.

    Parameters
    ----------
    modules
        The names of the modules, imported in this order.
    """

    def run() -> None:
        with contextlib.suppress(Exception):
            for name in modules:
                importlib.import_module(name)

    # A limit of processes may forbid the thread.
    with contextlib.suppress(RuntimeError):
        threading.Thread(target=run, name="imports", daemon=True).start()
