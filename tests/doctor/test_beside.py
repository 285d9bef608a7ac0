"""The child that stands beside another process: what it has given up, and that the other one cannot take hold of it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from egmctl import launch
from egmctl.errors import ChildFailed
from tests.conftest import ROOT
from tests.doctor import confined

pytestmark = [pytest.mark.needs_root, pytest.mark.needs("mount")]

USERS = pytest.mark.parametrize("uid", [0, confined.NOBODY])
NO_CAPABILITY = "0" * 16
CAP_SETPCAP = 8


def spawn(target: str, uid: int, arguments: dict[str, Any] | None = None, **place: Any) -> launch.Child:
    """Start a target of ``tests.doctor.hooks`` in the place of a user's process."""
    user = {"uid": uid, "gid": uid, "groups": [uid, 4711]}
    place = {"root": "/", "is_live": True, "cgroups": [], "user": user, "overrides": {}} | place
    return launch.Child(
        f"tests.doctor.hooks:{target}",
        arguments or {},
        before="egmctl.facts.inside:enter_process",
        before_arguments=place,
        environment={"PYTHONPATH": str(ROOT)},
        sealed=True,
    )


@USERS
def test_it_is_the_user_and_has_no_capability(uid: int) -> None:
    with spawn("say_who", uid) as child:
        said: Any = child.result(30)
    assert {said[key] for key in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {NO_CAPABILITY}
    assert (said["Uid"].split(), said["Gid"].split()) == ([str(uid)] * 4, [str(uid)] * 4)
    assert sorted(said["Groups"].split()) == sorted([str(uid), "4711"])
    assert (said["NoNewPrivs"], said["dumpable"]) == ("1", 0)


@USERS
def test_it_can_load_no_more_code(uid: int) -> None:
    with spawn("say_who", uid) as child:
        said: Any = child.result(30)
    assert (said["finders"], said["import"]) == ([], "ImportError")


@USERS
def test_its_user_can_neither_trace_it_nor_read_its_memory(uid: int) -> None:
    def trace(pid: int) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.ptrace(16, pid, 0, 0) != 0:  # PTRACE_ATTACH
            raise OSError(ctypes.get_errno(), "ptrace")

    def read(name: str) -> Callable[[int], None]:
        return lambda pid: os.close(os.open(f"/proc/{pid}/{name}", os.O_RDONLY))

    attempts = {"trace": trace, **{name: read(name) for name in ("mem", "environ", "maps", "root", "fd/0")}}
    with spawn("say_who", uid, {"wait": True}) as child:
        message, _ = child.receive(30)
        answers = {name: _as_user(uid, attempt, message["pid"]) for name, attempt in attempts.items()}
        child.channel.send({})
        child.result(30)
    assert answers == dict.fromkeys(attempts, "PermissionError")
    with subprocess.Popen(["sleep", "60"], preexec_fn=lambda: confined.become(uid)) as ordinary:
        assert _as_user(uid, read("environ"), ordinary.pid) == "ok", "of its own processes this user may"
        ordinary.kill()


@USERS
def test_an_error_is_a_name_and_no_traceback(uid: int) -> None:
    with spawn("raise_error", uid) as child, pytest.raises(ChildFailed) as caught:
        child.result(30)
    assert (caught.value.how, caught.value.kind, caught.value.output) == ("raised", "RuntimeError", "")


@pytest.mark.parametrize(
    ("place", "step"),
    [
        ({"cgroups": ["/proc/version"]}, "cgroup.procs"),
        ({"root": "/proc/4194305/root"}, "root"),
        ({"root": "/proc/version"}, "root"),
        ({"user": {"uid": 2**32 - 1, "gid": 0, "groups": []}}, "setresuid"),
    ],
)
def test_a_step_that_is_refused_is_named(place: dict[str, Any], step: str) -> None:
    with spawn("say_who", 0, **place) as child, pytest.raises(ChildFailed) as caught:
        child.result(30)
    assert (caught.value.kind, caught.value.details["step"]) == ("StepRefused", step)


@pytest.mark.long
def test_without_the_right_to_drop_capabilities_it_does_not_go_on() -> None:
    """A root whose own capabilities were cut, as in a container: nothing is looked at with half of them dropped."""
    program = "from tests.doctor.test_beside import spawn; spawn('say_who', 65534).result(30)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        preexec_fn=lambda: confined.lose_capability(CAP_SETPCAP),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "ChildFailed: PR_CAPBSET_DROP: 1" in done.stderr


def _as_user(uid: int, attempt: Callable[[int], None], pid: int) -> str:
    """Try something as a user without capabilities, in a fork; return the name of the error or ``ok``."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        try:
            confined.become(uid)
            attempt(pid)
            os.write(writing, b"ok")
        except OSError as error:
            os.write(writing, type(error).__name__.encode())
        finally:
            os._exit(0)
    os.close(writing)
    try:
        return os.read(reading, 100).decode()
    finally:
        os.close(reading)
        os.waitpid(child, 0)
