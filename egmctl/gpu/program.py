"""The project's kernels: compiled by NVRTC to a cubin for the GPU's own architecture, kept on disk, loaded eagerly.

Always a cubin, never PTX: PTX of an NVRTC newer than the driver is refused, machine code of the same CUDA major is not.
The sources include nothing, so no CUDA headers are needed.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib
import os
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any

from egmctl.driver.cuda import bindings, call
from egmctl.errors import EgmctlError
from egmctl.files import make_folder
from egmctl.gpu.context import Context
from egmctl.gpu.release import ReleaseStack

INSTALL_NVRTC = "pip install 'egmctl[cu13]'"
"""What brings NVRTC, for messages (``cu12`` on drivers for CUDA 12)."""

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_103", "sm_120")
"""Every kernel is compiled for these in the tests: A100, H100/H200/GH200, B200/GB200, B300/GB300, RTX Blackwell."""

_OPTIONS = ("--std=c++17",)

_ADDRESS, _U64 = ctypes.c_void_p, ctypes.c_ulonglong
KERNELS: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    "atomic.cu": {"add_ones": (_ADDRESS, _U64, _U64, _U64), "verify_counts": (_ADDRESS, _U64, _U64, _U64, _ADDRESS)},
    "atomic_latency.cu": {"add_in_turn": (_ADDRESS, _U64, _U64, _U64, _ADDRESS)},
    "bulk.cu": {"copy_bulk": (_ADDRESS, _ADDRESS, _U64, _U64, _U64)},
    "chase.cu": {
        "make_chain": (_ADDRESS, _U64, _U64, _U64),
        "chase": (_ADDRESS, _U64, _U64, _U64, _U64, _ADDRESS),
        "chase_loaded": (_ADDRESS, _U64, _U64, _U64, _ADDRESS, _U64, _U64, _ADDRESS),
    },
    "copy.cu": {
        "copy_vectors": (_ADDRESS, _ADDRESS, _U64, _U64, _U64),
        "sum_vectors": (_ADDRESS, _U64, _U64, _U64, _ADDRESS),
    },
    "gate.cu": {"gate": (_ADDRESS, _ADDRESS, _U64)},
    "pattern.cu": {
        "fill_pattern": (_ADDRESS, _U64, _U64, _U64, _U64),
        "verify_pattern": (_ADDRESS, _U64, _U64, _ADDRESS),
        "sum_pattern": (_U64, _U64, _U64, _ADDRESS),
    },
    "pingpong.cu": {"ping_pong": (_ADDRESS, _ADDRESS, _U64, _U64, _U64, _ADDRESS)},
}
"""The sources in ``kernels/``, the kernels in each, and their parameters as the source states them."""

SHARED_BYTES: Mapping[str, int] = {"copy_bulk": 6 * 16384 + 128}
"""Dynamic shared memory of the kernels that have any. Above 48 KiB a kernel must be allowed it by an attribute."""


class Kernels:
    """All kernels, loaded into one GPU's context.

    They are loaded before anything is timed: a kernel that the driver loads lazily waits for the GPU to be idle, and
    behind a closed gate it never is. The worker also sets CUDA_MODULE_LOADING=EAGER for that reason.

    Raises
    ------
    NoCompiler
        If the kernels cannot be compiled here and are not on disk.
    CompileError
        If NVRTC rejects a source.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        context.make_current()
        self._functions: dict[str, tuple[Any, tuple[type, ...]]] = {}
        with ReleaseStack() as undo:
            for source, kernels in KERNELS.items():
                module = call("cuModuleLoadData", _compiled(source, context.architecture))
                undo.callback(call, "cuModuleUnload", module)
                for name, parameters in kernels.items():
                    function = call("cuModuleGetFunction", module, name.encode())
                    if name in SHARED_BYTES and int(context.architecture.removeprefix("sm_")) >= 90:
                        attribute = bindings().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                        call("cuFuncSetAttribute", function, attribute, SHARED_BYTES[name])
                    self._functions[name] = function, parameters
            self._undo = undo.pop_all()

    def launch(self, name: str, stream: Any, grid: int, block: int, *arguments: int) -> None:
        """Queue a kernel.

        Parameters
        ----------
        stream
            The driver's stream.
        grid, block
            Blocks, and threads a block.
        *arguments
            Numbers and addresses, as the kernel's source states them.
        """
        self._context.make_current()
        function, parameters = self._functions[name]
        shared_bytes = SHARED_BYTES.get(name, 0)
        call("cuLaunchKernel", function, grid, 1, 1, block, 1, 1, shared_bytes, stream, (arguments, parameters), 0)

    def close(self) -> None:
        """Unload the modules."""
        self._context.make_current()
        self._undo.close()


class NoCompiler(EgmctlError):
    """Kernels cannot be compiled on this machine; the message says why and what to install."""

    code = "no-compiler"


class CompileError(EgmctlError):
    """NVRTC rejected one of our own sources; the message holds its log."""

    code = "compile"


def load_compiler() -> None:
    """Load NVRTC, if it is there and may be needed; whoever asks for it later need not wait.

    The first compilation of a process loads another large file: half a second where a kernel takes a hundredth.
    """
    if _shipped().is_dir():
        return
    with suppress(NoCompiler):
        nvrtc_version()
        folder = _cache_folder()
        if folder is None or not any(folder.iterdir()):
            compile_source("nothing", b"", ARCHITECTURES[0])


def compile_ahead(architectures: Iterable[str]) -> None:
    """Begin to compile all kernels in threads; :class:`Kernels` waits for what it needs of them."""
    threads = ThreadPoolExecutor(thread_name_prefix="compile")
    for architecture in architectures:
        for source in KERNELS:
            _under_way[source, architecture] = threads.submit(cubin, source, architecture)
    threads.shutdown(wait=False)


_under_way: dict[tuple[str, str], Future[bytes]] = {}


def _compiled(source: str, architecture: str) -> bytes:
    begun = _under_way.get((source, architecture))
    return cubin(source, architecture) if begun is None else begun.result()


def cubin(source: str, architecture: str) -> bytes:
    """Return one source as a cubin: one that ships, of the disk cache, or compiled now.

    Parameters
    ----------
    source
        File name among :data:`KERNELS`.
    architecture
        ``sm_90`` and so on.
    """
    text = (_folder() / source).read_bytes()
    with suppress(OSError):
        shipped: bytes = (_shipped() / _shipped_name(text, architecture)).read_bytes()
        return shipped
    version = nvrtc_version()
    identity = "\n".join((f"NVRTC {version[0]}.{version[1]}", architecture, *_OPTIONS, ""))
    key = hashlib.sha256(identity.encode() + text).hexdigest()
    folder = _cache_folder()
    if folder is not None:
        with suppress(OSError):
            return (folder / f"{key}.cubin").read_bytes()
    compiled = compile_source(source, text, architecture)
    if folder is not None:
        _keep(folder / f"{key}.cubin", compiled)
    return compiled


def compile_all(target: Path) -> None:
    """Write every kernel for all :data:`ARCHITECTURES` into a folder, as `cubin` reads what ships; needs NVRTC."""
    target.mkdir()
    for source in KERNELS:
        text = (_folder() / source).read_bytes()
        for architecture in ARCHITECTURES:
            (target / _shipped_name(text, architecture)).write_bytes(compile_source(source, text, architecture))


def compile_source(source: str, text: bytes, architecture: str) -> bytes:
    """Compile CUDA C++ that includes nothing to a cubin; needs NVRTC but neither a driver nor a GPU."""
    supported = _nvrtc("nvrtcGetSupportedArchs")
    if int(architecture.removeprefix("sm_")) not in supported:
        raise NoCompiler(
            f"NVRTC {'.'.join(map(str, nvrtc_version()))} cannot compile for {architecture}: a newer one is needed"
        )
    program = _nvrtc("nvrtcCreateProgram", text, source.encode(), 0, [], [])
    try:
        options = [f"--gpu-architecture={architecture}".encode(), *(option.encode() for option in _OPTIONS)]
        (result,) = _bindings().nvrtcCompileProgram(program, len(options), options)
        if result != 0:
            log = bytearray(_nvrtc("nvrtcGetProgramLogSize", program))
            _nvrtc("nvrtcGetProgramLog", program, log)
            raise CompileError(f"{source} for {architecture}: {result.name}\n{log.rstrip(bytes(1)).decode()}")
        compiled = bytearray(_nvrtc("nvrtcGetCUBINSize", program))
        _nvrtc("nvrtcGetCUBIN", program, compiled)
        return bytes(compiled)
    finally:
        _nvrtc("nvrtcDestroyProgram", program)


@functools.cache
def nvrtc_version() -> tuple[int, int]:
    """Return NVRTC's version.

    Raises
    ------
    NoCompiler
        If NVRTC is not installed, or EGMCTL_NO_NVRTC is set (a test seam: behave as if it were not).
    """
    if os.environ.get("EGMCTL_NO_NVRTC"):
        raise NoCompiler(f"EGMCTL_NO_NVRTC is set: kernels need NVRTC ({INSTALL_NVRTC})")
    try:
        major, minor = _nvrtc("nvrtcVersion")
    except RuntimeError as error:
        # The bindings raise a RuntimeError of a class that depends on their version where the library is missing.
        raise NoCompiler(f"kernels need NVRTC, which is not installed: {INSTALL_NVRTC}") from error
    return major, minor


def _folder() -> Any:
    return resources.files("egmctl.gpu") / "kernels"


def _shipped() -> Any:
    """Return where compiled kernels are in what ``make dist`` builds; elsewhere it does not exist."""
    return _folder() / "compiled"


def _shipped_name(text: bytes, architecture: str) -> str:
    identity = "\n".join((architecture, *_OPTIONS, "")).encode()
    return f"{hashlib.sha256(identity + text).hexdigest()}.cubin"


def _bindings() -> Any:
    return importlib.import_module("cuda.bindings.nvrtc")


def _nvrtc(name: str, *arguments: Any) -> Any:
    result, *values = getattr(_bindings(), name)(*arguments)
    if result != 0:
        raise CompileError(f"{name} failed: {result.name}")
    return values[0] if len(values) == 1 else tuple(values)


def _cache_folder() -> Path | None:
    """Return the folder of compiled kernels, ``None`` where there is none to be trusted.

    What is read from it runs on the GPU: a folder that belongs to someone else, or that others may write to, is
    passed over. So is a missing HOME.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.environ.get("HOME", ""), ".cache")
    if not os.path.isabs(base):
        return None
    folder = Path(base, "egmctl")
    try:
        make_folder(folder)
        status = folder.stat()
    except OSError:
        return None
    return folder if status.st_uid == os.geteuid() and not status.st_mode & 0o022 else None


def _keep(path: Path, content: bytes) -> None:
    """Write a file whole; a cache that cannot be written is no error."""
    with suppress(OSError), tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        try:
            file.write(content)
            file.close()
            os.replace(file.name, path)
        except OSError:
            os.unlink(file.name)
            raise
