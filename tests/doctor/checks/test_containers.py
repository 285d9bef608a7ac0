"""A host that can give containers its GPUs, and one whose CDI specification is of an earlier driver."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from egmctl.facts.root import Root
from egmctl.facts.services import CDI_FOLDERS, ENGINES, REFRESH, TOOLKIT, containers
from egmctl.model.finding import Finding, Status
from egmctl.model.host import CdiSpecification, ContainerEngine, Containers
from egmctl.model.machine import Machine
from tests.doctor.faults import Fault, changed, healthy
from tests.doctor.machines import patched, run_one
from tests.fake.sysroot import Tree

CHECK, LOADED = "ns.gpu-containers", "580.126.16"
SPECIFICATION = """
cdiVersion: 0.5.0
kind: nvidia.com/gpu
containerEdits:
  mounts:
  - hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.{}
    containerPath: /usr/lib/x86_64-linux-gnu/libcuda.so.{}
"""
NONE: tuple[CdiSpecification, ...] = ()


def specification(version: str, path: str = "/etc/cdi/nvidia.yaml") -> CdiSpecification:
    return CdiSpecification(path=path, driver_versions=(version,))


def given(**changes: Any) -> Containers:
    engines = (ContainerEngine(name="docker", nvidia_runtime=True),)
    return patched(Containers(toolkit=True, specifications=(specification(LOADED),), engines=engines), "", **changes)


FAULTS: dict[str, Fault] = {CHECK: changed("system", containers=given(specifications=(specification("575.57.08"),)))}


def well(machine: Machine) -> Machine:
    return patched(machine, "system", containers=given())


def judged(**changes: Any) -> Finding:
    return run_one(CHECK, patched(healthy(), "system", containers=given(**changes)))


def docker(*, nvidia: bool | None) -> tuple[ContainerEngine, ...]:
    return (ContainerEngine(name="docker", nvidia_runtime=nvidia),)


def test_the_driver_of_the_tests_is_the_loaded_one() -> None:
    driver = healthy().driver
    assert driver is not None
    assert driver.module_version == LOADED


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, Status.PASS),
        ({"specifications": NONE}, Status.PASS),
        ({"engines": docker(nvidia=False)}, Status.PASS),
        ({"engines": ()}, Status.PASS),
        ({"engines": (), "specifications": NONE}, Status.SKIP),
        ({"specifications": (CdiSpecification(path="/etc/cdi/nvidia.yaml"),)}, Status.UNKNOWN),
        ({"engines": (*docker(nvidia=True), *docker(nvidia=None)), "specifications": NONE}, Status.PASS),
        ({"engines": (*docker(nvidia=False), *docker(nvidia=None)), "specifications": NONE}, Status.UNKNOWN),
        ({"engines": docker(nvidia=False), "specifications": NONE}, Status.NOTE),
        ({"engines": docker(nvidia=None), "specifications": NONE}, Status.UNKNOWN),
        ({"engines": docker(nvidia=False), "specifications": NONE, "toolkit": False}, Status.SKIP),
        ({"specifications": (specification("575.57.08"),)}, Status.WARN),
        (
            {"specifications": (specification("575.57.08"), specification(LOADED, "/var/run/cdi/nvidia.yaml"))},
            Status.WARN,
        ),
        ({"specifications": (specification("595.71.05"),)}, Status.WARN),
        ({"specifications": None}, Status.UNKNOWN),
        ({"toolkit": None}, Status.UNKNOWN),
    ],
)
def test_each_way_to_give_gpus_is_enough_and_a_stale_one_is_named(changes: dict[str, Any], status: Status) -> None:
    assert judged(**changes).status is status


GENERATE = "nvidia-ctk cdi generate --output={}"


@pytest.mark.parametrize(
    ("path", "refresh", "run"),
    [
        ("/var/run/cdi/nvidia.yaml", False, GENERATE.format("/var/run/cdi/nvidia.yaml")),
        ("/var/run/cdi/nvidia.yaml", True, "systemctl restart nvidia-cdi-refresh"),
        ("/etc/cdi/nvidia.json", True, GENERATE.format("/etc/cdi/nvidia.json")),
        ("/var/run/cdi/management.nvidia.com-gpu.yaml", True, None),
        ("/var/run/cdi/k8s.device-plugin.nvidia.com-gpu.json", False, None),
        ("/var/run/cdi", False, None),
    ],
)
def test_a_stale_specification_is_written_anew_by_the_program_that_writes_it(
    path: str, refresh: bool, run: str | None
) -> None:
    finding = judged(specifications=(specification("575.57.08", path),), cdi_refresh=refresh)
    assert finding.summary == f"{path} is of driver 575.57.08, and {LOADED} is loaded"
    assert finding.remedy is not None
    assert finding.remedy.run == run


def test_a_driver_that_was_not_read_and_a_container_say_nothing_of_the_host() -> None:
    machine = patched(healthy(), "driver", module_version=None)
    assert run_one(CHECK, machine).status is Status.UNKNOWN
    inside = patched(FAULTS[CHECK].machine(), "process", container_signs=("/.dockerenv",))
    assert run_one(CHECK, inside).status is Status.SKIP
    assert run_one(CHECK, patched(healthy(), "system", containers=None)).status is Status.SKIP


def test_toolkit_specifications_and_engines_are_read_from_files(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.folder("/proc")
    assert containers(Root(str(tmp_path)), dict) == patched(
        Containers(), "", toolkit=False, cdi_refresh=False, specifications=(), engines=()
    )
    tree.write(TOOLKIT[0], "")
    tree.write(f"{CDI_FOLDERS[0]}/nvidia.yaml", SPECIFICATION.format("575.57.08", "575.57.08"))
    tree.write(f"{CDI_FOLDERS[1]}/k8s.gpu.nvidia.com-claim.json", "{}")
    tree.write(f"{CDI_FOLDERS[1]}/k8s.gpu.nvidia.com-job-of-alice.json", SPECIFICATION.format(LOADED, LOADED))
    tree.folder(f"{CDI_FOLDERS[1]}/nvidia.json")
    tree.write(REFRESH[1], "[Service]")
    tree.write(f"{CDI_FOLDERS[1]}/amd.yaml", SPECIFICATION.format("1", "1"))
    tree.write(ENGINES["docker"][1][0], '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}')
    tree.write(f"{ENGINES['containerd'][1][1]}/10.toml", "[plugins]")
    facts = containers(Root(str(tmp_path)), lambda: {"dockerd": ["1"], "containerd": ["2"], "sshd": ["3"]})
    assert facts.toolkit is True
    assert facts.cdi_refresh is True
    # A claim without libcuda is left out, and another name than a usual one is not kept.
    stale, of_a_job, unread = facts.specifications or ()
    assert (stale, of_a_job) == (specification("575.57.08"), specification(LOADED, "/var/run/cdi"))
    assert (unread.path, unread.driver_versions) == ("/var/run/cdi/nvidia.json", None)
    assert facts.engines == (
        ContainerEngine(name="docker", nvidia_runtime=True),
        ContainerEngine(name="containerd", nvidia_runtime=False),
    )


@pytest.mark.parametrize(
    ("process", "file", "text", "nvidia_runtime"),
    [
        ("crio", "/etc/crio/conf.d/99-nvidia.toml", "nvidia-container-runtime", True),
        ("crio", "/etc/crio/crio.conf", "[crio]", False),
        ("containerd", "/var/lib/rancher/k3s/agent/etc/containerd/config.toml", "nvidia-container-runtime", True),
        ("containerd", "/var/lib/rancher/rke2/agent/etc/containerd/config.toml", "[plugins]", False),
        ("containerd", "/opt/other/config.toml", "nvidia-container-runtime", None),
        ("dockerd", "/opt/other/daemon.json", "nvidia-container-runtime", False),
    ],
)
def test_the_configuration_of_an_engine_is_where_its_distribution_keeps_it(
    tmp_path: Path, process: str, file: str, text: str, nvidia_runtime: bool | None
) -> None:
    Tree(tmp_path).write(file, text)
    (engine,) = containers(Root(str(tmp_path)), lambda: {process: ["1"]}).engines or ()
    assert engine.nvidia_runtime is nvidia_runtime
