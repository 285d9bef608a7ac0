"""Real device cgroups of both versions, for tests that run as root: one denies device nodes until its block is left."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from egmctl.driver.reading import NUMBERS

GPU_MAJOR = 195

_libc = ctypes.CDLL(None, use_errno=True)
_PROG_LOAD, _PROG_ATTACH = 5, 8  # enum bpf_cmd, include/uapi/linux/bpf.h
_TYPE_CGROUP_DEVICE, _ATTACH_CGROUP_DEVICE = 15, 6


class Cgroup:
    """A cgroup: a directory, and the path that the kernel shows for it."""

    def __init__(self, directory: Path, top: Path) -> None:
        self.directory = directory
        self.path = f"/{directory.relative_to(top)}"

    def join(self) -> None:
        """Move the calling process in; for ``preexec_fn``."""
        (self.directory / "cgroup.procs").write_text(str(os.getpid()))


def join_by_path(arguments: dict[str, str]) -> None:
    """Move the calling process into the cgroup ``directory``; for ``before`` of :class:`egmctl.launch.Child`."""
    (Path(arguments["directory"]) / "cgroup.procs").write_text(str(os.getpid()))


@contextlib.contextmanager
def denying_v1(*minors: int, major: int = GPU_MAJOR) -> Iterator[Cgroup]:
    """A cgroup of version 1 whose list of denials has these devices."""
    with _made("devices") as cgroup:
        for minor in minors:
            (cgroup.directory / "devices.deny").write_text(f"c {major}:{minor} rwm")
        yield cgroup


@contextlib.contextmanager
def denying_v2(*minors: int, name: str = "", major: int = GPU_MAJOR, below: str = "") -> Iterator[Cgroup]:
    """A cgroup of version 2 with a BPF program that denies these devices and allows all others.

    Parameters
    ----------
    name
        The program's, as Slurm and systemd give one.
    below
        More cgroups below the one that the program is attached to: the block gets the lowest.
    """
    with _made(None) as cgroup:
        program = _load(major, minors, name)
        directory = os.open(cgroup.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _bpf(_PROG_ATTACH, struct.pack("=IIII", directory, program, _ATTACH_CGROUP_DEVICE, 0))
        finally:
            os.close(directory)
            # The cgroup holds the program from here on, and lets go of it when it is removed.
            os.close(program)
        if not below:
            yield cgroup
            return
        lowest = cgroup.directory / below
        lowest.mkdir(parents=True)
        try:
            yield Cgroup(lowest, cgroup.directory.parent)
        finally:
            for folder in (lowest, *lowest.parents):
                if folder == cgroup.directory:
                    break
                _remove(folder)


@contextlib.contextmanager
def cpuset(cpus: str, nodes: str) -> Iterator[Cgroup]:
    """A cgroup of version 1 that confines to CPUs and NUMA nodes, in the kernel's spelling of lists."""
    with _made("cpuset") as cgroup:
        (cgroup.directory / "cpuset.cpus").write_text(cpus)
        (cgroup.directory / "cpuset.mems").write_text(nodes)
        yield cgroup


@contextlib.contextmanager
def pids(most: int) -> Iterator[Cgroup]:
    """A cgroup of version 1 that allows so many processes and threads."""
    with _made("pids") as cgroup:
        (cgroup.directory / "pids.max").write_text(str(most))
        yield cgroup


@contextlib.contextmanager
def mounted(kind: str, options: str, place: Path) -> Iterator[Path]:
    """Mount a file system of the kernel's own on a directory; an error where the kernel refuses."""
    place.mkdir(parents=True, exist_ok=True)
    with_options = ["-o", options] if options else []
    arguments = ["-t", kind, *with_options, "none", str(place)]
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"mount {' '.join(arguments)}: {done.stderr}"
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@contextlib.contextmanager
def _made(controller: str | None) -> Iterator[Cgroup]:
    """Make a cgroup in the hierarchy of a controller of version 1, or in version 2's; mount it where it is not."""
    with contextlib.ExitStack() as stack:
        top = _mount_of(controller)
        if top is None:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="egmctl-cgroup-")))
            kind, options = ("cgroup2", "") if controller is None else ("cgroup", controller)
            top = stack.enter_context(mounted(kind, options, place / "top"))
        directory = top / f"egmctl-test-{os.getpid()}-{time.monotonic_ns()}"
        directory.mkdir()
        try:
            yield Cgroup(directory, top)
        finally:
            _remove(directory)


def _mount_of(controller: str | None) -> Path | None:
    """Return where a hierarchy is mounted writable from its root on."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        kind, _, options = fields[fields.index("-", 6) + 1 :][:3]
        wanted = kind == "cgroup2" if controller is None else kind == "cgroup" and controller in options.split(",")
        if wanted and fields[3] == "/" and "ro" not in fields[5].split(","):
            return Path(fields[4])
    return None


def _remove(directory: Path) -> None:
    # A process that has been reaped a moment ago may still count.
    for _ in range(50):
        with contextlib.suppress(OSError):
            directory.rmdir()
            return
        time.sleep(0.02)
    directory.rmdir()


def _load(major: int, minors: tuple[int, ...], name: str) -> int:
    """Load a program that denies (major, minor) for each minor; return its descriptor."""
    # struct bpf_cgroup_dev_ctx: access_type, major, minor. Each instruction: opcode, registers, offset, immediate.
    allow = [_instruction(0xB7, 0, 0, 1), _instruction(0x95)]  # r0 = 1; exit
    deny = [_instruction(0xB7, 0, 0, 0), _instruction(0x95)]  # r0 = 0; exit
    checks = [
        _instruction(0x15, 2, len(minors) - 1 - i + len(allow), minor)  # if r2 == minor goto deny
        for i, minor in enumerate(minors)
    ]
    head = [
        _instruction(0x61, 0x12, 4),  # r2 = major
        _instruction(0x55, 2, 1 + len(checks), major),  # if r2 != major goto allow
        _instruction(0x61, 0x12, 8),  # r2 = minor
    ]
    program = b"".join([*head, *checks, *allow, *deny])
    code, licence, log = ctypes.create_string_buffer(program), ctypes.create_string_buffer(b"GPL"), bytearray(4096)
    said = (ctypes.c_char * len(log)).from_buffer(log)
    attributes = struct.pack(
        "=IIQQIIQII16s",
        _TYPE_CGROUP_DEVICE,
        len(program) // 8,
        ctypes.addressof(code),
        ctypes.addressof(licence),
        1,
        len(log),
        ctypes.addressof(said),
        0,
        0,
        name.encode(),
    )
    try:
        return _bpf(_PROG_LOAD, attributes)
    except OSError as error:
        raise OSError(error.errno, log.split(b"\0")[0].decode()) from None


def _instruction(opcode: int, registers: int = 0, offset: int = 0, immediate: int = 0) -> bytes:
    return struct.pack("=BBhi", opcode, registers, offset, immediate)


def _bpf(command: int, attributes: bytes) -> int:
    buffer = ctypes.create_string_buffer(attributes, 128)
    number = NUMBERS[os.uname().machine]["bpf"]
    result: int = _libc.syscall(ctypes.c_long(number), ctypes.c_long(command), buffer, ctypes.c_long(len(buffer)))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"bpf({command})")
    return result
