"""``egmctl watch``: rates from counters, what is said where there are none, and the live display."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import itertools
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from egmctl.cli.watch import history_scale
from egmctl.driver.reading import Unreadable
from egmctl.gpu import telemetry
from egmctl.gpu.telemetry import TrafficWatch, data_of
from egmctl.model.codec import from_json, to_json
from egmctl.model.machine import GpuTraffic, LinkTraffic, Origin, OriginKind, TrafficSample
from egmctl.model.record import Reason, Unread
from egmctl.report.kinds import Format, Order, rendered
from egmctl.report.views.watch import watch_document
from tests.answers import render
from tests.conftest import ROOT, Ended, RunEgmctl, command_environment
from tests.fake.node import FakeNode
from tests.fake.plugin import MakeFakeNode
from tests.in_process import run
from tests.schemas import validate

GPU, OTHER = "0000:1b:00.0", "0000:1c:00.0"
RATES: Mapping[str, float | None] = {"nvlink": 450.0, "pcie": 63.0}
ALL = 0xFFFFFFFF
NVLINK_OUT, NVLINK_IN, NEWER_OUT, NEWER_IN = ((number, ALL) for number in (138, 139, 202, 204))
PCIE_OUT, PCIE_IN = 197, 198
MIB = 1 << 20
DENIED = Unreadable(Reason.NO_PERMISSION, "field 138: 4 (Insufficient Permissions)")
LOST = Unreadable(Reason.FAILED, "field 138: 15 (GPU is lost)", number=pynvml.NVML_ERROR_GPU_IS_LOST)


class Nvml:
    """The counters of one GPU, and the clock: both stand still unless a test moves them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 100.0
        self.fields: dict[Any, int | Unreadable] = {91: 1, 170: 0, NVLINK_OUT: 7, NVLINK_IN: 7, PCIE_OUT: 5, PCIE_IN: 5}
        monkeypatch.setattr(telemetry, "ask", self.ask)
        monkeypatch.setattr(telemetry, "field_values", self.read)
        monkeypatch.setattr("egmctl.gpu.telemetry.time.monotonic", lambda: self.now_s)

    def ask(self, function: str, *arguments: Any) -> Any:
        known = {"nvmlDeviceGetHandleByPciBusId": arguments, "nvmlDeviceGetNvLinkVersion": (7,)}
        return known.get(function, [SimpleNamespace(gpu=97, used=3, total=9)])[0] if function != "nvmlInit" else None

    def read(self, handle: object, fields: list[Any]) -> dict[Any, int | Unreadable]:
        missing = Unreadable(Reason.NOT_SUPPORTED, "field: 3 (Not Supported)")
        known = self.fields if handle == GPU else dict.fromkeys(self.fields, 1)
        return {field: known.get(field[0] if field in ((197, 0), (198, 0)) else field, missing) for field in fields}

    def after(self, watch: TrafficWatch, seconds: float = 2.0, **rises: int | Unreadable) -> GpuTraffic:
        """Return the record of an interval in which NVLink's counters change, and PCIe's in the 20 ms at its end."""
        fields = {name: field for name, field in globals().items() if name in rises}
        self.now_s += seconds
        for late in (False, True):
            if late:
                watch.read()
                self.now_s += 0.02 * seconds / 2
            for name, field in fields.items():
                value, rise = self.fields.get(field), rises[name]
                if ("PCIE" in name) is late:
                    self.fields[field] = value + rise if isinstance(value, int) and isinstance(rise, int) else rise
        watch.end_pcie()
        return from_json(GpuTraffic, {"index": 0, "bus_id": GPU, "name": "a GPU", **to_json(watch.record(GPU))})


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    return Nvml(monkeypatch)


def test_a_rate_is_the_rise_of_a_counter_over_its_own_time(nvml: Nvml) -> None:
    record = nvml.after(TrafficWatch({GPU: RATES}), NVLINK_OUT=MIB, NVLINK_IN=0, PCIE_OUT=10**9, PCIE_IN=0)
    # 1 MiB x 1 KiB in 2 s, and 1 GB in 20 ms.
    assert record.links["nvlink"] == LinkTraffic(sent_gb_s=2**30 / 2e9, received_gb_s=0.0, rate_gb_s=450.0)
    assert carried_by_pcie(record) == (pytest.approx(50), 0, 63)
    assert (record.busy_percent, record.memory_used_bytes, record.memory_total_bytes) == (97, 3, 9)


def test_a_32_bit_counter_of_pcie_that_wraps_once_is_no_reset(nvml: Nvml) -> None:
    nvml.fields[PCIE_OUT] = 2**32 - 1
    record = nvml.after(TrafficWatch({GPU: RATES}), PCIE_OUT=10**9 - 2**32)
    assert carried_by_pcie(record) == (pytest.approx(50), 0, 63)


def carried_by_pcie(record: GpuTraffic) -> tuple[Any, ...]:
    """Return what PCIe sends and receives, and its rate, in GB/s."""
    link = record.links["pcie"]
    assert link is not None
    return link.sent_gb_s, link.received_gb_s, link.rate_gb_s


class BusyNvml(Nvml):
    """GPUs whose counters rise as time goes by, which each reading takes."""

    READING_S: Mapping[int, float] = {138: 0.8e-3, PCIE_OUT: 0.35e-3}
    """What one call takes that asks for these fields, on H200."""
    OUT_GB_S, IN_GB_S, NVLINK_GB_S = 5.2, 59.8, 390.0

    def read(self, handle: object, fields: list[Any]) -> dict[Any, int | Unreadable]:
        numbers = set(map(_number, fields))
        takes_s = sum(seconds for number, seconds in self.READING_S.items() if number in numbers)
        self.now_s += takes_s / 2
        carried = {
            PCIE_OUT: int(self.now_s * self.OUT_GB_S * 1e9) % 2**32,
            PCIE_IN: int(self.now_s * self.IN_GB_S * 1e9) % 2**32,
            138: int(self.now_s * self.NVLINK_GB_S * 1e9) // 1024,
            139: 0,
        }
        self.fields |= {field: carried[number] for field in fields for number in [_number(field)] if number in carried}
        self.now_s += takes_s / 2
        return super().read(GPU if handle else None, fields)


def _number(field: Any) -> int:
    return int(field[0] if isinstance(field, tuple) else field)


@pytest.mark.parametrize("count", [1, 8])
def test_the_time_that_the_readings_take_is_no_error_of_the_rate(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = BusyNvml(monkeypatch)
    gpus = [f"0000:{number:02x}:00.0" for number in range(count)]
    watch = TrafficWatch(dict.fromkeys(gpus, RATES))
    for _ in range(3):
        nvml.now_s += 0.98
        watch.read()
        nvml.now_s += 0.02
        watch.end_pcie()
        for bus_id in gpus:
            links = watch.record(bus_id)["links"]
            assert links["pcie"]["received_gb_s"] == pytest.approx(nvml.IN_GB_S, rel=0.002)
            assert links["pcie"]["sent_gb_s"] == pytest.approx(nvml.OUT_GB_S, rel=0.002)
            assert links["nvlink"]["sent_gb_s"] == pytest.approx(nvml.NVLINK_GB_S, rel=0.002)
            # 55.2 GB/s of data went in, and requests alone went out.
            assert links["pcie"]["received_data_gb_s"] == pytest.approx(55.2, rel=0.01)
            assert links["pcie"]["sent_data_gb_s"] == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize(
    ("counted", "copied"),
    [((60.55, 0.0), (55.21, 0.0)), ((5.2, 59.9), (0.0, 55.34)), ((60.57, 55.4), (51.15, 51.09))],
    ids=["to-host", "from-host", "both"],
)
def test_the_data_of_pcie_are_those_that_copies_on_an_h200_moved(
    counted: tuple[float, float], copied: tuple[float, float]
) -> None:
    assert data_of(*counted) == pytest.approx(copied, rel=0.01, abs=0.05)


@pytest.mark.parametrize(
    ("rises", "kind", "words"),
    [
        ({"NVLINK_IN": -1}, "nvlink", "as after a reset"),
        ({"NVLINK_OUT": MIB, "NEWER_OUT": 3 << 30, "NEWER_IN": 0}, "nvlink", "contradict each other"),
        ({"NVLINK_OUT": DENIED}, "nvlink", "Insufficient Permissions"),
        ({"PCIE_IN": DENIED}, "pcie", "Insufficient Permissions"),
        ({"seconds": 20.0}, "pcie", "may have wrapped"),
    ],
)
def test_a_counter_without_a_rise_is_unknown_and_says_why(
    rises: dict[str, Any], kind: str, words: str, nvml: Nvml
) -> None:
    nvml.fields |= {NEWER_OUT: 0, NEWER_IN: 0} if "NEWER_IN" in rises else {}
    record = nvml.after(TrafficWatch({GPU: RATES}), **rises)
    assert [name for name, link in record.links.items() if link is None] == [kind]
    assert words in record.unread[f"links.{kind}"].detail


def test_a_gpu_that_is_lost_says_only_that_and_the_rest_goes_on(nvml: Nvml) -> None:
    watch = TrafficWatch({GPU: RATES, "0000:2c:00.0": RATES})
    lost = nvml.after(watch, NVLINK_OUT=LOST)
    assert {unread.detail for unread in lost.unread.values()} == {"field 138: 15 (GPU is lost)"}
    assert set(lost.unread) >= {"links.nvlink", "links.pcie", "busy_percent", "memory_used_bytes"}
    assert watch.record("0000:2c:00.0")["links"]["pcie"] is not None


@pytest.mark.parametrize("function", ["nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo"])
def test_any_call_that_ends_so_makes_it_lost(nvml: Nvml, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    watch, answers = TrafficWatch({GPU: RATES}), nvml.ask

    def ask(name: str, *arguments: Any) -> Any:
        if name == function:
            raise LOST
        return answers(name, *arguments)

    monkeypatch.setattr(telemetry, "ask", ask)
    record = nvml.after(watch, NVLINK_OUT=0, NVLINK_IN=0)
    assert record.lost is True
    assert {*record.links.values(), record.busy_percent, record.memory_used_bytes} == {None}
    assert shown(record).startswith("GPU0 lost")


class Gpm:
    """NVML's GPM: the rate of a metric is the difference of its two samples, by the number of the metric."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
        self._values: dict[int | None, int] = {}
        self._code = code
        for name in ("SampleAlloc", "SampleGet", "MetricsGet"):
            monkeypatch.setattr(pynvml, f"nvmlGpm{name}", getattr(self, name))

    def SampleAlloc(self) -> Any:  # noqa: N802 - a name of NVML
        self._values[(address := 8 * len(self._values) + 8)] = 0
        return ctypes.cast(address, pynvml.c_nvmlGpmSample_t)

    def SampleGet(self, _handle: object, sample: Any) -> Any:  # noqa: N802
        self._values[ctypes.cast(sample, ctypes.c_void_p).value] = max(self._values.values()) + 1000
        return sample

    def MetricsGet(self, request: Any) -> Any:  # noqa: N802
        before, after = (ctypes.cast(sample, ctypes.c_void_p).value for sample in (request.sample1, request.sample2))
        for metric in request.metrics[: request.numMetrics]:
            metric.nvmlReturn = self._code
            metric.value = (self._values[after] - self._values[before]) * (metric.metricId - 101)
        return request


@pytest.mark.parametrize("code", [pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_SUPPORTED])
def test_c2c_is_what_gpm_says_between_two_samples(code: int, monkeypatch: pytest.MonkeyPatch, nvml: Nvml) -> None:
    Gpm(monkeypatch, code)
    watch = TrafficWatch({GPU: {"c2c": 225.0}})
    assert nvml.after(watch).links == {"c2c": None}
    for _ in range(2):
        record = nvml.after(watch)
        expected = LinkTraffic(sent_gb_s=1000 * MIB / 1e9, received_gb_s=2000 * MIB / 1e9, rate_gb_s=225.0)
        assert record.links == {"c2c": None if code else expected}
        gap = record.unread.get("links.c2c")
        assert (gap and gap.detail) == ("GPM metric 102: 3 (Not Supported)" if code else None)


def gpu(index: int, sent: float | None, *, unread: str = "") -> GpuTraffic:
    """Return a GPU whose NVLink sends so much, whose C2C is unknown, and whose PCIe receives a little."""
    gaps = {"links.c2c": "no GPM", **({"links.nvlink": unread, "links.pcie": unread} if unread else {})}
    carried = None if sent is None else LinkTraffic(sent_gb_s=sent, received_gb_s=0.0, rate_gb_s=900.0)
    pcie = None if unread else LinkTraffic(sent_gb_s=0.0, received_gb_s=index / 10, rate_gb_s=63.0)
    return GpuTraffic(
        index=index,
        bus_id=GPU,
        name="NVIDIA GB200",
        links={"nvlink": carried, "c2c": None, "pcie": pcie},
        busy_percent=100,
        memory_used_bytes=120 << 30,
        memory_total_bytes=185 << 30,
        unread={field: Unread(reason=Reason.FAILED, detail=detail) for field, detail in gaps.items()},
    )


def sample(*gpus: GpuTraffic) -> TrafficSample:
    return TrafficSample(origin=Origin(kind=OriginKind.LIVE), taken_at="2026-11-23T18:00:00Z", gpus=gpus)


def shown(*gpus: GpuTraffic, width: int = 80) -> str:
    return str(render(sample(*gpus), Format.TEXT, width=width))


def test_the_first_line_says_which_link_carries_traffic_and_what_is_unknown() -> None:
    first = shown(gpu(0, 212.4), gpu(1, 3.0)).partition("\n\n")[0]
    assert " ".join(first.split()) == (
        "GPU0: 212 GB/s over NVLink out, 24 % of 900 GB/s; GPU1: 0.1 GB/s over PCIe in, 0 % of 63 GB/s; C2C unknown"
    )
    assert shown(gpu(0, 0.0)).startswith("NVLink and PCIe idle; C2C unknown\n")


def test_data_of_pcie_is_an_estimate_and_a_share_above_100_percent_is_not_left_alone() -> None:
    busy = LinkTraffic(sent_gb_s=5.2, received_gb_s=59.8, rate_gb_s=63.0, sent_data_gb_s=0.0, received_data_gb_s=54.8)
    text = " ".join(shown(replace(gpu(0, 0.0), links={"pcie": busy})).split())
    assert text.startswith("GPU0: 60 GB/s over PCIe in (data: about 55), 95 % of 63 GB/s ")
    assert "they count protocol too, so its data is an estimate." in text
    assert "above 100 %" not in text
    beyond = replace(busy, received_gb_s=65.6)
    text = " ".join(shown(replace(gpu(0, 0.0), links={"pcie": beyond})).split())
    assert ", 104 % of 63 GB/s, more than the link carries " in text
    assert (
        "A share above 100 %: no link carries more than its rate, so the rate or the time of a reading is wrong."
        in text
    )


def test_what_is_unknown_is_a_question_mark_and_a_reason_and_never_0() -> None:
    text = shown(gpu(0, 212.4), gpu(1, None, unread="GPU is lost"))
    assert "C2C unknown; NVLink unknown on GPU1; PCIe unknown on GPU1" in " ".join(text.split())
    (row,) = re.findall("^GPU1 .*", text, re.M)
    assert row.split()[4:] == ["?"] * 6
    assert "GPU0-1: C2C unknown: no GPM\n" in text
    assert "GPU1: NVLink and PCIe unknown: GPU is lost\n" in text


def test_the_gpus_with_the_most_traffic_come_first_and_the_last_minute_has_a_line_for_each_link() -> None:
    busy = [replace(gpu(1, 900.0 * part), bus_id=OTHER) for part in (0.0, 0.5, 0.25, 1.0)]
    samples = [sample(gpu(0, 90.0), sorted_first) for sorted_first in busy]
    document = watch_document(samples[-1], samples, each=2, interval_s=2.5, order=Order.NVLINK)
    text = str(rendered(document, Format.TEXT, width=80))
    rows = [line.split() for line in re.findall("^GPU[01] .*", text.partition("The last minute")[2], re.M)]
    # Two samples a character, the busier counts; C2C was not read.
    assert [(row[0], row[1]) for row in rows] == [("GPU1", "▄█"), ("GPU0", "▁▁")]
    assert "??" in rows[0]
    assert "a bar: 5 s, the busier direction" in text
    assert "The last minute" not in shown(gpu(0, 90.0))


@pytest.mark.parametrize("interval_s", [0.2, 0.7, 1, 7, 20, 40, 3600])
def test_the_last_minute_is_a_minute_at_any_interval(interval_s: float) -> None:
    samples, each = history_scale(interval_s)
    assert samples == 1 or 60 - interval_s < samples * interval_s <= 60
    assert samples / each <= 20


def test_metrics_have_bytes_per_second_and_no_series_for_what_was_not_read() -> None:
    unread = replace(gpu(1, None, unread="GPU is lost"), bus_id=OTHER)
    text = str(render(sample(gpu(0, 212.4), unread), Format.PROM))
    line = 'egmctl_watch_link_bytes_per_second{gpu="GPU0",bus_id="%s",link="nvlink",direction="sent"} 212400000000'
    assert line % gpu(0, 1.0).bus_id in text.splitlines()
    assert 'link="c2c"' not in text
    assert f'bus_id="{OTHER}",link=' not in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_eight_gpus_fit_into_the_width_in_ascii(width: int) -> None:
    text = shown(*(gpu(index, 900.0) for index in range(8)), width=width)
    assert max(map(len, text.splitlines())) <= width
    assert text.isascii()
    # At 80 columns no column moves below the others.
    assert width < 80 or len(re.findall("^GPU7 ", text, re.M)) == 1


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (
            ("--machine", "gh200"),
            "--machine: a recorded machine has no traffic; watch shows only the node that it runs on",
        ),
        (("--interval", "0.1"), "--interval 0.1: valid are 0.2 to 3600 seconds"),
        (("--interval", "nan"), "--interval nan: valid are 0.2 to 3600 seconds"),
        (("--once", "--count", "2"), "--once and --count exclude each other; give one of them"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(words: tuple[str, ...], answer: str) -> None:
    assert run("watch", *words) == Ended(2, "", f"egmctl: {answer}\n")


@pytest.mark.parametrize("lacking", ["all", "NVML"])
def test_without_nvml_it_ends_as_topo_does(lacking: str, fake_node: MakeFakeNode, egmctl: RunEgmctl) -> None:
    env = {} if lacking == "all" else fake_node("hgx-h200x4", libraries=()).environment()
    watched = egmctl("watch", "--once", env=env)
    assert (watched.code, watched.err) == (3, egmctl("topo", "--csv", env=env).err)


def test_json_is_a_document_per_line_and_nvml_alone_is_asked(fake_node: MakeFakeNode, egmctl: RunEgmctl) -> None:
    node = fake_node("gb200-tray")
    env = node.environment(faults="nvmlDeviceGetFieldValues@23=error:15") | {"EGMCTL_FAKE_COUNTERS": "older"}
    done = egmctl("watch", "--json", "--count", "3", "--interval", "0.3", "--gpus", "0,2", env=env)
    documents = [json.loads(line) for line in done.out.splitlines()]
    for document in documents:
        validate(document, "watch")
    assert (done.code, done.err, len(documents)) == (0, "", 3)
    assert [gpu["index"] for gpu in documents[0]["result"]["gpus"]] == [0, 2]
    assert {call.name[:2] for call in node.calls()} == {"nv"}
    gpus = documents[-1]["result"]["gpus"]
    details = [gpu["unread"].get("links.pcie", {}).get("detail", "") for gpu in gpus]
    assert details.count("nvmlDeviceGetFieldValues: 15 (GPU is lost)") == 1


def test_the_link_whose_counter_rises_is_named_first(fake_node: MakeFakeNode, egmctl: RunEgmctl) -> None:
    node = fake_node("hgx-h200x4")
    env = node.environment() | {"EGMCTL_FAKE_COUNTERS": "older"}
    ended = threading.Event()

    def send() -> None:
        """Have GPU 0 send 1 GB over NVLink every 10 ms: the first number of the file is its counter."""
        with open(node.directory / "state" / "traffic", "wb", buffering=0) as file:
            for number in itertools.takewhile(lambda _: not ended.wait(0.01), itertools.count(1)):
                os.pwrite(file.fileno(), struct.pack("Q", number * 10**9), 0)

    thread = threading.Thread(target=send)
    thread.start()
    done = egmctl("watch", "--once", "--interval", "0.5", env=env)
    ended.set()
    thread.join()
    assert re.match(r"GPU0: [0-9.]+ GB/s over NVLink out, [0-9]+ % of 450 GB/s; PCIe idle\n", done.out)


@pytest.mark.processes
def test_on_a_terminal_the_table_is_replaced_until_ctrl_c_which_ends_with_0(fake_node: MakeFakeNode) -> None:
    out, code = on_a_terminal(fake_node("hgx-h200x4"))
    assert code == 0
    assert b"\x1b[2K\x1b[1A" in out
    assert out.rindex(b"\x1b[?25h") > out.rindex(b"\x1b[?25l")
    assert b"Traceback" not in out


@pytest.mark.processes
def test_without_colour_a_terminal_gets_a_block_per_sample(fake_node: MakeFakeNode) -> None:
    out, code = on_a_terminal(fake_node("hgx-h200x4"), "--color", "never")
    assert (code, b"\x1b" in out) == (0, False)


@pytest.mark.processes
@pytest.mark.parametrize("hangup", ["heeded", "ignored"], ids=["", "under nohup"])
@pytest.mark.parametrize("color", ["auto", "never"])
def test_it_ends_quietly_when_its_terminal_is_closed(
    fake_node: MakeFakeNode, tmp_path: Path, hangup: str, color: str
) -> None:
    """Under nohup its output goes to the terminal if a command has it go there."""
    env = command_environment({"TERM": "xterm", **fake_node("hgx-h200x4").environment()})
    command = [sys.executable, "-m", "egmctl", "watch", "--interval", "0.2", "--color", color]
    ours, theirs = pty.openpty()

    def take_terminal() -> None:
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)
        if hangup == "ignored":
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with open(tmp_path / "err", "w+") as err:
        streams = {"stdin": theirs, "stdout": theirs, "stderr": err}
        with subprocess.Popen(command, env=env, cwd=ROOT, preexec_fn=take_terminal, **streams) as process:  # type: ignore[call-overload]
            os.close(theirs)
            out = b""
            while out.count(b"Per GPU") < 2:
                out += os.read(ours, 65536)
            os.close(ours)
            try:
                assert process.wait(60) == 0
            finally:
                process.kill()
        err.seek(0)
        assert err.read() == ""


def on_a_terminal(node: FakeNode, *options: str) -> tuple[bytes, int]:
    """Return what the command writes to a terminal until Ctrl-C at its second sample, and its exit code."""
    env = command_environment({"TERM": "xterm", **node.environment()})
    command = [sys.executable, "-m", "egmctl", "watch", "--interval", "0.2", *options]
    ours, theirs = pty.openpty()
    out, interrupted = b"", False
    with subprocess.Popen(command, env=env, cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        with contextlib.suppress(OSError):  # At its end a terminal answers EIO.
            while part := os.read(ours, 65536):
                out += part
                if out.count(b"Per GPU") >= 2 and not interrupted:  # A second Ctrl-C could find the command at its end.
                    process.send_signal(signal.SIGINT)
                    interrupted = True
    os.close(ours)
    return out, process.returncode


@pytest.mark.processes
def test_it_ends_when_nobody_reads_it_any_more(fake_node: MakeFakeNode) -> None:
    env = command_environment(fake_node("hgx-h200x4").environment())
    command = [sys.executable, "-m", "egmctl", "watch", "--json", "--interval", "0.2"]
    with subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        try:
            assert process.wait(60) == 0
        finally:
            process.kill()
