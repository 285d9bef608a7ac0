"""The NVIDIA driver as its files show it: nothing is opened that would start a GPU or load a library."""

from __future__ import annotations

import re
from dataclasses import dataclass

from egmctl.facts.pci import BUS_ID
from egmctl.facts.root import Reasons, Root, Unreadable
from egmctl.model.machine import GpuProc, Reason, Unread

PROC = "/proc/driver/nvidia"

MODULES = ("nvidia", "nvidia_uvm", "nvidia_peermem", "nvgrace_gpu", "nvgrace_egm", "nouveau", "gdrdrv")
"""Kernel modules that decide what the GPUs can do, in the order they are reported."""

PRIVATE_PARAMETERS = ("TemporaryFilePath", "RmMsg")
"""Module parameters that say nothing here and may hold anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFiles:
    """The fields of :class:`egmctl.model.machine.Driver` that come from files, under their names there."""

    module_version: str | None
    module_flavour: str | None
    modules: tuple[str, ...] | None
    module_parameters: dict[str, str] | None
    uvm_parameters: dict[str, str] | None
    majors: dict[str, int] | None
    unread: dict[str, Unread]


def driver(root: Root) -> DriverFiles:
    """Read versions, modules, parameters and majors."""
    why = Reasons()
    return DriverFiles(
        module_version=why.read("module_version", lambda: _version(root)[2]),
        module_flavour=why.read("module_flavour", lambda: "open" if _version(root)[1] else "proprietary"),
        modules=why.read("modules", lambda: _modules(root)),
        module_parameters=why.read("module_parameters", lambda: _parameters(root)),
        uvm_parameters=why.read("uvm_parameters", lambda: _uvm_parameters(root)),
        majors=why.read("majors", lambda: _majors(root)),
        unread=why.unread,
    )


def gpus(root: Root) -> dict[str, GpuProc]:
    """Return what the driver's folder for each GPU says, by bus id.

    Raises
    ------
    Unreadable
        If the driver is not loaded (or, in a container, its folder is not passed in).
    """
    return {name: _gpu(root, name) for name in root.names(f"{PROC}/gpus") if BUS_ID.fullmatch(name)}


def _gpu(root: Root, bus_id: str) -> GpuProc:
    why = Reasons()
    information, numa_status = f"{PROC}/gpus/{bus_id}/information", f"{PROC}/gpus/{bus_id}/numa_status"
    return GpuProc(
        model=why.read("model", lambda: root.line(information, "Model")),
        uuid=why.read("uuid", lambda: _uuid(root, information)),
        minor=why.read("minor", lambda: _number(root, information, "Device Minor")),
        excluded=why.read("excluded", lambda: root.line(information, "GPU Excluded") == "Yes"),
        numa_status=why.read("numa_status", lambda: root.line(numa_status, "Status")),
        numa_node=why.read("numa_node", lambda: _number(root, numa_status, "Node")),
        unread=why.unread,
    )


def _uuid(root: Root, path: str) -> str:
    uuid = root.line(path, "GPU UUID")
    # The driver prints GPU-????????-... until something has opened the GPU since it was loaded.
    if "?" in uuid:
        raise Unreadable(Reason.NOT_PRESENT, f"{path}: the UUID is not known until the GPU is opened")
    return uuid


def _number(root: Root, path: str, key: str) -> int:
    text = root.line(path, key)
    if not re.fullmatch(r"-?[0-9]{1,9}", text, re.ASCII):
        raise Unreadable(Reason.FAILED, f"{path}: {key!r} is not a number")
    return int(text)


def _version(root: Root) -> re.Match[str]:
    path = f"{PROC}/version"
    # NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (...)
    # NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC 2023
    line = root.line(path, "NVRM version")
    if match := re.search(r"(Open )?Kernel Module.*?\s([0-9]{1,4}(?:\.[0-9]{1,4}){1,3})\s", line + " ", re.ASCII):
        return match
    raise Unreadable(Reason.FAILED, f"{path}: no version")


def _modules(root: Root) -> tuple[str, ...]:
    if not root.exists("/sys/module"):
        raise Unreadable(Reason.NOT_PRESENT, "/sys/module: ENOENT")
    return tuple(name for name in MODULES if root.exists(f"/sys/module/{name}"))


def _parameters(root: Root) -> dict[str, str]:
    found = {}
    for line in root.lines(f"{PROC}/params"):
        name, colon, value = line.partition(":")
        if colon and name not in PRIVATE_PARAMETERS:
            found[name.strip()] = value.strip().strip('"')
    return found


def _uvm_parameters(root: Root) -> dict[str, str]:
    folder = "/sys/module/nvidia_uvm/parameters"
    return {name: root.read(f"{folder}/{name}") for name in root.names(folder)}


def _majors(root: Root) -> dict[str, int]:
    # Two lists, "Character devices:" and "Block devices:", of lines "195 nvidia".
    characters = root.read("/proc/devices").partition("Block devices:")[0]
    return {name: int(number) for number, name in re.findall(r"^ *([0-9]{1,6}) (nvidia\S*)$", characters, re.M | re.A)}
