"""The project's kernels, read from a cache or compiled by NVRTC, and loaded. ``make dist`` ships a filled cache.

GPUs get machine code: the driver refuses PTX of a newer NVRTC but accepts machine code of the same CUDA major version.
Only a GPU newer than all of :data:`ARCHITECTURES` gets PTX. The sources include nothing and need no CUDA headers.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from egmctl.driver.cuda import bindings, bindings_version, call
from egmctl.errors import DriverCallError, EgmctlError
from egmctl.files import make_folder, write_whole
from egmctl.gpu.context import Context, Resource

INSTALL_NVRTC = "pip install 'egmctl[cu13]'"
"""The command that installs NVRTC, for messages (``cu12`` on drivers for CUDA 12)."""

ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_103", "sm_120")
"""The precompiled architectures, oldest first: A100, H100/H200/GH200, B200/GB200, B300/GB300, RTX Blackwell."""

NEWEST_PTX = "compute_120"
"""The PTX target for the newest of :data:`ARCHITECTURES`, which the driver compiles for newer GPUs."""

_SOURCES = Path(__file__).parent / "kernels"
SHIPPED = _SOURCES / "compiled"
"""The cache that ``make dist`` fills. A wheel has none."""

_OPTIONS = ("--std=c++17",)

KERNELS: Mapping[str, Mapping[str, int]] = {
    "atomic.cu": {"add_ones": 4, "verify_counts": 5},
    "atomic_latency.cu": {"add_in_turn": 5},
    "bulk.cu": {"copy_bulk": 5, "chase_bulk": 6},
    "chase.cu": {"make_chain": 4, "chase": 6, "chase_loaded": 8},
    "copy.cu": {"copy_vectors": 5, "sum_vectors": 5},
    "gate.cu": {"gate": 3},
    "pattern.cu": {"fill_pattern": 5, "verify_pattern": 4, "sum_pattern": 4},
    "pingpong.cu": {"ping_pong": 6},
}
"""The number of parameters (addresses and 64-bit numbers) of each kernel, by source file in ``kernels/``."""

SHARED_BYTES: Mapping[str, int] = {"copy_bulk": 6 * 16384 + 128}
"""The bytes of dynamic shared memory of the kernels that use any. More than 48 KiB must be enabled by an attribute."""


class Kernels(Resource):
    """All kernels, loaded into one GPU's context.

    They are loaded before anything is timed. Lazy loading of a kernel waits until the GPU is idle, which never happens
    behind a closed gate. For the same reason the worker sets CUDA_MODULE_LOADING=EAGER.

    Raises
    ------
    NoKernels
        The kernels for this GPU are not in the cache and cannot be compiled.
    CompileError
        NVRTC rejects a source.
    """

    def __init__(self, context: Context) -> None:
        self._functions: dict[str, tuple[Any, tuple[type[ctypes.c_ulonglong], ...]]] = {}
        with self._made_on(context) as undo:
            for source, kernels in KERNELS.items():
                module = _load(source, context.architecture)
                undo.callback(call, "cuModuleUnload", module)
                for name, parameters in kernels.items():
                    function = call("cuModuleGetFunction", module, name.encode())
                    if name in SHARED_BYTES and int(context.architecture.removeprefix("sm_")) >= 90:
                        attribute = bindings().CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                        call("cuFuncSetAttribute", function, attribute, SHARED_BYTES[name])
                    self._functions[name] = function, (ctypes.c_ulonglong,) * parameters

    def launch(self, name: str, stream: Any, grid: int, block: int, *arguments: int) -> None:
        """Queue a kernel.

        Parameters
        ----------
        stream
            The driver's stream handle.
        grid, block
            The number of blocks, and of threads per block.
        *arguments
            Numbers and addresses, as the kernel's source documents them.
        """
        self._make_current()
        function, kinds = self._functions[name]
        shared_bytes = SHARED_BYTES.get(name, 0)
        call("cuLaunchKernel", function, grid, 1, 1, block, 1, 1, shared_bytes, stream, (arguments, kinds), 0)


class NoKernels(EgmctlError):
    """There are no kernels for a GPU. The message gives the reason and what to install."""

    code = "no-kernels"


class CompileError(EgmctlError):
    """A call of NVRTC failed. If NVRTC rejected a source, the message contains its log."""

    code = "compile"


def compile_ahead(architectures: Iterable[str]) -> None:
    """Start threads that read or compile all kernels. :class:`Kernels` waits for those that it needs."""
    threads = ThreadPoolExecutor(thread_name_prefix="compile")
    for target in {target_of(architecture) for architecture in architectures}:
        for source in KERNELS:
            _under_way[source, target] = threads.submit(compiled, source, target)
    threads.shutdown(wait=False)


_under_way: dict[tuple[str, str], Future[bytes]] = {}


def _load(source: str, architecture: str) -> Any:
    target = target_of(architecture)
    begun = _under_way.get((source, target))
    image = compiled(source, target) if begun is None else begun.result()
    try:
        return call("cuModuleLoadData", image)
    except DriverCallError as error:
        if target == NEWEST_PTX:
            sentence = f"this egmctl has no kernels for {architecture}, and the driver refuses to compile them: {error}"
            raise NoKernels(sentence) from error
        raise


def target_of(architecture: str) -> str:
    """Return the compilation target for a GPU: ``sm_90`` is machine code, ``compute_120`` is PTX.

    Machine code for X.y runs on every X.z with z >= y ("Binary Compatibility", CUDA C++ Programming Guide).
    """
    number = _number(architecture)
    if number // 10 > _number(ARCHITECTURES[-1]) // 10:
        return NEWEST_PTX
    older = [name for name in ARCHITECTURES if number // 10 * 10 <= _number(name) <= number]
    return older[-1] if older else architecture


def compiled(source: str, target: str) -> bytes:
    """Return a compiled source from the shipped cache, the user's cache, or NVRTC, whose result the latter stores.

    Parameters
    ----------
    source
        A key of :data:`KERNELS`.
    target
        The result of :func:`target_of`.
    """
    text = (_SOURCES / source).read_bytes()
    name = _name(text, target)
    own = _cache_folder()
    for folder in filter(None, (SHIPPED, own)):
        with suppress(OSError):
            return (folder / name).read_bytes()
    image = compile_source(source, text, target)
    if own is not None:
        # A cache that cannot be written is no error.
        with suppress(EgmctlError):
            write_whole(own / name, image)
    return image


def compile_all(folder: Path) -> None:
    """Compile every source for all :data:`ARCHITECTURES` and :data:`NEWEST_PTX` into a new folder, to be shipped."""
    folder.mkdir()
    for source in KERNELS:
        text = (_SOURCES / source).read_bytes()
        for target in (*ARCHITECTURES, NEWEST_PTX):
            (folder / _name(text, target)).write_bytes(compile_source(source, text, target))


def compile_source(source: str, text: bytes, target: str) -> bytes:
    """Compile CUDA C++ without includes. Needs NVRTC, but neither a driver nor a GPU.

    Raises
    ------
    NoKernels
        NVRTC is not installed or does not support the target.
    CompileError
        NVRTC rejects the source.
    """
    if _number(target) not in _supported():
        version = ".".join(map(str, _nvrtc("nvrtcVersion")))
        raise NoKernels(f"NVRTC {version} cannot compile for {target}: a newer one is needed")
    program = _nvrtc("nvrtcCreateProgram", text, source.encode(), 0, [], [])
    try:
        options = [f"--gpu-architecture={target}".encode(), *(option.encode() for option in _OPTIONS)]
        try:
            _nvrtc("nvrtcCompileProgram", program, len(options), options)
        except CompileError as error:
            log = bytearray(_nvrtc("nvrtcGetProgramLogSize", program))
            _nvrtc("nvrtcGetProgramLog", program, log)
            raise CompileError(f"{source} for {target}: {error}\n{log.rstrip(bytes(1)).decode()}") from error
        form = "PTX" if target == NEWEST_PTX else "CUBIN"
        image = bytearray(_nvrtc(f"nvrtcGet{form}Size", program))
        _nvrtc(f"nvrtcGet{form}", program, image)
        return bytes(image)
    finally:
        _nvrtc("nvrtcDestroyProgram", program)


def _supported() -> list[int]:
    """Return the numbers of the architectures that NVRTC supports.

    With EGMCTL_NO_NVRTC set (for tests), NVRTC appears as not installed.
    """
    missing = f"kernels for this GPU are not in the cache, and NVRTC is not installed: {INSTALL_NVRTC}"
    if os.environ.get("EGMCTL_NO_NVRTC"):
        raise NoKernels(missing)
    try:
        numbers: list[int] = _nvrtc("nvrtcGetSupportedArchs")
    except RuntimeError as error:
        # The bindings raise a RuntimeError if the library is missing; its class depends on their version.
        raise NoKernels(missing) from error
    return numbers


def _number(target: str) -> int:
    return int(target.partition("_")[2])


def _name(text: bytes, target: str) -> str:
    """Return the file name of a compiled source in a cache.

    The name depends on the CUDA major version, because the driver may refuse machine code of a newer one.
    """
    identity = "\n".join((f"CUDA {bindings_version().partition('.')[0]}", target, *_OPTIONS, ""))
    return f"{hashlib.sha256(identity.encode() + text).hexdigest()}.{'ptx' if target == NEWEST_PTX else 'cubin'}"


def _nvrtc(name: str, *arguments: Any) -> Any:
    result, *values = getattr(importlib.import_module("cuda.bindings.nvrtc"), name)(*arguments)
    if result != 0:
        raise CompileError(f"{name} failed: {result.name}")
    return values[0] if len(values) == 1 else tuple(values)


def _cache_folder() -> Path | None:
    """Return the user's cache folder of compiled kernels, created if missing; ``None`` if none can be trusted.

    Its content runs on the GPU, so a folder that another user owns or can write to is not used, nor is a relative path.
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
