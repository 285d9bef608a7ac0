"""The table of messages: each entry is found by its example, whatever varies in it, and by nothing that is no error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egmctl.doctor.runner import CHECKS
from egmctl.driver import messages as module
from egmctl.driver.messages import KnownMessage, messages
from egmctl.errors import ExitCode
from egmctl.files import read_toml
from egmctl.model.explanation import Severity, Word
from egmctl.model.kernel_log import DriverMessage
from egmctl.report.kinds import Format
from tests.answers import render
from tests.handles.messages import explained, messages_of

ENTRIES = list(messages().entries.values())
IN_LOGS = [entry for entry in ENTRIES if not entry.is_field]
"""Those that may stand after a prefix. A report is printed as it is: "Reboot Pending : Yes" is no "Pending : Yes"."""
HARMFUL = re.compile(r"\b(reboot|power-cycle|replace|reset|restart|rmmod|reload)", re.IGNORECASE)


def expected(entry: KnownMessage) -> list[str]:
    """The messages of its example; an Xid that it repeats has none."""
    return [entry.id, ""] if entry.reports_xid else [entry.id]


def test_each_is_found_by_its_example_and_leads_alone() -> None:
    for entry in ENTRIES:
        result = explained(entry.example)
        assert messages_of(result) == expected(entry), entry.id
        if entry.severity is Severity.HARMLESS:
            assert (result.word, result.exit_code) == (Word.NO_FAULT, ExitCode.OK), entry.id
        else:
            assert result.word is (Word.CAUSE if entry.states else Word.POSSIBLE_CAUSE), entry.id
            assert result.leading is result.explanations[0], entry.id


def varied(text: str, number: int, host: str, folder: str) -> str:
    """The example with another host, time, bus id, address, path and source line."""
    text = re.sub(r"\b[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(\.\d)?\b", f"0000:{number % 256:02x}:00.0", text)
    text = re.sub(r"0x[0-9a-f]{5,}", f"0x{number:012x}", text)
    text = re.sub(r"/(home/user|workspace|sgl-workspace|Nvshmem|nvshmem)/", f"/{folder}/", text)
    text = re.sub(r"(\.(?:cc|cpp|cu|hpp|c|py)):(\d+)", lambda place: f"{place[1]}:{number}", text)
    text = re.sub(r"^\[ *\d+\.\d+\]", f"[{number}.123456]", text)
    return f"2026-11-27T10:00:{number % 60:02d}.123Z {host} {text}"


@settings(max_examples=4)
@given(
    number=st.integers(1, 99999),
    host=st.sampled_from(["node7", "gpu-a100-12", "ip-10-0-0-1"]),
    folder=st.sampled_from(["opt/x", "usr/src/y"]),
)
def test_each_is_found_with_other_numbers_paths_addresses_and_times(number: int, host: str, folder: str) -> None:
    for entry in IN_LOGS:
        result = explained(varied(entry.example, number, host, folder))
        assert messages_of(result) == expected(entry), entry.id


def test_each_says_what_to_do_and_where() -> None:
    ids = {check.id for check in CHECKS}
    for entry in ENTRIES:
        assert entry.source, entry.id
        assert entry.program, entry.id
        for cause in entry.causes:
            assert set(cause.checks) <= ids, entry.id
            assert cause.remedy.works_in, entry.id
            assert not cause.cause.endswith("."), entry.id
            assert cause.remedy.text.endswith("."), entry.id
            assert "sudo" not in (cause.remedy.run or ""), f"{entry.id}: what needs root is said in needs"


def test_a_warning_and_what_is_harmless_ends_no_work() -> None:
    for entry in ENTRIES:
        if entry.severity is Severity.HARMLESS:
            assert all(not HARMFUL.search(cause.remedy.text) for cause in entry.causes), entry.id


def test_a_reset_names_the_gpu() -> None:
    for entry in ENTRIES:
        for cause in entry.causes:
            run = cause.remedy.run or ""
            assert "--gpu-reset" not in run or "-i {gpus}" in run
            assert "nvidia-smi -r" not in cause.remedy.text


def test_each_message_that_doctor_reads_is_the_same_entry() -> None:
    doctor = {entry.doctor: entry for entry in ENTRIES if entry.doctor}
    assert set(doctor) == {message.name for message in DriverMessage}
    for message in DriverMessage:
        # The driver starts each line of a sentence with its name.
        assert message.value in " ".join(doctor[message.name].example.replace("\nNVRM:", "").split())


BOOT = """
[    4.1] nvidia: loading out-of-tree module taints kernel.
[    4.1] nvidia: module verification failed: signature and/or required key missing - tainting kernel
[    4.2] nvidia-nvlink: Nvlink Core is being initialized, major device number 234
[    4.3] nvidia 0000:1b:00.0: enabling device (0140 -> 0142)
[    4.4] NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build
[    4.9] nvidia-modeset: Loading NVIDIA UNIX Open Kernel Mode Setting Driver for x86_64  580.159.04
[    5.0] [drm] [nvidia-drm] [GPU ID 0x00001b00] Loading driver
[    5.1] nvidia-uvm: Loaded the UVM driver, major device number 510.
[    5.2] pcieport 0000:00:01.0: AER: enabled with IRQ 26
[    5.3] AMD-Vi: Interrupt remapping enabled
[    5.4] DMAR: Intel(R) Virtualization Technology for Directed I/O
"""
NO_ERRORS = [
    BOOT,
    "node:1:1 [0] NCCL INFO Call to ibv_reg_mr failed with error Cannot allocate memory, retrying",
    "node:1:1 [0] NCCL INFO NVLS multicast support is available on dev 0",
    "Sep 01 00:00:01 n systemd[1]: Started nvidia-fabricmanager.service - NVIDIA fabric manager service.",
    "Detected NVL5+ system",
    "ValueError: invalid literal for int() with base 10: 'cuda'",
    "vLLM engine: GPU KV cache usage: 41.0 %, no errors",
    "the GPU has fallen asleep on the bus",
]


@pytest.mark.parametrize("text", NO_ERRORS)
def test_a_normal_boot_and_information_are_no_errors(text: str) -> None:
    result = explained(text)
    assert result.explanations == ()
    assert (result.word, result.exit_code) == (Word.NOT_KNOWN, ExitCode.NOTHING)


def test_the_gravest_line_leads_and_all_are_said() -> None:
    lines = [
        "NVRM: Xid (PCI:0000:0a:00): 145, RLW_RXPIPE Fatal",
        "RuntimeError: NCCL Error 6: remote process exited or there was a network error",
        "NVRM: Xid (PCI:0000:09:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
        "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
    ]
    result = explained("\n".join(lines))
    assert result.leading is not None
    assert result.leading.name == "Xid 79"
    assert len(result.explanations) == 4


@pytest.mark.parametrize("error", ["unspecified launch failure", "an illegal memory access was encountered"])
def test_an_error_of_cuda_after_a_lost_gpu_blames_no_program(error: str) -> None:
    lost = "NVRM: Xid (PCI:0000:03:00): 79, GPU has fallen off the bus."
    result = explained(f"{lost}\nCUDA error: {error}")
    assert [each.severity for each in result.explanations] == [Severity.HARDWARE, Severity.CONTEXT]
    assert [cause.cause for cause in result.explanations[1].causes] == [
        "a consequence of the fault that the same text states: Xid 79"
    ]
    assert "compute-sanitizer" not in str(render(result, Format.TEXT))
    alone = explained(f"CUDA error: {error}")
    assert alone.explanations[0].severity is Severity.ERROR


def test_an_access_over_nvlink_blames_the_program_only_where_no_link_failed() -> None:
    access = "NVRM: Xid (PCI:0000:0a:00): 137, RLW_RXPIPE interrupt hit on link 11 on GPU0: PRIV Error"
    link = "NVRM: Xid (PCI:0000:0a:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 11"
    assert "compute-sanitizer" in str(render(explained(access), Format.TEXT))
    both = explained(f"{access}\n{link}")
    assert [each.name for each in both.explanations] == ["Xid 145", "Xid 137"]
    assert "compute-sanitizer" not in str(render(both, Format.TEXT))


STARTS = "NVRM: GPU 0000:41:00.0: RmInitAdapter failed! (0x62:0x40:1861)"


@pytest.mark.parametrize(
    ("lines", "follows"),
    [
        (["NVRM: _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting GSP", STARTS], True),
        (["NVRM: The NVIDIA GPU 0000:41:00.0 fell-off probe: GPU has fallen off the bus.", STARTS], True),
        ([STARTS, "NVRM: _kgspBootGspRm: unexpected WPR2 already up, cannot proceed with booting GSP"], False),
        (["NVRM: GPU 0000:5f:00.0: GPU has fallen off the bus.", STARTS], False),
        (["NVRM: dma-buf attach failed: PCI topology not supported for dma-buf", STARTS], False),
    ],
    ids=["stated before", "of the same GPU", "after", "of another GPU", "of something else"],
)
def test_a_gpu_did_not_start_for_what_the_driver_said_of_it_before(lines: list[str], follows: bool) -> None:
    start = next(each for each in explained("\n".join(lines)).explanations if each.failure.message == "init-adapter")
    assert (start.severity is Severity.CONTEXT) is follows
    assert start.causes[0].cause.startswith("a consequence of the fault") is follows


def test_what_the_driver_requests_comes_before_an_event_that_needs_less() -> None:
    link = "NVRM: Xid (PCI:0000:0a:00): 149, NETIR_LINK_EVT Nonfatal XC0 i0 Link 08"
    request = "NVRM: Xid (PCI:0000:0a:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"
    assert [each.name for each in explained(f"{link}\n{request}").explanations] == ["Xid 154", "Xid 149"]


@pytest.mark.parametrize(
    "text",
    [
        "mkdir: cannot create directory '/scratch/job': File exists\nsrun --container-image=enroot.sqsh\n"
        "./a.out: Permission denied",
        "cp: Failed to write to output filesystem",
        "mkdir: cannot create directory '/home/u/enroot-images': Permission denied",
        "loading /lib/firmware/nvidia/570/gsp_ga10x.bin failed with error -40",
        "Failed to find CUDA library libcudart.so.13",
    ],
)
def test_lines_about_something_else_state_no_cause(text: str) -> None:
    assert explained(text).word is not Word.CAUSE


def test_an_error_of_cuda_beside_a_fault_of_the_program_keeps_its_causes() -> None:
    result = explained(
        "NVRM: Xid (PCI:0000:03:00): 31, MMU Fault\nCUDA error: an illegal memory access was encountered"
    )
    assert "compute-sanitizer" in str(render(result, Format.TEXT))


def test_an_xid_that_the_device_plugin_reports_is_answered_with_what_brings_the_gpu_back() -> None:
    line = "XidCriticalError: Xid={} on Device=GPU-1f2e, the device will go unhealthy."
    assert explained(line.format(69)).explanations[0].failure.message == "plugin-critical-xid"
    assert explained(line.format(79)).explanations[0].name == "Xid 79"


PREFIXES = [
    "[rank3]: ",
    "\x1b[1;36m(EngineCore_DP0 pid=418)\x1b[0;0m WARNING 09-14 15:38:21 [core.py:946] ",
    "Feb 02 09:51:48 worker kernel: ",
    "\x1b[32m[   14.201733] \x1b[0m\x1b[33m",
    "2026-11-27T10:00:00.123456789Z stderr F ",
    "12: ",
    "(RayWorkerWrapper pid=4711, ip=192.0.2.3) ",
]


@pytest.mark.parametrize("prefix", PREFIXES)
def test_what_launchers_and_logs_put_before_a_line_hides_nothing(prefix: str) -> None:
    for entry in IN_LOGS:
        text = "".join(f"{prefix}{line}\n" for line in entry.example.strip().splitlines())
        assert messages_of(explained(text)) == expected(entry), entry.id


DIAG = """
| PCIe                      | Fail - All                                     |
| Warning                   | GPU 0 The NvLink link 3 is currently d         |
|                           | own Run a field diagnostic on the GPU.         |
"""
PASTES = [
    ("nvidia-smi has failed because it couldn't communicate with the nvidia driver", "smi-no-driver"),
    ("UNABLE TO DETERMINE THE DEVICE HANDLE FOR GPU 0000:0B:00.0: UNKNOWN ERROR", "smi-device-handle"),
    (DIAG, "dcgm-link-down"),
    ("NVIDIA-SMI has failed because it couldn&#39;t communicate with the NVIDIA driver", "smi-no-driver"),
    (
        r"{\"msg\":\"NVIDIA-SMI has failed because it couldn\u0027t communicate with the NVIDIA driver\"}",
        "smi-no-driver",
    ),
]


@pytest.mark.parametrize(("text", "message"), PASTES)
def test_what_is_typed_tabulated_or_escaped_is_found_in_a_short_text(text: str, message: str) -> None:
    assert messages_of(explained(text)) == [message]


def test_a_long_text_and_one_with_a_known_line_are_read_as_they_are() -> None:
    typed = PASTES[0][0]
    assert messages_of(explained(f"{typed}\n" + "an ordinary line of a log\n" * 400)) == []
    assert messages_of(explained(f"{typed}\nNVRM: GPU 0000:01:00.0 is already bound to nouveau.")) == [
        "bound-elsewhere"
    ]


def test_few_words_in_another_case_are_no_message() -> None:
    assert messages_of(explained("gpu is lost")) == []


@pytest.mark.parametrize("text", ["xid 79", "got xid: 79 again", "XID=79"])
def test_an_xid_as_people_type_it(text: str) -> None:
    assert [each.name for each in explained(text).explanations] == ["Xid 79"]


@given(st.text(max_size=300))
def test_any_text_has_an_answer(text: str) -> None:
    assert explained(text).word in set(Word)


@pytest.mark.parametrize("folder", ["message_lines", "message_causes"])
def test_no_name_stands_in_two_files(folder: str) -> None:
    files = sorted((Path(module.__file__).parent / folder).glob("*.toml"))
    names = [name for file in files for name in read_toml(file.read_text(encoding="utf-8"))]
    assert len(names) == len(set(names)), {name for name in names if names.count(name) > 1}


@pytest.mark.parametrize(
    "text", ["NFS: server not responding, xid 79", "postgres: ERROR: could not serialize access, xid 48 in progress"]
)
def test_a_transaction_is_no_fault_of_a_gpu(text: str) -> None:
    assert explained(text).word is Word.NOT_KNOWN


@pytest.mark.parametrize(
    "text",
    [
        "Remapping Failure Occurred : No\nDisplay Attached : Yes",
        '{"Remapping Failure Occurred": "No", "In use": "Yes"}',
        "SRAM Threshold Exceeded: No\nECC Mode: Yes",
        "GPU Recovery Action: None\nLast action: Reset",
        "GPU Recovery Action was none. next maintenance: reboot on friday.",
        "Reboot Pending : Yes",
        "Raid Repair Pending : Yes",
        "Provisioning State       : In Progress",
        "ConnectionClosedError: Connection closed by remote peer",
        "kex_exchange_identification: Connection closed by remote peer",
        "WARN Connect to localhost:8080 [localhost/127.0.0.1] failed: Connection refused",
        "ERROR: Incompatible platform detected: this wheel is for linux_aarch64",
        "Kernel driver in use: novatek",
        "Link eth0: <inactive>",
        "    CU_FILE_IO_NOT_SUPPORTED = 5008,",
        "mysql query failed: Unknown error 5001",
        "nvidia/nvbench/main.cu:10: error: expected ';'",
        "qemu: not enough free huge pages",
    ],
)
def test_a_line_of_something_else_has_no_answer(text: str) -> None:
    assert explained(text).word is Word.NOT_KNOWN


def test_a_hot_nic_is_a_warning_beside_a_lost_gpu_and_no_reason_of_an_error_of_cuda() -> None:
    hot = "mlx5_core 0000:5e:00.0: temp_warn:216: High temperature on sensors with bit set 0 1"
    lost = explained(f"{hot}\nNVRM: Xid (PCI:0000:09:00): 79, GPU has fallen off the bus.")
    assert lost.leading is not None
    assert lost.leading.name == "Xid 79"
    access = explained(f"{hot}\nCUDA error: an illegal memory access was encountered")
    assert not any("a consequence of" in cause.cause for each in access.explanations for cause in each.causes)
