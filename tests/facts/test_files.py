"""Facts from files: a machine as a directory tree, and this machine itself.

That every value of a file comes back: ``tests/fake/test_snapshot.py``.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egmctl.driver.reading import Reasons, Unreadable
from egmctl.facts import gpus, host, process, system
from egmctl.facts.root import READ_LIMIT, Root
from egmctl.model.codec import from_json, to_json
from egmctl.model.gpu import GpuProc
from egmctl.model.host import Cgroup, Driver, HugePages, Nic, NumaKind, NvSwitch
from egmctl.model.machine import Machine, Origin, OriginKind
from egmctl.model.record import Reason
from tests.facts.sysroot import GPU, Tree, grace_hopper
from tests.invariants import broken_nulls
from tests.known import known


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return grace_hopper(tmp_path)


def reason(root: Root, path: str) -> Reason:
    reasons = Reasons()
    assert reasons.read("x", lambda: root.read(path)) is None
    assert path in reasons.unread["x"].detail
    return reasons.unread["x"].reason


# --- the root --------------------------------------------------------------------------------------------------------


def test_each_way_a_file_cannot_be_read_has_its_reason(tree: Tree) -> None:
    tree.write("/huge", bytes(READ_LIMIT + 1))
    os.mkfifo(tree.directory / "fifo")
    assert reason(tree.root, "/missing") is Reason.NOT_PRESENT
    assert reason(tree.root, "/proc/meminfo/below-a-file") is Reason.NOT_PRESENT
    assert reason(tree.root, "/proc") is Reason.FAILED
    assert reason(tree.root, "/huge") is Reason.FAILED
    assert tree.root.read("/fifo") == "", "a FIFO without a writer must not hang the reader"


@pytest.mark.needs_root
def test_a_file_of_another_user_is_no_permission() -> None:
    with tempfile.TemporaryDirectory() as directory:
        tree = Tree(Path(directory))
        tree.directory.chmod(0o755)
        tree.write("/secret", "x")
        (tree.directory / "secret").chmod(0)
        assert _as_nobody(lambda: system.read_device_node(tree.root, "/secret").access) == "EACCES"
        assert _as_nobody(lambda: reason(tree.root, "/secret")) == "no-permission"


def _as_nobody(function: Callable[[], str | None]) -> str:
    """Return what a function returns in a process of a user without rights."""
    ours, theirs = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.setuid(65534)
            os.write(theirs, str(function()).encode())
        finally:
            os._exit(0)
    os.close(theirs)
    os.waitpid(child, 0)
    with os.fdopen(ours) as pipe:
        return pipe.read()


# --- host ------------------------------------------------------------------------------------------------------------


def test_only_the_parameters_that_matter_leave_the_kernel_command_line(tree: Tree) -> None:
    facts = host.host(tree.root)
    assert facts.kernel_command_line == {
        "init_on_alloc": "0",
        "iommu.passthrough": "1",
        "nvidia.NVreg_ImexChannelCount": "4",
        "nvidia-uvm.uvm_ats_mode": "1",
    }
    assert facts.smt == "notsupported"
    # Files that this tree lacks, as those of cpufreq, are not present; all that it has is read.
    assert "cpu_frequencies" in facts.unread
    assert {unread.reason for unread in facts.unread.values()} == {Reason.NOT_PRESENT}


def test_numa_nodes_have_their_kind_by_what_they_hold(tree: Tree) -> None:
    tree.write("/sys/devices/system/node/node3/cpulist", "72-143\n")
    nodes = host.host(tree.root).numa_nodes or ()
    kinds = [NumaKind.CPU, NumaKind.MEMORY_ONLY, NumaKind.EMPTY, NumaKind.CPU_ONLY, *[NumaKind.EMPTY] * 5]
    assert [(node.id, node.kind) for node in nodes] == list(enumerate(kinds))
    assert [node.cpus for node in nodes[:4]] == ["0-71", "", "", "72-143"]
    assert [node.memory_total_bytes for node in nodes[:3]] == [500_000_000 * 1024, 97_000_000 * 1024, 0]
    assert nodes[1].distances == (80, 10, 80, 80, 80, 80, 80, 80, 80)

    tree.remove("/sys/devices/system/node/has_memory")
    assert host.host(tree.root).numa_nodes == nodes, "their sizes say the same as the list of nodes with memory"


def test_each_numa_node_has_its_own_part_of_the_huge_pages(tree: Tree) -> None:
    for node, free in ((0, 5), (1, 10)):
        folder = f"/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB"
        tree.write(f"{folder}/nr_hugepages", "12\n")
        tree.write(f"{folder}/free_hugepages", f"{free}\n")
    first, second, third, *_ = host.host(tree.root).numa_nodes or ()
    assert first.huge_pages == (HugePages(page_size_bytes=2 << 20, total=12, free=5),)
    assert second.huge_pages == (HugePages(page_size_bytes=2 << 20, total=12, free=10),)
    assert (third.huge_pages, third.unread["huge_pages"].reason) == (None, Reason.NOT_PRESENT)


@pytest.mark.parametrize(
    ("cpuinfo", "model"),
    [
        ("processor: 0\nmodel name\t: INTEL(R) XEON(R) PLATINUM 8558\n", "INTEL(R) XEON(R) PLATINUM 8558"),
        ("CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n", "Neoverse-N1"),
        ("CPU implementer\t: 0x61\nCPU part\t: 0x023\n", "implementer 0x61 part 0x023"),
    ],
)
def test_cpu_model_by_name_or_by_implementer_and_part(tree: Tree, cpuinfo: str, model: str) -> None:
    tree.remove("/sys/devices/soc0/soc_id")
    tree.write("/proc/cpuinfo", cpuinfo)
    assert host.host(tree.root).cpu_model == model


# --- PCI -------------------------------------------------------------------------------------------------------------


def test_switches_are_told_from_gpus_and_other_vendors_left_out(tree: Tree) -> None:
    tree.pci("0000:05:00.0", "pci0000:00/0000:00:01.0", 0x10DE, 0x22A3, 0x068000)
    tree.pci("0000:06:00.0", "pci0000:00/0000:00:01.0", 0x10DE, 0x22B2, 0x060400)
    functions = gpus.nvidia_functions(tree.root)
    assert [(function.bus_id, gpus.is_gpu(function)) for function in functions] == [
        ("0000:05:00.0", False),
        (GPU, True),
    ]


def test_a_gpu_that_fell_off_the_bus_does_not_respond(tree: Tree) -> None:
    folder = f"/sys/devices/pci0009:00/0009:00:00.0/{GPU}"
    tree.write(f"{folder}/config", b"\xff" * 64)
    tree.write(f"{folder}/current_link_speed", "Unknown\n")
    tree.write(f"{folder}/current_link_width", "0\n")
    tree.remove(f"{folder}/driver")
    (gpu,) = gpus.nvidia_functions(tree.root)
    assert (gpu.responds, gpu.driver) == (False, ""), "no driver is bound"
    link = known(gpu.link)
    assert (link.speed_gt_s, link.width) == (None, None)
    assert {unread.reason for unread in link.unread.values()} == {Reason.NOT_SUPPORTED}


def test_of_other_vendors_functions_only_the_vendor_is_read(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of 8 GPUs with virtual functions has over a thousand PCI functions."""
    opened: list[str] = []
    original = Root.read_bytes

    def counted(root: Root, path: str, *limit: int) -> bytes:
        opened.append(path)
        return original(root, path, *limit)

    monkeypatch.setattr(Root, "read_bytes", counted)
    gpus.nvidia_functions(tree.root)
    assert [path for path in opened if GPU not in path] == [
        "/sys/bus/pci/devices/0000:00:1f.0/vendor",
        "/sys/bus/pci/devices/0002:03:00.0/vendor",
    ]


def test_this_machines_own_pci_functions() -> None:
    root = Root()
    for bus_id in root.names(gpus.DEVICES) if root.exists(gpus.DEVICES) else ():
        function = gpus.function(root, f"{gpus.DEVICES}/{bus_id}")
        assert function.bus_id == bus_id
        assert known(function.path)[0].startswith("pci")
        assert function.vendor_id


# --- device nodes ----------------------------------------------------------------------------------------------------


def test_nodes_that_are_there_and_one_that_is_missing(tree: Tree) -> None:
    (tree.directory / "dev/nvidia0").chmod(0o640)
    nodes = system.read_device_nodes(tree.root, [0, 1])
    assert not nodes.unread
    there, missing = nodes.gpus[0], nodes.gpus[1]
    assert (there.exists, there.mode, there.access) == (True, 0o640, "ok")
    assert (there.uid, there.gid) == (os.getuid(), os.getgid())
    assert there.unread["major"].detail == "/dev/nvidia0: not a character device"
    assert (missing.exists, missing.access, missing.unread["mode"].reason) == (False, "ENOENT", Reason.NOT_PRESENT)
    assert [(node.path, node.exists) for node in nodes.control] == [
        ("/dev/nvidiactl", True),
        ("/dev/nvidia-uvm", True),
        ("/dev/nvidia-uvm-tools", False),
        ("/dev/nvidia-caps/nvidia-cap2", True),
        ("/dev/nvidia-caps/nvidia-cap10", True),
    ]
    assert [node.path for node in nodes.imex_channels or ()] == ["/dev/nvidia-caps-imex-channels/channel0"]


def test_a_real_character_device_has_its_numbers() -> None:
    null = system.read_device_node(Root(), "/dev/null")
    assert not null.unread
    assert (null.exists, null.major, null.minor, null.access) == (True, 1, 3, "ok")


# --- driver ----------------------------------------------------------------------------------------------------------


OF_FILES = {"module_version", "module_flavour", "modules", "module_parameters", "uvm_parameters", "majors"}
"""Fields of a driver that come from files."""


def test_the_drivers_files(tree: Tree) -> None:
    assert gpus.driver(tree.root) == Driver(
        modprobe_setuid=False,
        module_version="580.159.04",
        module_flavour="open",
        modules=("nvidia", "nvidia_uvm"),
        module_parameters={"ModifyDeviceFiles": "1", "RegistryDwords": "RMForceP2PType=1"},
        uvm_parameters={"uvm_disable_hmm": "Y"},
        majors={"nvidia": 195, "nvidiactl": 195, "nvidia-caps": 235, "nvidia-caps-imex-channels": 236},
    )


def test_the_proprietary_driver_writes_its_version_elsewhere(tree: Tree) -> None:
    line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC 2023\n"
    tree.write("/proc/driver/nvidia/version", line)
    driver = gpus.driver(tree.root)
    assert (driver.module_version, driver.module_flavour) == ("535.54.03", "proprietary")


def test_what_the_driver_says_of_a_gpu(tree: Tree) -> None:
    uuid = "GPU-11111111-2222-3333-4444-555555555555"
    stated = GpuProc(model="NVIDIA GH200 480GB", uuid=uuid, minor=0, excluded=False, numa_status="online", numa_node=1)
    assert gpus.gpus(tree.root) == {GPU: stated}


def test_a_uuid_of_question_marks_is_not_a_uuid(tree: Tree) -> None:
    tree.write(
        f"/proc/driver/nvidia/gpus/{GPU}/information",
        "Model: \t\t NVIDIA GH200 480GB\nGPU UUID: \t GPU-????????-????-????-????-????????????\nDevice Minor: 0\n",
    )
    tree.remove(f"/proc/driver/nvidia/gpus/{GPU}/numa_status")
    (gpu,) = gpus.gpus(tree.root).values()
    assert (gpu.uuid, gpu.minor) == (None, 0)
    assert set(gpu.unread) == {"uuid", "excluded", "numa_status", "numa_node"}


# --- NICs ------------------------------------------------------------------------------------------------------------


def test_nics_in_natural_order_with_their_ports(tree: Tree) -> None:
    second, tenth = system.nics(tree.root)
    assert (second.name, tenth.name) == ("mlx5_2", "mlx5_10")
    assert second == Nic(
        name="mlx5_2",
        pci=second.pci,
        firmware="28.42.1000",
        node_guid="a088:c203:0012:3456",
        board_id="MT_0000000838",
        interfaces=("ibp3s0",),
        ports=second.ports,
        unread=second.unread,
    )
    assert known(second.pci).bus_id == "0002:03:00.0"
    assert known(second.pci).path == ("pci0002:00", "0002:00:00.0", "0002:01:00.0")
    (port,) = second.ports
    assert (port.number, port.state, port.physical_state) == (1, "ACTIVE", "LinkUp")
    assert (port.link_layer, port.rate_gbit_s) == ("InfiniBand", 400.0)


def test_a_nic_without_a_pci_function_says_so(tree: Tree) -> None:
    tree.write("/sys/class/infiniband/rxe0/node_guid", "0\n")
    rxe = system.nics(tree.root)[-1]
    assert (rxe.pci, rxe.unread["pci"].reason) == (None, Reason.NOT_PRESENT)


def configuration(*capabilities: tuple[int, int, bytes], first: int = 0x40) -> bytes:
    """Return 256 bytes of configuration space with capabilities: offset, offset of the next, content."""
    space = bytearray(256)
    space[0x34] = first
    for offset, following, content in capabilities:
        space[offset : offset + len(content)] = content
        space[offset + 1] = following
    return bytes(space)


EXPRESS = b"\x10\0" + bytes(6) + b"\x57\x59"
"""Device Control is 0x5957: read requests of 4096 bytes (PCI_EXP_DEVCTL_READRQ_4096B of linux/pci_regs.h)."""


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (configuration((0x40, 0x60, b"\x01"), (0x60, 0, EXPRESS)), 4096),
        (configuration((0x40, 0, EXPRESS[:9] + b"\x29")), 512),
        (configuration((0x40, 0, EXPRESS[:9] + b"\x79")), Reason.NOT_SUPPORTED),
        (configuration((0x40, 0x40, b"\x01")), Reason.NOT_SUPPORTED),
        (configuration((0x40, 0xFC, b"\x01"), (0xFC, 0, b"\x10")), Reason.NOT_SUPPORTED),
        (configuration(first=0), Reason.NOT_SUPPORTED),
        (bytes(64), Reason.NO_PERMISSION),
    ],
    ids=["after another", "512", "reserved", "circle", "cut off", "none", "not root"],
)
def test_the_read_requests_of_a_nic(tree: Tree, content: bytes, expected: int | Reason) -> None:
    folder = "/sys/devices/pci0002:00/0002:00:00.0/0002:01:00.0/0002:03:00.0"
    tree.write(f"{folder}/config", content)
    (nic, _) = system.nics(tree.root)
    size = nic.max_read_request_bytes
    assert (nic.unread["max_read_request_bytes"].reason if size is None else size) == expected


def test_a_virtual_function_has_no_read_request_size_of_its_own(tree: Tree) -> None:
    folder = "/sys/devices/pci0002:00/0002:00:00.0/0002:01:00.0/0002:03:00.0"
    tree.write(f"{folder}/config", configuration((0x40, 0, EXPRESS[:9] + b"\x09")))
    tree.write(f"{folder}/physfn/vendor", "0x15b3\n")
    assert system.nics(tree.root)[0].unread["max_read_request_bytes"].reason is Reason.NOT_SUPPORTED


def test_what_leads_to_nvlink_switches_is_no_nic(tree: Tree) -> None:
    # Both are of one card.
    names = [nic.name for nic in system.nics(tree.root)]
    with pytest.raises(Unreadable):
        system.management(tree.root)

    tree.write(f"/sys/class/infiniband/{names[0]}/device/vpd", "\x82V0 ConnectX-7")
    assert system.management(tree.root) == ()

    tree.write(f"/sys/class/infiniband/{names[0]}/device/vpd", "\x82V0 ConnectX-7 SMDL=SW_MNG")
    assert [device.name for device in system.management(tree.root)] == names
    assert system.nics(tree.root) == ()


# --- process ---------------------------------------------------------------------------------------------------------


def test_cgroups_of_both_versions(tree: Tree) -> None:
    assert process.process(tree.root).cgroups == (
        Cgroup(version=1, controllers=("devices",), path="/slurm/uid_1000/job_42"),
        Cgroup(version=1, controllers=("name=systemd",), path="/a:b"),
        Cgroup(version=2, path="/system.slice/x[bold].scope"),
    )


def test_signs_of_a_container(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in process.CONTAINER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    tree.write("/.dockerenv", "")
    assert process.process(tree.root).container_signs == (
        "/.dockerenv",
        "overlay root",
        "tmpfs /proc/driver/nvidia",
        "user namespace",
    )


def test_only_known_variables_are_recorded(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in process.ENVIRONMENT_KEYS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setitem(os.environ, "UCX_TLS", "rc,\udcff")
    assert process.process(tree.root).environment == {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "UCX_TLS": "rc,\N{REPLACEMENT CHARACTER}",
    }


# --- nothing, and anything at all ------------------------------------------------------------------------------------


def test_where_there_is_nothing_there_is_none_or_a_reason(tmp_path: Path) -> None:
    empty = Root(str(tmp_path))
    with pytest.raises(Unreadable) as caught:
        gpus.nvidia_functions(empty)
    assert caught.value.unread.reason is Reason.NOT_PRESENT
    driver = gpus.driver(empty)
    assert set(driver.unread) == OF_FILES
    assert driver == Driver(modprobe_setuid=False, unread=driver.unread)
    assert system.nics(empty) == ()
    nodes = system.read_device_nodes(empty, [])
    assert (nodes.gpus, nodes.imex_channels, nodes.unread) == ({}, (), {})


GARBAGE = (
    b"",
    b"\x00",
    b"\xff\xfe\x80" * 40,
    b"-",
    b"0-99999999999",
    b"9" * 5000,
    b"Node 0 MemTotal: many kB\n",
    b"\n" * 999,
)


@pytest.mark.parametrize("content", GARBAGE, ids=lambda content: ascii(content[:12]))
def test_garbage_in_any_file_costs_no_more_than_its_values(tmp_path: Path, content: bytes) -> None:
    tree = grace_hopper(tmp_path)
    for path in tree.files():
        path.write_bytes(content)
    assert_sound(tree.root)


@pytest.mark.long
@settings(max_examples=40)
@given(choice=st.randoms(use_true_random=False), content=st.binary(max_size=200))
def test_random_bytes_in_some_files_cost_no_more_than_their_values(choice: random.Random, content: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        tree = grace_hopper(Path(directory))
        files = tree.files()
        for path in choice.sample(files, k=len(files) // 4):
            path.write_bytes(choice.choice((content, path.read_bytes()[: choice.randint(0, 40)] + content)))
        assert_sound(tree.root)


def assert_sound(root: Root) -> None:
    """Every collector returns, or says why it cannot, and what it returns holds the invariants and can be written."""
    machine = Machine(origin=Origin(kind=OriginKind.LIVE))
    machine = dataclasses.replace(machine, host=host.host(root), process=process.process(root), nics=system.nics(root))
    machine = dataclasses.replace(machine, switches=tuple(NvSwitch(pci=pci) for pci in gpus.nvidia_functions(root)))
    for gpu in gpus.gpus(root).values():
        assert not broken_nulls(gpu)
    driver = gpus.driver(root)
    for name in OF_FILES:
        assert getattr(driver, name) is not None or name in driver.unread
    system.read_device_nodes(root, [0, 1])
    for section in (machine.host, machine.process, *(machine.nics or ()), *(machine.switches or ())):
        assert section is not None
        assert not broken_nulls(section)
    assert from_json(Machine, json.loads(json.dumps(to_json(machine)))) == machine
