"""A directory tree that stands for ``/`` of a machine, written file by file."""

from __future__ import annotations

import struct
from pathlib import Path

from egmctl.facts.root import Root
from tests.fake import sysroot as fake

GPU = "0009:01:00.0"


class Tree(fake.Tree):
    """Files below a directory, under the paths they have on the machine; their content is written as it is."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.directory = directory
        self.root = Root(str(directory))

    def write(self, path: str, content: str | bytes | float | None) -> None:
        """Write a file and the folders above it."""
        super().write(path, content.encode() if isinstance(content, str) else content)

    def remove(self, path: str) -> None:
        """Remove a file."""
        (self.directory / path.lstrip("/")).unlink()

    def files(self) -> list[Path]:
        """Return every regular file."""
        return sorted(path for path in self.directory.rglob("*") if path.is_file() and not path.is_symlink())

    def pci(self, bus_id: str, above: str, vendor: int, device: int, class_code: int, driver: str = "") -> str:
        """Make a PCI function below the path ``above`` (``pci0009:00/0009:00:00.0``) and return its folder."""
        folder = f"/sys/devices/{above}/{bus_id}"
        for name, content in (
            ("vendor", f"{vendor:#06x}\n"),
            ("device", f"{device:#06x}\n"),
            ("subsystem_vendor", f"{vendor:#06x}\n"),
            ("subsystem_device", "0x16c1\n"),
            ("class", f"{class_code:#08x}\n"),
            ("numa_node", "0\n"),
            ("local_cpulist", "0-71\n"),
            ("current_link_speed", "32.0 GT/s PCIe\n"),
            ("current_link_width", "16\n"),
            ("max_link_speed", "64.0 GT/s PCIe\n"),
            ("max_link_width", "16\n"),
            ("config", struct.pack("<HH", vendor, device) + bytes(60)),
        ):
            self.write(f"{folder}/{name}", content)
        self.link(f"/sys/bus/pci/devices/{bus_id}", folder)
        if driver:
            self.folder(f"/sys/bus/pci/drivers/{driver}")
            self.link(f"{folder}/driver", f"/sys/bus/pci/drivers/{driver}")
        return folder


def grace_hopper(directory: Path) -> Tree:
    """Write a Grace Hopper machine: one CPU, one GPU whose memory is NUMA node 1, seven empty nodes, one NIC."""
    tree = Tree(directory)
    _kernel(tree)
    _numa(tree)
    tree.pci(GPU, "pci0009:00/0009:00:00.0", 0x10DE, 0x2342, 0x030200, driver="nvidia")
    tree.pci("0000:00:1f.0", "pci0000:00", 0x8086, 0x1234, 0x060100)
    _driver(tree)
    _nic(tree)
    return tree


def _kernel(tree: Tree) -> None:
    processor = "BogoMIPS\t: 2000.00\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd4f\n\n"
    for path, content in (
        ("/proc/sys/kernel/hostname", "gh-17\n"),
        ("/proc/sys/kernel/osrelease", "6.8.0-1010-nvidia-64k\n"),
        ("/proc/sys/kernel/arch", "aarch64\n"),
        ("/proc/sys/kernel/numa_balancing", "0\n"),
        ("/proc/cpuinfo", "".join(f"processor\t: {n}\n{processor}" for n in range(72))),
        ("/sys/devices/soc0/soc_id", "jep106:036b:0241\n"),
        ("/sys/devices/system/cpu/online", "0-71\n"),
        ("/sys/devices/system/cpu/smt/control", "notsupported\n"),
        ("/proc/self/auxv", struct.pack("LLLL", 16, 0xFFFF, 6, 65536) + bytes(16)),
        ("/proc/meminfo", "MemTotal:       600000000 kB\nMemFree:  1 kB\nMemAvailable:   590000000 kB\n"),
        ("/proc/self/status", "Name:\tegmctl\nCpus_allowed_list:\t0-7\nMems_allowed:\t3\nMems_allowed_list:\t0-1\n"),
        ("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "16\n"),
        ("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "15\n"),
        ("/sys/kernel/mm/hugepages/hugepages-524288kB/nr_hugepages", "0\n"),
        ("/sys/kernel/mm/hugepages/hugepages-524288kB/free_hugepages", "0\n"),
        ("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n"),
        ("/sys/devices/system/memory/auto_online_blocks", "online_movable\n"),
        (
            "/proc/cmdline",
            "BOOT_IMAGE=/vmlinuz root=UUID=1234 init_on_alloc=0 iommu.passthrough=1 nvidia.NVreg_ImexChannelCount=4"
            " nvidia-uvm.uvm_ats_mode=1 secret_token=abc quiet\n",
        ),
        (
            "/proc/self/cgroup",
            "5:devices:/slurm/uid_1000/job_42\n1:name=systemd:/a:b\n0::/system.slice/x[bold].scope\n",
        ),
        (
            "/proc/self/mountinfo",
            "1 0 0:30 / / rw,relatime shared:1 - overlay overlay rw\n2 1 0:31 / /proc rw - proc proc rw\n"
            "3 2 0:32 / /proc/driver/nvidia rw - tmpfs tmpfs rw\n",
        ),
        ("/proc/self/uid_map", "         0     100000      65536\n"),
    ):
        tree.write(path, content)


def _numa(tree: Tree) -> None:
    nodes = "/sys/devices/system/node"
    tree.write(f"{nodes}/online", "0-8\n")
    tree.write(f"{nodes}/has_memory", "0-1\n")
    for number in range(9):
        kib = {0: 500_000_000, 1: 97_000_000}.get(number, 0)
        tree.write(f"{nodes}/node{number}/cpulist", "0-71\n" if number == 0 else "\n")
        tree.write(
            f"{nodes}/node{number}/meminfo",
            f"Node {number} MemTotal:       {kib} kB\nNode {number} MemFree:        {kib} kB\n",
        )
        distances = " ".join("10" if other == number else "80" for other in range(9))
        tree.write(f"{nodes}/node{number}/distance", f"{distances}\n")


def _driver(tree: Tree) -> None:
    proc = "/proc/driver/nvidia"
    tree.write(
        f"{proc}/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.159.04  Release Build  (builder@host)\n"
        "GCC version:  gcc version 13.3.0\n",
    )
    tree.write(f"{proc}/params", 'ModifyDeviceFiles: 1\nRegistryDwords: "RMForceP2PType=1"\nTemporaryFilePath: "/x"\n')
    tree.write(
        f"{proc}/gpus/{GPU}/information",
        "Model: \t\t NVIDIA GH200 480GB\nIRQ:   \t\t 500\nGPU UUID: \t GPU-11111111-2222-3333-4444-555555555555\n"
        f"Bus Location: \t {GPU}\nDevice Minor: \t 0\nGPU Excluded:\t No\n",
    )
    tree.write(f"{proc}/gpus/{GPU}/numa_status", "Node:\t\t1\nStatus:\t\tonline\n")
    tree.write(
        "/proc/devices",
        "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n235 nvidia-caps\n236 nvidia-caps-imex-channels\n"
        "\nBlock devices:\n195 nvidia-not-a-character-device\n",
    )
    tree.folder("/sys/module/nvidia")
    tree.write("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm", "Y\n")
    for path in (
        "nvidia0",
        "nvidiactl",
        "nvidia-uvm",
        "nvidia-caps/nvidia-cap2",
        "nvidia-caps/nvidia-cap10",
        "nvidia-caps-imex-channels/channel0",
    ):
        tree.write(f"/dev/{path}", "")


def _nic(tree: Tree) -> None:
    folder = tree.pci("0002:03:00.0", "pci0002:00/0002:00:00.0/0002:01:00.0", 0x15B3, 0x1021, 0x020700, "mlx5_core")
    for name in ("mlx5_10", "mlx5_2"):
        tree.link(f"{folder}/infiniband/{name}/device", folder)
        for path, content in (
            ("fw_ver", "28.42.1000\n"),
            ("node_guid", "a088:c203:0012:3456\n"),
            ("board_id", "MT_0000000838\n"),
            ("ports/1/state", "4: ACTIVE\n"),
            ("ports/1/phys_state", "5: LinkUp\n"),
            ("ports/1/link_layer", "InfiniBand\n"),
            ("ports/1/rate", "400 Gb/sec (4X NDR)\n"),
        ):
            tree.write(f"{folder}/infiniband/{name}/{path}", content)
        tree.link(f"/sys/class/infiniband/{name}", f"{folder}/infiniband/{name}")
    tree.folder(f"{folder}/net/ibp3s0")
