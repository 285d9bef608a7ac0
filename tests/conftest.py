"""What every test may use, and which tests run where.

* ``egmctl(...)`` runs the real command in a process of its own; ``fake_node(...)`` makes a node for it to run on.
* Which tests are quick, which are long, and what they need beside Python: ``tests/tiers.py``.
* Tests marked ``gpu`` are skipped where there is no NVIDIA driver, tests marked ``needs_root`` for other users.
* With ``EGMCTL_NO_SKIP=1`` (CI) every other skip is a failure, except of ``tests/habitat`` and the mark ``optional``.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.command_server import SERVER, fits

pytest_plugins = ["tests.tiers", "tests.fake.plugin"]

# Images of containers set it. Without bytecode, each of a thousand processes would compile egmctl again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

ROOT = Path(__file__).resolve().parent.parent
LITTLE = str(ROOT / "tests" / "little.py")
"""egmctl whose bench moves few bytes, as a program."""
EXAMPLES = int(os.environ.get("EGMCTL_EXAMPLES", "25"))
"""Of each property test."""
OBJECTS_UNTIL_COLLECTED = 100_000
"""The number of new objects after which the garbage of a test process is collected; Python's default is 700."""


class Ended(NamedTuple):
    """How a run of the command ended."""

    code: int
    out: str
    err: str


RunEgmctl = Callable[..., Ended]


@pytest.fixture(scope="session")
def egmctl() -> RunEgmctl:
    """Run ``egmctl`` in a process of its own and return its exit code, standard output and error.

    Keywords: ``env`` is added to an environment free of what steers the command (a value ``None`` removes a
    variable), ``cwd`` is where it runs, ``timeout_s`` how long it may take, ``little`` whether its bench moves as few
    bytes as ``tests/little.py`` says.
    """

    def run(
        *arguments: str | Path,
        env: Mapping[str, str | None] | None = None,
        cwd: Path = ROOT,
        timeout_s: float = 240,
        little: bool = False,
    ) -> Ended:
        words = [*map(str, arguments)]
        if not fits(env or {}):
            program = [LITTLE] if little else ["-m", "egmctl"]
            return ended([sys.executable, *program, *words], env=env, cwd=cwd, timeout_s=timeout_s)
        environment = command_environment(env or {})
        done = SERVER.run(words, env=environment, cwd=cwd, timeout_s=timeout_s, little=little)
        return Ended(done.returncode, done.stdout, done.stderr)

    return run


def ended(
    command: Sequence[str],
    *,
    env: Mapping[str, str | None] | None = None,
    cwd: Path = ROOT,
    timeout_s: float = 60,
    **more: Any,
) -> Ended:
    """Run a command in the environment of :func:`command_environment`."""
    done = subprocess.run(
        command,
        env=command_environment(env or {}),
        cwd=cwd,
        timeout=timeout_s,
        capture_output=True,
        encoding="utf-8",
        check=False,
        **more,
    )
    return Ended(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="session", autouse=True)
def _signals_reach_children() -> None:
    """Have SIGHUP and SIGINT end what tests start also where they run under nohup or in a script's background.

    Children inherit that a signal is ignored, and egmctl leaves it so; one that is handled has its default in them.
    The tests themselves go on at a SIGHUP that was ignored.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def command_environment(changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return this environment without what steers the command, changed by ``changes`` (``None`` removes)."""
    steering = {"NO_COLOR", "FORCE_COLOR", "CUDA_VISIBLE_DEVICES", "COLUMNS"}
    kept: dict[str, str | None] = {
        name: value
        for name, value in os.environ.items()
        if name not in steering and (not name.startswith("EGMCTL_") or name == "EGMCTL_NO_SKIP")
    }
    # Runs of the bench in tests are nobody's history; tests of journals take the variable away.
    # A package may be in a folder of its own, that only this variable names.
    folders = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    merged = kept | {"PYTHONPATH": folders, "EGMCTL_NO_JOURNAL": "1"} | dict(changes)
    return {name: value for name, value in merged.items() if value is not None}


@pytest.fixture
def no_thread_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this process at its limit of threads."""

    def start(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)


def pytest_configure() -> None:
    """Make property tests independent of how busy the machine is, and the same in every run; `make fuzz` tries more."""
    try:
        from hypothesis import settings
    except ImportError:
        return
    settings.register_profile("egmctl", deadline=None, derandomize=True, max_examples=EXAMPLES)
    settings.load_profile("egmctl")


def pytest_unconfigure() -> None:
    """End the server of commands."""
    SERVER.close()


def pytest_collection() -> None:
    """Collect no garbage while tests are collected: nearly all that is made then stays."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Have the garbage collector leave alone what is there now, which is a million objects, and stays.

    Nearly all that tests make is freed without it. With Python's own threshold it took a fifteenth of their CPU time.
    """
    gc.freeze()
    gc.set_threshold(OBJECTS_UNTIL_COLLECTED)
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what cannot run here."""
    driver = Path("/proc/driver/nvidia").exists() or shutil.which("nvidia-smi") is not None
    for item in items:
        if item.get_closest_marker("gpu") and not driver:
            item.add_marker(pytest.mark.skip(reason="no NVIDIA driver here"))
        if item.get_closest_marker("needs_root") and os.geteuid() != 0:
            item.add_marker(pytest.mark.skip(reason="not root"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn the skip of a test into a failure where nothing may be missing."""
    report = yield
    # A real Slurm or Podman comes up only where the machine lets it.
    elsewhere = item.get_closest_marker("gpu") or item.get_closest_marker("optional")
    may_skip = elsewhere or "habitat" in item.path.parts
    if _must_run() and report.skipped and not hasattr(report, "wasxfail") and not may_skip:
        report.outcome = "failed"
        report.longrepr = f"skipped, and EGMCTL_NO_SKIP is set: {_reason(report.longrepr)}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn the skip of a whole module into a failure where nothing may be missing."""
    report = yield
    if _must_run() and report.skipped and "gpu" not in collector.path.parts:
        report.outcome = "failed"
        report.longrepr = f"skipped, and EGMCTL_NO_SKIP is set: {_reason(report.longrepr)}"
    return report


def _must_run() -> bool:
    return bool(os.environ.get("EGMCTL_NO_SKIP"))


def _reason(longrepr: object) -> str:
    return longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
