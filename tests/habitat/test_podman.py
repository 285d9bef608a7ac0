"""egmctl in real containers: Podman with crun, GPUs by the Container Device Interface, and what else confines them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Ended, ended
from tests.doctor.cgroups import GPU_MAJOR
from tests.doctor.confined import NOBODY
from tests.doctor.real_node import CONTROL, UVM_MAJOR, Node, gravest, without_driver
from tests.habitat.place import (
    CGROUP,
    CGROUPS,
    SMALL,
    container,
    device_node,
    install,
    program,
    readable_folder,
    with_version_1,
)

pytestmark = [
    pytest.mark.needs_root,
    pytest.mark.needs("podman", "crun", "mount", "cc"),
    pytest.mark.processes,
    pytest.mark.long,
    without_driver,
]

KIND = f"egmctl.test/gpu{os.getpid()}"
"""Of the CDI devices: the name of no vendor's."""
MISSING, CALLS = "dev.nodes-missing", "numa.mempolicy-syscalls"
SHM = "/dev/shm"  # noqa: S108 - looked for in messages

Run = Callable[..., tuple[Ended, dict[str, Any]]]


@pytest.fixture(scope="module")
def podman() -> Iterator[Run]:
    """Run ``egmctl --json`` in a container: its options in a text, then the command's words."""
    with readable_folder(CGROUP) as folder, cdi_devices(folder):
        node = Node(SMALL, folder / "node/root")
        # What is looked at is the container's own: its device nodes, and the sign that it is one.
        shutil.rmtree(node.root / "dev")
        (node.root / "dev").symlink_to("/dev")
        (node.root / "run").mkdir(exist_ok=True)
        (node.root / "run/.containerenv").symlink_to("/run/.containerenv")
        install(folder, folder / "bin/egmctl", node.environment())
        filtered = {"names": ["get_mempolicy", "mbind"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}
        (folder / "filter.json").write_text(json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [filtered]}))

        (folder / "late").mkdir()
        program(
            folder / "late/egmctl",
            f'while cat /dev/nvidia0 2>&1 | grep -q such; do :; done; exec {folder}/bin/egmctl "$@"',
        )
        start = container(folder)

        def run(options: str, *words: str) -> tuple[Ended, dict[str, Any]]:
            chosen = options.format(kind=KIND, folder=folder).split()
            command = [*start, *chosen, "--rootfs", f"{folder}/rootfs", "egmctl", *words, "--json"]
            done = ended(command, env={"CONTAINERS_CONF": f"{folder}/containers.conf"})
            assert done.out, done.err
            return done, json.loads(done.out)

        tried = ended(
            [*start, "--rootfs", f"{folder}/rootfs", "true"], env={"CONTAINERS_CONF": f"{folder}/containers.conf"}
        )
        if tried.code:
            pytest.skip(f"Podman runs no container here, not even 'true': {tried.err}")
        yield run


@contextlib.contextmanager
def cdi_devices(folder: Path) -> Iterator[None]:
    """Describe GPUs to Podman as nvidia-ctk does, by numbers of device nodes that need not be here."""
    majors = (SMALL.driver and SMALL.driver.majors) or {}
    gpus = [device_node(f"nvidia{minor}", GPU_MAJOR, minor) for minor in range(len(SMALL.gpus or ()))]
    shared = [device_node("nvidiactl", GPU_MAJOR, CONTROL)]
    shared.append(device_node("nvidia-uvm", majors.get("nvidia-uvm", UVM_MAJOR), 0))
    named = {"all": gpus} | {str(minor): [gpu] for minor, gpu in enumerate(gpus)}
    devices = [{"name": name, "containerEdits": {"deviceNodes": nodes}} for name, nodes in named.items()]
    edits = {"deviceNodes": shared}
    # One of the two places where Podman looks (containers.conf(5)).
    place = Path("/run/cdi") / f"{folder.name}.json"
    place.parent.mkdir(exist_ok=True)
    place.write_text(json.dumps({"cdiVersion": "0.5.0", "kind": KIND, "devices": devices, "containerEdits": edits}))
    try:
        yield
    finally:
        place.unlink()


ALL = "--device={kind}=all"


def test_with_one_gpu_the_others_are_a_note_and_a_fault_where_they_were_asked_for(podman: Run) -> None:
    done, document = podman("--device={kind}=1", "doctor")
    finding = gravest(document)[MISSING]
    assert (done.code, finding["status"], finding["place"]["label"]) == (0, "note", "GPU0,2-3")
    assert finding["cause"] == "set by Podman"
    assert podman("--device={kind}=1", "doctor", "--gpus", "all")[0].code == 1
    _, topology = podman("--device={kind}=1", "topo")
    blocked = {state["label"]: state["blocked_by"] for state in topology["result"]["gpu_states"]}
    assert blocked == {"GPU1": None} | dict.fromkeys(("GPU0", "GPU2", "GPU3"), "not-in-container")


@pytest.mark.parametrize("command", ["doctor", "bringup"])
def test_a_container_without_gpus_is_one_cause(podman: Run, command: str) -> None:
    done, document = podman("", command)
    if command == "bringup":
        causes = [cause["finding"] for cause in document["answer"]["causes"]]
    else:
        causes = [finding for finding in document["result"]["findings"] if finding["status"] == "fail"]
        causes = [finding for finding in causes if not finding["explained_by"]]
    (cause,) = [finding for finding in causes if finding["status"] == "fail"]
    assert (done.code, cause["check"], cause["cause"]) == (1, MISSING, "set by Podman")
    assert cause["summary"].startswith("this container was started without GPUs ")
    assert "nvidia.com/gpu=all" in cause["remedy"]["text"]


@pytest.mark.parametrize(
    ("options", "check", "status", "words"),
    [
        ("", "ipc.shm", "warn", f"{SHM} is too small for ranks that share memory (62.5 MiB, "),
        ("--shm-size=1g", "ipc.shm", "pass", f"{SHM} is large enough"),
        ("--ipc=host", "ipc.ipc-namespace", "pass", "in the IPC namespace of the host"),
        ("--cap-drop=all", "ipc.ipc-namespace", "pass", "in an IPC namespace of its own"),
        ("--privileged", "ns.container", "pass", "this process is in a privileged container"),
        ("--security-opt=seccomp=unconfined", CALLS, "pass", "memory policy system calls are allowed"),
        ("--security-opt=seccomp={folder}/filter.json", CALLS, "fail", "get_mempolicy and mbind are refused"),
        (
            "--uidmap=0:100000:65536 --gidmap=0:100000:65536",
            "ns.container",
            "pass",
            "this process is in a container, with a user namespace",
        ),
        (f"--user={NOBODY}", "dev.permissions", "pass", "device nodes are accessible to this user"),
        ("--read-only --read-only-tmpfs=false", "drv.libraries", "pass", "NVML works"),
    ],
)
def test_what_confines_a_container_is_told_apart(
    podman: Run, options: str, check: str, status: str, words: str
) -> None:
    done, document = podman(f"{ALL} {options}", "doctor")
    finding = gravest(document)[check]
    assert (done.code, finding["status"]) == (int(status == "fail"), status)
    assert finding["summary"].startswith(words)
    others = {name for name, each in gravest(document).items() if each["status"] == "fail"} - {check}
    assert others == set()


def test_bringup_runs_in_a_container_whose_root_is_read_only(podman: Run) -> None:
    done, document = podman("--device={kind}=0 --read-only --shm-size=1g", "bringup")
    causes = [cause["finding"]["check"] for cause in document["answer"]["causes"]]
    assert (done.code, document["answer"]["state"], causes) == (3, "incomplete", [MISSING])


@with_version_1
def test_rules_that_a_running_container_lost_are_one_cause_with_their_repair(podman: Run) -> None:
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(podman, f"{ALL} --env=PATH={{folder}}/late:/usr/bin:/bin", "doctor")
        while not answer.done():
            for rules in CGROUPS.glob(f"devices/{CGROUP}/libpod-*/devices.deny"):
                for minor in (0, 1, 2, 3, CONTROL):
                    rules.write_text(f"c {GPU_MAJOR}:{minor} rwm")
            time.sleep(0.1)
    done, document = answer.result()
    failures = [finding for finding in document["result"]["findings"] if finding["status"] == "fail"]
    (cause,) = [finding for finding in failures if not finding["explained_by"]]
    assert (done.code, cause["check"], cause["place"]["label"]) == (1, "dev.cgroup-restricted", "GPU0-3")
    assert cause["cause"].startswith("set by Podman (")
    assert "create-dev-char-symlinks" in cause["remedy"]["text"]
