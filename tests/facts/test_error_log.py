"""Errors of CUDA and NVML in any text: how each source writes them, bounded whatever the text is."""

from __future__ import annotations

import io
import tracemalloc

import pytest

from egmctl.facts.error_log import BLOCK, read_failures
from egmctl.model.explanation import ErrorLog, Failure, Library

CUDA_LOG = "[03:06:38.965][139710266687808][CUDA][E] "


def read(*lines: str) -> ErrorLog:
    return read_failures(io.BytesIO("".join(f"{line}\n" for line in lines).encode()))


def stated(*lines: str) -> list[tuple[Library, str | None, int | None]]:
    return [(failure.library, failure.call, failure.number) for failure in read(*lines).failures]


# The messages are those of public issue threads, named in signatures.toml; hosts and paths are shortened.
MESSAGES = [
    ("RuntimeError: CUDA error: operation not permitted", None, 800),
    ("RuntimeError: CUDA error: out of memory", None, 2),
    ("RuntimeError: CUDA driver error: unknown error", None, 999),
    ("cudaGetDeviceCount(). Error 803: system has unsupported display driver", "cudaGetDeviceCount", 803),
    ("cuda runtime error (802) : system not yet initialized at THCGeneral.cpp:50", None, 802),
    ("init.cc:598 NCCL WARN Cuda failure 1 'invalid argument'", None, 1),
    ("NCCL WARN Cuda failure 'operation not permitted'", None, 800),
    ("failed to open CUDA IPC handle : 217 peer access is not supported between these two devices", None, 217),
    ("Multicast memory of size 2097152 : CUDA error 401 'the operation cannot be performed", None, 401),
    ("cuda_ipc_cache.c:284 UCX  ERROR cuIpcOpenMemHandle() failed: invalid device context", "cuIpcOpenMemHandle", 201),
    ("UCX ERROR cudaHostRegister(address, length, 0x01) is failed. ret:invalid argument", "cudaHostRegister", 1),
    ("[CUDA_ERROR_NOT_PERMITTED] operation not permitted in expression cuMemCreate(&h, size)", "cuMemCreate", 800),
    ("NvlinkTransport: cuMemCreate failed: 800", "cuMemCreate", 800),
    ("Program hit CUDA_ERROR_NOT_PERMITTED (error 800) on CUDA API call to cuMemCreate.", "cuMemCreate", 800),
    ("call='cuMemCreate(&handle, size, &prop, 0)' Reason=operation not permitted.", "cuMemCreate", 800),
    ("failed call to cuInit: CUDA_ERROR_UNKNOWN: unknown error", "cuInit", 999),
    ('CUDA error at x.cu:256 code=802(cudaErrorSystemNotReady) "cudaSetDevice(device)"', "cudaSetDevice", 802),
    ("Check failed: e == cudaSuccess (804 vs. 0) : forward compatibility was attempted on non supported HW", None, 804),
    ("CUDA error 304 at ggml-cuda.cu:5065: OS call failed or operation not supported on this OS", None, 304),
    ("Unable to map CUDA IPC memory for shared array map, error=201", None, 201),
    (f"{CUDA_LOG}Returning 800 (CUDA_ERROR_NOT_PERMITTED) from cuMemCreate", "cuMemCreate", 800),
    ("[22:21:32.099][25642][CUDA][E][cuLogsDumpToMemory] buffer cannot be NULL", "cuLogsDumpToMemory", None),
    # The date at the beginning of a line of vLLM's log is no number of an error.
    ("ERROR 09-30 01:24:08 [executor.py:597] RuntimeError: CUDA driver error: invalid argument", None, 1),
]


@pytest.mark.parametrize(("line", "call", "number"), MESSAGES)
def test_an_error_is_found_as_each_source_writes_it(line: str, call: str | None, number: int | None) -> None:
    assert stated(line) == [(Library.CUDA, call, number)]


@pytest.mark.parametrize(
    ("line", "library", "number"),
    [
        ("nvmlInit failed: Driver/library version mismatch", Library.NVML, 18),
        ("nvmlInit failed: Unknown Error", Library.NVML, 999),
        ("pynvml.NVMLError_DriverNotLoaded: Driver Not Loaded", Library.NVML, 9),
        ("nvmlInit_v2() failed: NVML_ERROR_GPU_IS_LOST", Library.NVML, 15),
        ("[ 12.3] NVRM: Xid (PCI:0000:00:06): 31, pid=2228, name=python3, MMU Fault", Library.XID, 31),
    ],
)
def test_errors_of_nvml_and_xids_are_found(line: str, library: Library, number: int) -> None:
    ((found_library, _, found_number),) = stated(line)
    assert (found_library, found_number) == (library, number)


@pytest.mark.parametrize(
    "line",
    [
        "loss 0.31 cuda:0 epoch 3 hits 12",
        "CUDA kernel errors might be asynchronously reported at some other API call.",
        "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
        "using cuda (12 threads), no errors",
        "NCCL INFO cudaDriverVersion 12000",
        "cuda error rate 2.5 %, error: 3.1",
        "bash: fork: out of memory",
        f"{CUDA_LOG}cudaVersion argument (13030) exceeds the driver version (13000)",
        f"{CUDA_LOG}Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuGetProcAddress_v2",
        f"{CUDA_LOG}Returning 600 (CUDA_ERROR_NOT_READY) from cuStreamQuery",
        "NVRM: Xid (garbage): x",
    ],
)
def test_what_is_no_error_of_cuda_is_none(line: str) -> None:
    assert stated(line) == []


def test_each_kind_is_told_once_with_its_first_line_and_their_number() -> None:
    line = "x: cuMemCreate failed: 800"
    (failure,) = read("start", line, "y: cuMemCreate failed: 800").failures
    assert (failure.line, failure.line_number, failure.count) == (line, 2, 2)


def test_what_a_framework_repeats_without_the_call_is_the_drivers_error() -> None:
    lines = (
        f"{CUDA_LOG}Returning 800 (CUDA_ERROR_NOT_PERMITTED) from cuMemCreate",
        "RuntimeError: CUDA error: operation not permitted",
        "RuntimeError: CUDA error: invalid argument",
    )
    assert stated(*lines) == [(Library.CUDA, "cuMemCreate", 800), (Library.CUDA, None, 1)]


def test_functions_of_runtime_and_driver_are_one_kind() -> None:
    assert len(stated("cudaMalloc failed: 2", "cuMemAlloc_v2 failed: 2")) == 1


def test_the_drivers_reason_is_that_of_the_same_thread() -> None:
    (failure,) = read(
        "[1:2][7][CUDA][E] Requested size not aligned",
        "[1:2][8][CUDA][E] something of another thread",
        "[1:2][7][CUDA][E] Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuMemCreate",
    ).failures
    assert failure.log == "Requested size not aligned"


def test_a_message_that_the_driver_cut_has_no_end_of_line_and_is_no_reason_of_the_next_call() -> None:
    cut = "[1:2][7][CUDA][E] Kernel (_Z9another) cannot be found in library, use the CU_JIT_ERROR_LOG_"
    failures = read(
        f"{cut}[1:2][7][CUDA][E] Returning 209 (CUDA_ERROR_NO_BINARY_FOR_GPU) from cuLibraryGetKernel",
        "[1:2][7][CUDA][E] Returning 101 (CUDA_ERROR_INVALID_DEVICE) from cuMemImportFromShareableHandle",
    ).failures
    assert [(failure.number, failure.log) for failure in failures] == [(209, cut.partition("[E] ")[2]), (101, "")]


def test_kernels_that_nccl_can_do_without_are_no_failure() -> None:
    """Copied from the log of NCCL 2.28.9 on an H200, driver 580.159.04."""
    (failure,) = read(
        "[16:45:42.803][7][CUDA][E] Kernel (_Z47ncclSymkDevKernel_ReduceScatter_LDMC_sum_f8e5m221ncclSymkDevWorkArgs4K)"
        " cannot be found in library due to compilation error, to get more information when using CUDA Driver APIs use"
        " the CU_JIT_ERROR_LOG_[16:45:42.803][7][CUDA][E] Returning 209 (CUDA_ERROR_NO_BINARY_FOR_GPU) from cuLibrary",
        "[16:45:42.952][7][CUDA][E] Returning 101 (CUDA_ERROR_INVALID_DEVICE) from cuMemImportFromShareableHandle",
    ).failures
    assert (failure.call, failure.number, failure.log) == ("cuMemImportFromShareableHandle", 101, "")


def test_many_kinds_are_counted_not_kept() -> None:
    log = read(*(f"cuFunction{number}A failed: 1" for number in range(60)))
    assert (len(log.failures), log.left_out, log.lines) == (50, 10, 60)


def test_hostile_text_is_cut_and_kept_as_data() -> None:
    lines = (b"\xff\x1b[2J CUDA error: operation not permitted " + b"x" * 5000, b"\0" * 9000 + b"cuda", b"cuda" * 9000)
    (failure,) = read_failures(io.BytesIO(b"\n".join(lines))).failures
    assert isinstance(failure, Failure)
    assert len(failure.line) == 300


class Large(io.RawIOBase):
    """200 MB of text, made as it is read: a line of CUDA's log from ever another thread, then 10 MB without newline."""

    SIZE = 200_000_000
    LINE = 10_000_000

    def __init__(self) -> None:
        self.given = 0

    def read1(self, size: int) -> bytes:
        if self.given >= self.SIZE:
            return b""
        if self.given % self.LINE == 0:
            part = b"\n[1:2][%d][CUDA][E] %s\n" % (self.given, b"r" * 5000)
        else:
            part = b"cuda" + b"y" * (size - 4)
        self.given = min(self.given + len(part), (self.given // self.LINE + 1) * self.LINE)
        return part


def test_the_messages_of_many_threads_are_not_kept() -> None:
    text = b"".join(b"[1:2][%d][CUDA][E] %s\n" % (thread, b"r" * 200) for thread in range(50_000))
    assert peak_bytes(io.BytesIO(text)) < 8 * BLOCK


def peak_bytes(stream: io.RawIOBase | io.BytesIO) -> int:
    """Return the most memory that reading a text takes at once."""
    read("cuMemCreate failed: 800")
    tracemalloc.start()
    try:
        assert read_failures(stream).failures == ()  # type: ignore[arg-type]
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.long
def test_two_hundred_megabytes_are_read_in_constant_memory() -> None:
    text = Large()
    assert peak_bytes(text) < 8 * BLOCK
    assert text.given >= Large.SIZE


def found(text: str) -> list[str]:
    """The entries of messages that are found in a text."""
    return [failure.message for failure in read_failures(io.BytesIO(text.encode())).failures if failure.message]


def test_a_long_line_is_looked_at_in_few_places() -> None:
    """Quadratic time, or a look at each place, would take minutes."""
    log = read_failures(io.BytesIO(b"cuda error failed x ab_cd " * 400_000))
    assert log.lines == 1


def test_a_message_is_found_within_a_long_line() -> None:
    line = "x" * 3_000_000 + " NVRM: GPU 0000:5f:00.0: GPU has fallen off the bus. " + "y" * 3_000_000
    assert found(line) == ["fell-off"]


def test_lines_of_the_kernel_driver_that_belong_together_are_joined() -> None:
    text = (
        "[1.0] NVRM: The NVIDIA GPU 0000:1b:00.0 (PCI ID: 10de:2901)\n"
        "[1.0] NVRM: installed in this system requires use of the NVIDIA\n"
        "[1.0] NVRM: open kernel modules.\n"
    )
    assert found(text) == ["open-modules-required"]


def test_a_message_has_the_lines_that_continue_it() -> None:
    text = (
        "NVRM: API mismatch: the client 'python3' (pid 4711)\n"
        "NVRM: has the version 570.124.04, but this kernel module has\n"
        "NVRM: the version 570.124.06.\n"
    )
    (failure,) = read_failures(io.BytesIO(text.encode())).failures
    assert "570.124.04, but this kernel module has the version 570.124.06" in failure.line


def test_a_short_text_may_be_wrapped() -> None:
    text = "Unable to determine the device handle for GPU0000:A1:00.0: Unknown\n  Error\n"
    assert found(text) == ["smi-device-handle"]


@pytest.mark.parametrize("width", [60, 80, 132])
def test_a_terminal_may_have_broken_the_lines_of_a_short_text_within_words(width: int) -> None:
    line = "node1:1:1 [0] misc/ibvwrap.cc:187 NCCL WARN Call to ibv_modify_qp failed with error Network is unreachable"
    after = "node1:1:1 [0] NCCL INFO transport/net_ib.cc:579 -> 2"
    broken = [each[i : i + width] for each in (line, after) for i in range(0, len(each), width)]
    assert found("\n".join(broken)) == ["nccl-qp-unreachable"]


def test_a_paste_may_have_the_quotation_marks_of_prose() -> None:
    line = "mkdir: cannot create directory \u2018/run/enroot\u2019: Permission denied"
    assert found(line) == ["enroot-folders"]
    assert found("exec: \u201cnvidia-smi\u201d: executable file not found in $PATH") == ["exec-nvidia-smi"]


@pytest.mark.parametrize(
    ("text", "number"),
    [("Xid 79", 79), ("xid: XID 31 seen", 31), ("Xid (PCI:0000:09:00): 48, pid=1", 48), ("gpu event Xid=94", 94)],
)
def test_a_short_xid_is_one(text: str, number: int) -> None:
    assert stated(text) == [(Library.XID, None, number)]


@pytest.mark.parametrize(
    ("line", "number"),
    [
        ("NVRM: Xid (PCI:...): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 11 (...)", 145),
        ("kernel: NVRM: Xid (PCI:XXXX:XX:XX): 79, GPU has fallen off the bus.", 79),
        ("NVRM: Xid: 154, GPU recovery action changed to 0x2 (Node Reboot Required)", 154),
    ],
)
def test_an_xid_whose_address_was_left_out_is_one(line: str, number: int) -> None:
    assert stated(line) == [(Library.XID, None, number)]


def test_a_name_that_looks_like_an_xid_is_none() -> None:
    line = "NVRM: Xid (PCI:0000:0a:00): 13, pid=7, name=Xid (PCI:x): 79, Graphics SM Exception"
    assert stated(line) == [(Library.XID, None, 13)]


def test_the_device_plugins_line_about_an_xid_is_both() -> None:
    failures = read("XidCriticalError: Xid=69 on Device=GPU-1f2e, the device will go unhealthy.").failures
    assert [each.message or each.number for each in failures] == ["plugin-critical-xid", 69]


def test_older_words_of_cuda_are_the_same_error() -> None:
    line = "Error selecting compatible GPU all CUDA-capable devices are busy or unavailable"
    assert stated(line) == [(Library.CUDA, None, 46)]


def test_an_sxid_has_its_number_and_whether_it_is_fatal() -> None:
    switch = "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): "
    fatal, other = read(f"{switch}20034, Fatal, Link 30 LTSSM Fault Up", f"{switch}12028, Non-fatal, Link 1").failures
    assert (fatal.message, fatal.number) == ("sxid", 20034)
    assert (other.message, other.number) == ("sxid-non-fatal", 12028)


def test_a_grave_line_after_many_kinds_is_kept() -> None:
    lines = [f"cuFunction{number}A failed: 1" for number in range(60)]
    log = read(*lines, "NVRM: GPU 0000:5f:00.0: GPU has fallen off the bus.")
    assert "fell-off" in [failure.message for failure in log.failures]
    assert (len(log.failures), log.left_out) == (50, 11)


def test_a_bare_error_beside_the_message_that_says_what_failed_is_its_echo() -> None:
    assert stated(
        "transport/nvls.cc:244 NCCL WARN Cuda failure 1 'invalid argument'", "CUDA error: invalid argument"
    ) == [(Library.MESSAGE, None, None)]


@pytest.mark.parametrize(("free", "entry"), [("66.43 GiB", "torch-oom-but-free"), ("1.20 GiB", "torch-oom")])
def test_out_of_memory_is_believed_only_if_less_is_free_than_was_asked_for(free: str, entry: str) -> None:
    text = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 7 has a total capacity of 79.11 GiB of which "
    assert found(f"{text}{free} is free.") == [entry]


def test_a_function_of_cupy_is_the_runtimes() -> None:
    lines = (
        'File "api/runtime.pyx", line 461, in cupy_backends.cuda.api.runtime.ipcGetMemHandle',
        'File "api/runtime.pyx", line 146, in cupy_backends.cuda.api.runtime.check_status',
        "cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorInvalidValue: invalid argument",
    )
    assert stated(*lines) == [(Library.CUDA, "cudaIpcGetMemHandle", 1)]


def test_an_interrupt_gives_what_was_found_so_far() -> None:
    class Interrupted(io.BytesIO):
        def read1(self, size: int | None = -1, /) -> bytes:
            if not (part := super().read1(size)):
                raise KeyboardInterrupt
            return part

    log = read_failures(Interrupted(b"cuMemCreate failed: 800\n"))
    assert (len(log.failures), log.interrupted) == (1, True)


def test_of_a_consequence_the_driver_names_the_xid_that_caused_it() -> None:
    after = "NVRM: Xid (PCI:0000:dc:00): 45, pid=18, name=python3, Ch 00000001 caused by previous Xid 149"
    alone = "NVRM: Xid (PCI:0000:dc:00): 45, pid=18, name=python3, Ch 00000001"
    assert stated(after) == [(Library.XID, None, 149)]
    assert stated(alone) == [(Library.XID, None, 45)]


@pytest.mark.parametrize(
    ("line", "devices"),
    [
        ("NVRM: Xid (PCI:0000:DC:00): 79, GPU has fallen off the bus.", ("0000:dc:00",)),
        ("NVRM: GPU6 _kgspIsHeartbeatTimedOut: Heartbeat timed out", ("GPU 6",)),
        ("due to thermal violation in GPU 2. Verify that the cooling is functional", ("GPU 2",)),
        ("NVRM: GPU 0000:02:00.0: RmInitAdapter failed! (0x22:0x56:1017)", ("0000:02:00",)),
        ("2026-11-27 10:45:38 CUDA error: out of memory on gpu1", ()),
    ],
)
def test_a_failure_has_the_gpus_that_its_line_names(line: str, devices: tuple[str, ...]) -> None:
    (failure,) = read(line).failures
    assert failure.devices == devices


def test_the_gpus_of_all_lines_are_kept_up_to_eight() -> None:
    lines = [f"NVRM: Xid (PCI:0000:{bus:02x}:00): 79, GPU has fallen off the bus." for bus in range(12)]
    (failure,) = read(*lines).failures
    assert failure.count == 12
    assert failure.devices == tuple(f"0000:{bus:02x}:00" for bus in range(8))


@pytest.mark.parametrize(
    ("line", "purposes"),
    [
        ("node1:1:1 [0] NCCL INFO Bootstrap: Using eth0", ("p2p", "ipc")),
        ("nvidia-imex: [INFO] IMEX version 570.00 is running", ("fabric",)),
        ("[1652739463.05] [node1:4:0] ucp_worker.c:1855 UCX INFO ep_cfg[0]: tag(self/memory)", ("rdma",)),
        ("the EGM size of socket 0", ("egm",)),
        ("a text about nothing", ()),
    ],
)
def test_a_text_without_failures_says_what_it_is_about(line: str, purposes: tuple[str, ...]) -> None:
    assert read(line).failures == ()
    assert read(line).purposes == purposes


def test_the_end_of_a_long_text_says_too_what_it_is_about() -> None:
    lines = ["nothing of interest"] * 100_000
    assert read(*lines, "node1:1:1 [0] NCCL INFO Using network IB").purposes == ("p2p", "ipc")
    assert read("the EGM size", *lines).purposes == ("egm",)
