"""Reading of the kernel's log: the lines as the driver and the kernel write them, and nothing else."""

from __future__ import annotations

import errno
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from egmctl.api.doctor import Doctor
from egmctl.driver.reading import Unreadable
from egmctl.facts import kernel_log as module
from egmctl.facts.kernel_log import EVENTS_LIMIT, KernelLogWatch, event, kernel_log
from egmctl.facts.root import Root
from egmctl.model.kernel_log import DriverMessage, EventKind, KernelEvent, KernelLog
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from egmctl.report.kinds import DOCTOR
from tests.answers import render
from tests.facts.sysroot import Tree
from tests.fake.node import load
from tests.known import known

# As an H200 logged it for a kernel that stores out of bounds (driver 580.159.04).
REAL = (
    "4,371,92495520,c;NVRM: GPU at PCI:0000:00:06: GPU-a6151c81-0000-0000-0000-000000000000",
    "4,373,92495534,c;NVRM: Xid (PCI:0000:00:06): 31, pid=2228, name=python3, channel 0x0000000a, intr 00000000. "
    "MMU Fault: ENGINE GRAPHICS GPC1 GPCCLIENT_T1_8 faulted @ 0x400_00000000. Fault is of type FAULT_PDE "
    "ACCESS_TYPE_VIRT_WRITE",
)


def read(tmp_path: Path, *records: str) -> KernelLog:
    tree = Tree(tmp_path)
    tree.write("/dev/kmsg", "".join(f"{record}\n" for record in records))
    return kernel_log(tree.root)


def test_a_real_xid(tmp_path: Path) -> None:
    log = read(tmp_path, *REAL)
    (xid,) = log.events
    assert (xid.kind, xid.number, xid.bus_id, xid.time_s) == (EventKind.XID, 31, "0000:00:06.0", 92.495534)
    assert (xid.pid, xid.process) == (2228, "python3")
    assert xid.text.startswith("channel 0x0000000a, intr 00000000. MMU Fault: ENGINE GRAPHICS")
    assert (log.source, log.first_s, log.left_out) == ("/dev/kmsg", 92.49552, 0)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "NVRM: Xid (PCI:0018:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x0 0x0)",
            {"number": 145, "bus_id": "0018:01:00.0", "fatal": False, "link": 13, "pid": None},
        ),
        (
            "NVRM: Xid (PCI:0009:01:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149",
            {"number": 45, "caused_by": 149, "process": "python3"},
        ),
        (
            "NVRM: Xid (PCI:0000:1b:00 GPU-I:05 GPU-CI:00): 13, pid='<unknown>', name=<unknown>, Graphics Exception",
            {"number": 13, "bus_id": "0000:1b:00.0", "pid": None, "process": None, "text": "Graphics Exception"},
        ),
        ("NVRM: Xid (PCI:0000:1B:00): 79, GPU has fallen off the bus.", {"number": 79, "bus_id": "0000:1b:00.0"}),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:85:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)",
            {"kind": EventKind.SXID, "number": 12028, "fatal": False, "link": 32, "bus_id": "0000:85:00.0"},
        ),
        (
            "nvidia-nvswitch1: SXid (PCI:0000:86:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
            {"kind": EventKind.SXID, "number": 20034, "fatal": True},
        ),
        (
            "nvidia 0000:1b:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
            {"kind": EventKind.AER, "corrected": True, "fatal": False},
        ),
        (
            "pcieport 0000:1a:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer",
            {"kind": EventKind.AER, "corrected": False, "fatal": True, "bus_id": "0000:1a:00.0"},
        ),
        (
            "NVRM: GPU0 kmemsysSetupAtsPeers_GB100: GPU 1 doesn't have a EGM fabric address",
            {"kind": EventKind.DRIVER, "message": DriverMessage.EGM_NO_FABRIC_ADDRESS, "bus_id": None},
        ),
        (
            "NVRM: GPU1 x: EGM is not enabled in RM for GPU 1",
            {"kind": EventKind.DRIVER, "message": DriverMessage.EGM_NOT_ENABLED, "bus_id": None},
        ),
        (
            "NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x62:0x65:1860)",
            {"kind": EventKind.DRIVER, "message": DriverMessage.INIT_FAILED, "bus_id": "0000:1b:00.0"},
        ),
    ],
)
def test_each_kind_of_line(line: str, expected: dict[str, object]) -> None:
    logged = known(event(1.0, line))
    assert {name: getattr(logged, name) for name in expected} == expected


@pytest.mark.parametrize(
    "line",
    [
        "audit: name='NVRM: Xid (PCI:0000:00:06): 79, pid=1, name=x, y'",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.159.04",
        "systemd[1]: nvidia-imex.service: fallen off the bus",
        "",
    ],
)
def test_other_lines_are_no_facts(line: str) -> None:
    assert event(1.0, line) is None


def test_a_program_that_writes_to_the_log_is_not_believed(tmp_path: Path) -> None:
    # Facility 1 (user): what printf 'NVRM: Xid ...' > /dev/kmsg makes of it.
    assert read(tmp_path, "12,900,5000000,-;NVRM: Xid (PCI:0000:00:06): 79, GPU has fallen off the bus.").events == ()


def test_a_flood_keeps_the_newest_and_counts_the_rest(tmp_path: Path) -> None:
    lines = [f"4,{n},{n * 1000},-;NVRM: Xid (PCI:0000:00:06): 74, NVLink error {n}" for n in range(EVENTS_LIMIT + 7)]
    log = read(tmp_path, *lines)
    assert (len(log.events), log.left_out) == (EVENTS_LIMIT, 7)
    assert log.events[-1].text == f"NVLink error {EVENTS_LIMIT + 6}"


def test_a_log_that_may_not_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(Unreadable) as error:
        kernel_log(Tree(tmp_path).root)
    assert error.value.unread == Unread(reason=Reason.NOT_PRESENT, detail="/dev/kmsg: ENOENT")


def test_lines_that_were_overwritten_while_it_was_read_are_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    record = b"4,1,1000000,-;NVRM: Xid (PCI:0000:00:06): 79, GPU has fallen off the bus.\n SUBSYSTEM=pci\n"
    answers = iter((record, BrokenPipeError(errno.EPIPE, ""), record, BlockingIOError(errno.EAGAIN, "")))

    def answered(_descriptor: int, _size: int) -> bytes:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(os, "read", answered)
    lines, overwritten = module.records(0)
    assert (len(lines), overwritten) == (2, True)


def test_a_log_that_is_written_faster_than_it_is_read_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    left = iter([b"4,1,1000000,-;NVRM: nothing\n"] * 50)
    monkeypatch.setattr(module, "_RECORDS_LIMIT", 20)
    monkeypatch.setattr(os, "read", lambda _descriptor, _size: next(left))
    assert len(module.records(0)[0]) == 20


@given(st.text(), st.floats(0, 1e9))
def test_no_line_is_too_odd(line: str, time_s: float) -> None:
    for head in ("", "NVRM: ", "NVRM: Xid (PCI:0000:00:06): ", "nvidia-nvswitch0: SXid (PCI:0000:00:06.0): "):
        logged = event(time_s, head + line)
        assert logged is None or len(logged.text) <= 200


TEXTS = (
    "Ch 00000001, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC1 faulted @ 0x400_00000000",
    "Ch 00000001 caused by previous Xid 149",
    "channel 0x0000000a, intr 00000000. MMU Fault: ENGINE GRAPHICS",
    "Graphics SM Warp Exception on (GPC 0, TPC 0, SM 0): Out Of Range Address",
    "RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x00000008 0x0 0x0)",
    "",
)
SECRET = b"s3cret"
"""What the hostile names hold: six of their fifteen bytes."""
PIECES = (
    b", ",
    b",",
    b" ",
    b"name=",
    b"pid=1, ",
    *(b"(", b"]", b"\n", b"\\", b"\\x0a", b"7", b"\x1b[31m", b"\xe2\x82", b"\xff"),
)


def escaped(name: bytes) -> str:
    """Return a name as ``/dev/kmsg`` has it (Documentation/ABI/testing/dev-kmsg; printk.c, msg_add_ext_text)."""
    return "".join(chr(byte) if 32 <= byte < 127 and byte != 92 else f"\\x{byte:02x}" for byte in name)


def both_ways(name: bytes, text: str) -> tuple[KernelEvent, KernelEvent]:
    """Return what is read of an Xid that blames a process of this name: of the kernel's records, and of the journal."""
    head, tail = "NVRM: Xid (PCI:0000:1b:00): 48, pid=4711, name=", f", {text}"
    message = head.encode() + name + tail.encode()
    entry = json.dumps({"MESSAGE": list(message), "__MONOTONIC_TIMESTAMP": "1"}).encode()
    line = known(module._journal_entry(entry))
    return known(event(1.0, head + escaped(name) + tail)), known(event(*line))


any_name = st.lists(st.sampled_from(PIECES) | st.binary(max_size=5)).map(lambda parts: b"".join(parts)[:15])


@given(any_name.filter(lambda name: 0 not in name), st.sampled_from(TEXTS))
def test_nothing_of_a_process_name_is_in_the_text(name: bytes, text: str) -> None:
    for logged in both_ways(name, text):
        assert text.endswith(logged.text), "the driver's own words, and no other"
        assert logged.pid == 4711


@pytest.mark.parametrize("name", ["python3", "sh", "R", "a.out", "cuda-EvtHandlr", "my job, really", "a,b", "x" * 15])
@pytest.mark.parametrize("text", TEXTS)
def test_usual_names_are_read_whole_and_cost_no_more_than_the_channel(name: str, text: str) -> None:
    for logged in both_ways(name.encode(), text):
        assert logged.process == name
        assert logged.text in (text, text.partition("Ch 00000001, ")[2])


@pytest.mark.parametrize(
    "named",
    [
        "pid='2228', name=s3cret, Ch 1",
        "pid=2228 name=s3cret, Ch 1",
        "PID=0x12, name=s3cret",
        "name=s3cret, Ch 1",
        "pid=7, tid=8, name=s3cret",
        "pid=7, comm=s3cret, Ch 1",
        "pid=7 (s3cret), Ch 1",
        "process: s3cret",
        "pid=1, name=python3, process name = s3cret",
    ],
)
def test_nor_where_a_driver_spells_it_otherwise(named: str) -> None:
    logged = known(event(1.0, f"NVRM: Xid (PCI:0000:1b:00): 31, MMU Fault, {named}"))
    assert (logged.number, logged.text) == (31, "MMU Fault")


hostile = st.lists(st.sampled_from(PIECES)).map(b"".join)
"""What stands before and after the secret."""


@pytest.fixture(scope="module")
def machine() -> Machine:
    logged = load("hgx-h200x4")
    return replace(
        logged, gpus=known(logged.gpus)[:1], pairs=(), nics=(), origin=replace(logged.origin, redacted=False)
    )


@settings(max_examples=10)
@given(
    st.tuples(hostile, hostile).filter(lambda around: sum(map(len, around)) <= 15 - len(SECRET)), st.sampled_from(TEXTS)
)
def test_no_form_of_a_redacted_diagnosis_holds_a_hostile_name(
    machine: Machine, around: tuple[bytes, bytes], text: str
) -> None:
    events = both_ways(around[0] + SECRET + around[1], text)
    log = KernelLog(source="/dev/kmsg", now_s=9.0, events=events)
    whole = replace(machine, kernel_log=log)
    doctor = Doctor(check=["kernel.xid"])
    assert SECRET.decode() in render(doctor.diagnose(whole), DOCTOR.formats[0], verbose=2), "it is there to be logged"
    diagnosis = doctor.diagnose(whole, redacted=True)
    for format in DOCTOR.formats:
        assert SECRET.decode() not in render(diagnosis, format, verbose=2), format


@pytest.mark.needs_root
@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK | os.W_OK), reason="needs /dev/kmsg")
def test_the_real_log_of_this_kernel() -> None:
    watch = KernelLogWatch(Root())
    log = kernel_log(Root())
    assert log.source == "/dev/kmsg"
    assert 0 < log.now_s < time.clock_gettime(time.CLOCK_MONOTONIC) + 0.001
    assert watch.unread is None
    assert watch.events() == ()
    watch.close()
    assert watch.events() == ()


@pytest.mark.parametrize(("lines", "cut"), [(3, False), (2, True)])
def test_a_journal_of_which_only_the_newest_was_read_has_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: int, cut: bool
) -> None:
    tree = Tree(tmp_path)
    tree.write("/usr/bin/journalctl", "")
    said: list[str] = []

    def program_output(command: list[str], *_: object) -> bytes:
        said.extend(command)
        return b'{"MESSAGE":"NVRM: nothing","__MONOTONIC_TIMESTAMP":"1"}\n' * 2

    monkeypatch.setattr(module, "program_output", program_output)
    monkeypatch.setattr(module, "_JOURNAL_LINES", lines)
    assert module._journal(tree.root)[2] is cut
    assert f"--lines={lines}" in said
