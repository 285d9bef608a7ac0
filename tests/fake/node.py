"""A fake node: the libraries, files and environment that make a real ``egmctl`` process see the node of a machine file.

::

    node = FakeNode("gb200-tray", tmp_path)
    egmctl("bench", "--numa", "1", env=node.environment(faults="cuMemCreate@2=error:2"))
    assert not node.leaks()

Nothing that runs on a fake node is a measurement: its GPUs are named ``FAKE ...``. What is modelled and what is not
stands at the top of ``driver/fake.h``, the fault plan's grammar in ``driver/faults.c``.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from egmctl.facts import replay
from egmctl.files import machines_dir
from egmctl.model.machine import Machine
from tests.fake.answers import answers
from tests.fake.build import CUDA, MLX5, NVML, build, without_symbols
from tests.fake.calls import Call, read_log
from tests.fake.rules import broken
from tests.fake.sysroot import write_sysroot

_LIBRARY_OF = {"nvml": NVML, "mlx5": MLX5}
"""By the first four letters of a function; all others are CUDA's."""


class FakeNode:
    """One node of fake GPUs.

    Parameters
    ----------
    machine
        The machine it shows: itself, the path of its file, or the name of one that ships with the tool.
    directory
        Where its files go: an empty folder.
    libraries
        Which of the driver's libraries the node has: :data:`CUDA`, :data:`NVML`.

    Raises
    ------
    NoCompiler
        If the libraries cannot be built here.
    """

    def __init__(
        self, machine: Machine | Path | str, directory: Path, *, libraries: Sequence[str] = (CUDA, NVML)
    ) -> None:
        self.machine = machine if isinstance(machine, Machine) else load(machine)
        self.directory = directory
        self.log = directory / "calls.log"
        self._answers = directory / "answers"
        self._state = directory / "state"
        self._libraries = tuple(libraries)
        self._built = build()
        self._state.mkdir()
        self._common = _common(self.machine, directory)
        self._own_sysroot: Path | None = None
        self._is_given = False
        self._answers.write_text(self._common.answers)

    @property
    def sysroot(self) -> Path:
        """The machine's files in a folder that this node alone has, so that a test may change them.

        A test asks for it before the environment: until it does, nodes of the same machine have one folder together.
        """
        if self._own_sysroot is None:
            assert not self._is_given, "processes were told another folder: ask for this one before the environment"
            self._own_sysroot = self.directory / "sysroot"
            self._own_sysroot.mkdir()
            write_sysroot(self.machine, self._own_sysroot)
        return self._own_sysroot

    def environment(self, faults: str = "") -> dict[str, str | None]:
        """Return the variables that put a process on this node; ``None`` stands for one to be removed.

        Parameters
        ----------
        faults
            The fault plan. Faults that happen ``once`` happen once for each call of this function.
        """
        self._is_given = True
        for claimed in self._state.iterdir():
            claimed.unlink()
        steering = {"CUDA_VISIBLE_DEVICES": None, "CUDA_DEVICE_ORDER": None}
        recorded = {} if self.machine.process is None else dict(self.machine.process.environment or {})
        inherited = os.environ.get("LD_LIBRARY_PATH")
        return (
            steering
            | recorded
            | {
                "LD_LIBRARY_PATH": os.pathsep.join(filter(None, (str(self._library_folder(faults)), inherited))),
                "EGMCTL_SYSROOT": str(self._own_sysroot or self._common.sysroot),
                "EGMCTL_FAKE_ANSWERS": str(self._answers),
                "EGMCTL_FAKE_LOG": str(self.log),
                "EGMCTL_FAKE_STATE": str(self._state),
                "EGMCTL_FAKE_FAULTS": faults,
            }
        )

    def become(self, machine: Machine) -> None:
        """Have libraries that are loaded from now on answer for another machine; files stay those of the first."""
        path = self._answers.with_suffix(".new")
        path.write_text(answers(machine))
        path.replace(self._answers)

    def calls(self, name: str | None = None) -> tuple[Call, ...]:
        """Return the driver calls that processes on this node made, of all functions or of one."""
        found = read_log(self.log)
        return found if name is None else tuple(call for call in found if call.name == name)

    def leaks(self) -> list[str]:
        """Return a line for each resource that was not given back, and each other rule that the calls broke."""
        return broken(self.calls())

    def forget_calls(self) -> None:
        """Empty the call log."""
        self.log.unlink(missing_ok=True)

    def _library_folder(self, faults: str) -> Path:
        """Return a folder with this node's libraries, less the exported functions that the plan says are missing."""
        hidden = sorted(set(re.findall(r"(nvml\w+|mlx5dv_\w+|cuGetProcAddress)\s*=\s*missing", faults)))
        folder = self.directory / "-".join(("libraries", *hidden))
        if not folder.exists():
            folder.mkdir()
            for name in self._libraries:
                own = [function for function in hidden if _LIBRARY_OF.get(function[:4], CUDA) == name]
                if own:
                    without_symbols(self._built / name, own, folder / name)
                else:
                    (folder / name).symlink_to(self._built / name)
        return folder


class _Common(NamedTuple):
    """What nodes of one machine have in common."""

    machine: Machine
    """Kept, so that no other machine gets its identity."""
    sysroot: Path
    answers: str


_made: dict[int, _Common] = {}
"""Of the machines that nodes were made of last, by identity."""
_MADE_LIMIT = 16


def _common(machine: Machine, directory: Path) -> _Common:
    """Return what nodes of this machine have in common; the first of them makes it, in its own directory.

    A machine's files are a hundred and more, and most nodes are of few machines.
    """
    known = _made.get(id(machine))
    if known is None or not known.sysroot.exists():
        known = _made[id(machine)] = _Common(machine, directory / "common-sysroot", answers(machine))
        known.sysroot.mkdir()
        write_sysroot(machine, known.sysroot)
        if len(_made) > _MADE_LIMIT:
            del _made[next(iter(_made))]
    return known


def load(machine: Path | str) -> Machine:
    """Return the machine of a file, or of a name that ships with the tool."""
    return _decoded(machine) if isinstance(machine, Path) else _shipped(machine)


@functools.cache
def _shipped(name: str) -> Machine:
    return _decoded(machines_dir() / f"{name}.json")


def _decoded(path: Path) -> Machine:
    return replay.decode(json.loads(path.read_text()), str(path))
