"""Which tests run when, and what a machine must have for them.

* unit: inside the process of the test, which starts no other (`make test-unit`). A test is one unless it uses a
  fixture that starts processes, or says so by the mark ``processes``; it fails if it starts a process all the same.
* long: the mark of what takes a second or more by itself: jobs of several processes, all that can fail or die in turn.
  `pytest -m 'not long'` leaves these out while one works; `make test` and CI run them.
* fuzz: the mark of more of what is random: thousands of made-up machines, documents and options. `make fuzz` runs it,
  `make test` the first of each.
* A test marked ``needs("sshd")`` is skipped where a program or Python package is missing, and says what installs it.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Generator, Iterable
from importlib.util import find_spec

import pytest

STARTING = frozenset({"egmctl", "fake_node"})
"""Fixtures whose tests start processes."""

LONG = pytest.mark.long
FUZZ = pytest.mark.fuzz

PROGRAMS = {
    "as": ("as", "binutils"),
    "aarch64-linux-gnu-as": ("aarch64-linux-gnu-as", "binutils-aarch64-linux-gnu"),
    "x86_64-linux-gnu-as": ("x86_64-linux-gnu-as", "binutils-x86-64-linux-gnu"),
    "cc": ("cc", "gcc libc6-dev"),
    "chromium": ("chromium", "chromium"),
    "groff": ("groff", "groff-base"),
    "ip": ("ip", "iproute2"),
    "mount": ("mount", "mount"),
    "mpirun": ("mpirun", "openmpi-bin"),
    "promtool": ("promtool", "prometheus"),
    "munged": ("/usr/sbin/munged", "munge"),
    "podman": ("podman", "podman"),
    "crun": ("crun", "crun"),
    "slurmctld": ("/usr/sbin/slurmctld", "slurmctld"),
    "slurmd": ("/usr/sbin/slurmd", "slurmd"),
    "srun": ("srun", "slurm-client"),
    "ssh": ("ssh", "openssh-client"),
    "sshd": ("/usr/sbin/sshd", "openssh-server"),
}
"""Programs that tests need: where each is looked for, and Debian's packages that have it."""

MODULES = {
    "ucxx": "make test-ucx",
    "kubernetes_validate": "pip install --group dev",
    "mkdocs": "pip install --group dev",
}
"""Python packages that tests need and an installation without extras lacks, and what installs each."""

_STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec")
_started: list[str] = []
_watching = False


def why_not(names: Iterable[str]) -> str | None:
    """Return what of :data:`PROGRAMS` and :data:`MODULES` is missing here and what to install, ``None`` if nothing."""
    missing = [name for name in names if not _is_here(name)]
    if not missing:
        return None
    packages = " ".join(PROGRAMS[name][1] for name in missing if name in PROGRAMS)
    installed_by = [f"Debian: {packages}"] if packages else []
    installed_by += [MODULES[name] for name in missing if name in MODULES]
    return f"there is no {' and no '.join(missing)} here ({', '.join(installed_by)})"


def _is_here(name: str) -> bool:
    return find_spec(name) is not None if name in MODULES else shutil.which(PROGRAMS[name][0]) is not None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test the mark of its tier, and skip it where something that it needs is missing."""
    for item in items:
        needed = [name for needs in item.iter_markers("needs") for name in needs.args]
        if (reason := why_not(needed)) is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
        fixtures = set(getattr(item, "fixturenames", ()))
        others = ("processes", "gpu", "long", "fuzz", "needs_root")
        if not fixtures & STARTING and not any(item.get_closest_marker(name) for name in others):
            item.add_marker(pytest.mark.unit)


def _note(event: str, _: object) -> None:
    if _watching and event in _STARTS:
        _started.append(event)


sys.addaudithook(_note)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a unit test that starts a process."""
    global _watching
    _started.clear()
    _watching = item.get_closest_marker("unit") is not None
    try:
        result = yield
    finally:
        _watching = False
    if _started:
        raise AssertionError(f"a unit test starts a process ({_started[0]}): mark it pytest.mark.processes")
    return result


def few(values: Iterable[object], every: int, mark: pytest.MarkDecorator = LONG) -> list[object]:
    """Return parameters: the first and each ``every``-th after it as they are, the others with the mark.

    For lists that go through every driver call or every step: each of them is one more case of one rule.
    """
    parameters: list[object] = []
    for number, value in enumerate(values):
        if number % every == 0:
            parameters.append(value)
        else:
            arguments = value if isinstance(value, tuple) else (value,)
            parameters.append(pytest.param(*arguments, marks=mark))
    return parameters


def seeds(count: int) -> list[object]:
    """Return so many seeds of random tests: the first for `make test`, all for `make fuzz`."""
    return few(range(count), every=count, mark=FUZZ)
