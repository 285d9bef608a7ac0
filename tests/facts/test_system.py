"""Reading of the operating system: each from a file as the kernel or a service would write it."""

from __future__ import annotations

import gzip
import struct
import time
from pathlib import Path

import pytest

from egmctl.facts import system as services
from egmctl.facts.collect import collect
from egmctl.facts.root import SYSROOT_VARIABLE, Root
from egmctl.facts.system import system
from egmctl.model.host import Bridge, Imex, PcieLink, System
from egmctl.model.record import Reason, Unread
from tests.doctor.faults import healthy
from tests.doctor.machines import patched
from tests.facts.sysroot import GPU, Tree, grace_hopper
from tests.fake.sysroot import write_sysroot
from tests.invariants import broken_nulls, differences
from tests.known import known
from tests.memory import most_bytes

ROOT_PORT = "0009:00:00.0"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    tree = grace_hopper(tmp_path)
    for path, content in (
        ("/proc/uptime", "4178.21 8000.00\n"),
        ("/proc/sys/vm/max_map_count", "65530\n"),
        ("/proc/config.gz", gzip.compress(b"CONFIG_NUMA=y\nCONFIG_ACPI_NUMA=y\n# CONFIG_IOMMU_SVA is not set\n")),
        ("/sys/firmware/acpi/tables/DSDT", b"DSDT....nvidia,gpu-mem-base-pa"),
        ("/sys/firmware/acpi/tables/SSDT2", b"SSDT....nvidia,egm-base-pa\0...."),
        ("/proc/1/comm", "systemd\n"),
        ("/proc/77/comm", "nvidia-imex\n"),
        ("/proc/78/comm", "nvidia-persiste\n"),
        ("/etc/nvidia-imex/nodes_config.cfg", "# rack 7\n10.0.0.1\n10.0.0.2\n\n10.0.0.1  # again\n"),
        ("/etc/systemd/logind.conf", "[Login]\n#RemoveIPC=yes\nRemoveIPC=yes\n"),
        ("/etc/systemd/logind.conf.d/hpc.conf", "[Login]\nRemoveIPC=no\n"),
        ("/sys/module/nvidia_peermem/version", "580.159.04\n"),
        ("/sys/module/mlx5_core/version", "24.10-1.1.4\n"),
        ("/sys/kernel/mm/memory_peers/nv_mem/version", "1\n"),
        ("/sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_2\n"),
        ("/sys/class/infiniband_verbs/abi_version", "6\n"),
        ("/dev/infiniband/uverbs0", ""),
    ):
        tree.write(path, content)
    tree.write("/sys/kernel/iommu_groups/3/type", "DMA-FQ\n")
    tree.link(f"/sys/bus/pci/devices/{GPU}/iommu_group", "/sys/kernel/iommu_groups/3")
    return tree


def read(tree: Tree) -> System:
    facts = system(tree.root)
    assert broken_nulls(facts) == []
    return facts


def why(facts: System, name: str) -> Unread:
    assert getattr(facts, name) is None
    return facts.unread[name]


def test_all_that_a_grace_node_says(tree: Tree) -> None:
    facts = read(tree)
    assert (facts.uptime_s, facts.max_map_count) == (4178.21, 65530)
    configuration, imex = known(facts.kernel_configuration), known(facts.imex)
    assert [configuration[key] for key in ("ACPI_NUMA", "IOMMU_SVA", "ARM_SMMU_V3_SVA")] == ["y", "n", "n"]
    assert (facts.acpi_egm, facts.egm_regions) == (True, ())
    assert facts.iommu_domains == {GPU: "DMA-FQ"}
    assert facts.daemons == ("nvidia-imex", "nvidia-persistenced")
    assert (imex.configured_nodes, imex.duplicate_nodes) == (3, 1)
    assert facts.module_versions == {"nvidia_peermem": "580.159.04", "mlx5_core": "24.10-1.1.4"}
    assert facts.peer_memory_clients == ("nv_mem",)
    assert [(verbs.nic, verbs.node.path, verbs.node.access) for verbs in facts.verbs or ()] == [
        ("mlx5_2", "/dev/infiniband/uverbs0", "ok"),
        (None, "/dev/infiniband/rdma_cm", "ENOENT"),
    ]


@pytest.mark.processes
def test_all_that_a_machine_states_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nic = known(known(healthy().nics)[0].pci)
    bridge = Bridge(
        bus_id=known(nic.path)[-1],
        link=PcieLink(speed_gt_s=32.0, width=16, max_speed_gt_s=64.0, max_width=16),
        acs_control=0b11101,
    )
    stated = {"iommu_domains": {nic.bus_id: "identity"}, "bridges": (bridge,)}
    machine = patched(healthy(), "system", **stated, imex=Imex(configured_nodes=18, duplicate_nodes=2))
    write_sysroot(machine, tmp_path)
    monkeypatch.setenv(SYSROOT_VARIABLE, str(tmp_path))
    facts = known(collect(("system",)).system)
    same = tuple(other for other in facts.bridges or () if other.bus_id == bridge.bus_id)
    # Beside the NICs' nodes there is that of rdma_cm.
    facts = patched(facts, "", bridges=same, verbs=known(facts.verbs)[:-1])
    assert differences(machine.system, facts, "system") == []


def test_a_drop_in_outranks_logind_conf(tree: Tree) -> None:
    assert read(tree).remove_ipc is False
    tree.remove("/etc/systemd/logind.conf.d/hpc.conf")
    assert read(tree).remove_ipc is True


def test_a_configuration_in_boot_and_one_that_is_no_configuration(tree: Tree) -> None:
    tree.remove("/proc/config.gz")
    tree.write("/boot/config-6.8.0-1010-nvidia-64k", "CONFIG_NUMA=y\n")
    assert (read(tree).kernel_configuration or {})["NUMA"] == "y"
    tree.write("/proc/config.gz", b"no gzip")
    assert why(read(tree), "kernel_configuration").reason is Reason.FAILED


def test_a_configuration_that_unpacks_to_any_amount_is_read_up_to_the_bound(tree: Tree) -> None:
    tree.write("/proc/config.gz", gzip.compress(b"CONFIG_NUMA=y\n" + b"#" * (32 << 20), 1))
    assert most_bytes(lambda: read(tree)) < 16 << 20
    assert (read(tree).kernel_configuration or {})["NUMA"] == "y"


def test_tables_without_egm_and_a_machine_that_cannot_have_it(tree: Tree) -> None:
    tree.remove("/sys/firmware/acpi/tables/SSDT2")
    assert read(tree).acpi_egm is False
    tree.write("/proc/sys/kernel/arch", "x86_64\n")
    assert why(read(tree), "acpi_egm").reason is Reason.NOT_SUPPORTED


def capability(number: int, following: int, control: int = 0) -> bytes:
    return struct.pack("<IHH", number | 1 << 16 | following << 20, 0, control)


@pytest.mark.parametrize(
    ("config", "control", "reason"),
    [
        (bytes(256) + capability(1, 0x108) + capability(0xD, 0, 0x1D) + bytes(64), 0x1D, None),
        (bytes(256) + capability(1, 0) + bytes(64), None, Reason.NOT_SUPPORTED),
        (bytes(256) + capability(1, 0x100) + bytes(64), None, Reason.NOT_SUPPORTED),
        (bytes(256), None, Reason.NOT_SUPPORTED),
        (bytes(64), None, Reason.NO_PERMISSION),
    ],
    ids=["second in the list", "none", "a list that is a circle", "conventional PCI", "not root"],
)
def test_access_control_services(tree: Tree, config: bytes, control: int | None, reason: Reason | None) -> None:
    folder = f"/sys/devices/pci0009:00/{ROOT_PORT}"
    tree.link(f"/sys/bus/pci/devices/{ROOT_PORT}", folder)
    tree.write(f"{folder}/config", config)
    (bridge,) = [bridge for bridge in read(tree).bridges or () if bridge.bus_id == ROOT_PORT]
    assert bridge.acs_control == control
    assert (bridge.unread["acs_control"].reason if reason else None) is reason


@pytest.mark.parametrize("variable", ["", "1"])
def test_a_program_of_a_copied_tree_is_never_run(tree: Tree, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv("EGMCTL_SYSROOT_PROGRAMS", variable)
    write_program(tree.directory / services.IMEX_CONTROL[0].lstrip("/"), f"echo READY; touch {tree.directory}/ran")
    unread = known(read(tree).imex).unread["daemon_state"]
    assert unread.reason is Reason.NOT_ASKED
    assert unread.detail.endswith("-q: programs of a copied tree are not run")
    assert not (tree.directory / "ran").exists()


def write_program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def asked(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Imex:
    """Return what this node's IMEX service says, where its control program is a script."""
    write_program(folder / "nvidia-imex-ctl", script)
    monkeypatch.setattr(services, "IMEX_CONTROL", (str(folder / "nvidia-imex-ctl"),))
    return services.imex(Root(), dict)


@pytest.mark.processes
def test_the_imex_service_tells_its_state_and_its_domains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    domain = '{"status":"DOWN"} {"status":"UP", "nodes":{"0":{"status":"READY"}}}'
    imex = asked(tmp_path, monkeypatch, f"""[ "$1" = -q ] && echo READY || echo '{domain}'""")
    assert (imex.daemon_state, imex.domain_status) == ("READY", "UP")


@pytest.mark.processes
def test_a_control_program_that_hangs_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "IMEX_TIMEOUT_S", 0.2)
    started = time.monotonic()
    imex = asked(tmp_path, monkeypatch, "exec sleep 60")
    assert time.monotonic() - started < 60
    assert imex.unread["daemon_state"].reason is imex.unread["domain_status"].reason is Reason.TIMED_OUT


@pytest.mark.parametrize("script", ["echo what; exit 1", "kill -9 $$", "head -c 100 /dev/urandom"])
@pytest.mark.processes
def test_a_control_program_that_says_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    assert asked(tmp_path, monkeypatch, script).unread["daemon_state"].reason is Reason.FAILED


def test_a_node_without_anything(tmp_path: Path) -> None:
    facts = read(Tree(tmp_path))
    assert (facts.egm_regions, facts.peer_memory_clients, facts.verbs) == ((), (), ())
    assert why(facts, "daemons").reason is Reason.NOT_PRESENT
    assert known(facts.imex).unread["daemon_state"].reason is Reason.NOT_PRESENT


@pytest.mark.processes
@pytest.mark.parametrize("script", ["yes READY", "(setsid sh -c 'while :; do echo READY; done' &); sleep 60"])
def test_a_control_program_that_floods_is_read_no_further(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setattr(services, "IMEX_TIMEOUT_S", 20)
    assert asked(tmp_path, monkeypatch, script).daemon_state == "READY"
