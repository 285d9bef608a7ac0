"""Every answer of NVML becomes a value or the reason why there is none. The errors are pynvml's own."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from egmctl.driver import cuda as driver_cuda
from egmctl.driver.nvml import Question, about, ask, ask_struct, field_values, read_record
from egmctl.driver.reading import Unreadable
from egmctl.facts import cuda, nvml
from egmctl.facts.nvml import PLATFORM, decode_health, fabric_information, links
from egmctl.model.record import Reason, Unread
from tests.conftest import ROOT

Answer = Callable[[str, Any], None]


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Answer:
    """Let a function of pynvml return a value, raise the error with a number, or do what a function does."""

    def change(function: str, does: Any) -> None:
        def call(*arguments: Any) -> Any:
            if isinstance(does, pynvml.NVMLError):
                raise does
            return does(*arguments) if callable(does) else does

        monkeypatch.setattr(pynvml, function, call)

    return change


NAMES = {3: "NVML_ERROR_NOT_SUPPORTED", 9: "NVML_ERROR_DRIVER_NOT_LOADED"}


@pytest.mark.parametrize(
    ("code", "reason", "words"),
    [
        (3, "not-supported", "3 (Not Supported)"),
        (4, "no-permission", "4 (Insufficient Permissions)"),
        (9, "failed", "9 (Driver Not Loaded)"),
        (10, "timed-out", "10 (Timeout)"),
        (12, "missing-library", "12 (NVML Shared Library Not Found)"),
        (13, "driver-too-old", "13 (Function Not Found)"),
        (15, "failed", "15 (GPU is lost)"),
        (25, "driver-too-old", "25 ("),
        (999, "failed", "999 (Unknown Error)"),
        (4711, "failed", "4711 ("),
    ],
)
def test_each_error_has_a_reason_and_keeps_its_number(answer: Answer, code: int, reason: str, words: str) -> None:
    answer("nvmlDeviceGetName", pynvml.NVMLError(code))

    with pytest.raises(Unreadable) as raised:
        ask("nvmlDeviceGetName", None)

    assert raised.value.unread.reason == reason
    assert str(raised.value).startswith(f"nvmlDeviceGetName: {words}")
    assert raised.value.name == NAMES.get(code, raised.value.name), "the library's own name of it is kept"


def test_a_function_that_pynvml_lacks_is_too_old() -> None:
    with pytest.raises(Unreadable, match="nvmlNewer: not in the installed nvidia-ml-py") as raised:
        ask("nvmlNewer")

    assert raised.value.unread.reason == "driver-too-old"


class LibraryMismatch(Exception):
    """An exception of nvidia-ml-py that is no NVMLError, as NVMLLibraryMismatchError is."""


@pytest.mark.parametrize("error", [LibraryMismatch("unversioned"), TypeError("None"), KeyError("x")])
def test_an_exception_that_is_no_error_of_nvml_costs_the_value_of_that_call_only(
    answer: Answer, error: Exception
) -> None:
    def refuse(_handle: object) -> str:
        raise error

    answer("nvmlDeviceGetName", refuse)
    answer("nvmlDeviceGetSerial", "1320")
    record = read_record((Question("name", "nvmlDeviceGetName"), Question("serial", "nvmlDeviceGetSerial")), None)
    assert (record["name"], record["serial"]) == (None, "1320")
    assert record["unread"]["name"].reason is Reason.FAILED
    assert type(error).__name__ in record["unread"]["name"].detail


def test_an_answer_that_cannot_be_understood_costs_its_fields_only(answer: Answer) -> None:
    answer("nvmlDeviceGetMigMode", 7)
    answer("nvmlDeviceGetSerial", "1320")
    modes = Question("mig_mode mig_mode_pending", "nvmlDeviceGetMigMode", lambda modes: map(bool, modes))
    record = read_record((modes, Question("serial", "nvmlDeviceGetSerial")), None)
    assert (record["mig_mode"], record["serial"]) == (None, "1320")
    assert record["unread"]["mig_mode_pending"].detail == "nvmlDeviceGetMigMode: TypeError"


@pytest.mark.parametrize("code", [15, 16])
def test_calls_that_end_because_the_gpu_is_lost_are_kept_by_name(answer: Answer, code: int) -> None:
    answer("nvmlDeviceGetName", pynvml.NVMLError(code))
    answer("nvmlDeviceGetSerial", pynvml.NVMLError(3))
    with about("0000:1b:00.0") as lost_calls:
        read_record((Question("name", "nvmlDeviceGetName"), Question("serial", "nvmlDeviceGetSerial")), None)
    assert lost_calls == {"nvmlDeviceGetName": {15: "NVML_ERROR_GPU_IS_LOST", 16: "NVML_ERROR_RESET_REQUIRED"}[code]}


def no_utf_8(_handle: object) -> str:
    return b"\xff".decode()


def beyond_memory(_handle: object) -> None:
    raise MemoryError


@pytest.mark.parametrize(
    ("does", "sentence"),
    [(no_utf_8, "the answer is not UTF-8"), (beyond_memory, "a count in the answer is beyond all bounds")],
)
def test_what_cannot_be_held_is_a_reason_and_no_crash(
    answer: Answer, does: Callable[[object], object], sentence: str
) -> None:
    answer("nvmlDeviceGetName", does)

    with pytest.raises(Unreadable, match=sentence):
        ask("nvmlDeviceGetName", None)


@pytest.mark.parametrize("count", [10**9, 129, -1])
def test_a_count_beyond_all_bounds_is_not_believed(answer: Answer, count: int) -> None:
    """10^9 NVLinks once grew the child to 23 GB."""
    answer("nvmlDeviceGetFieldValues", fields({91: count, 170: count, 230: 0}))
    action, *answers = links(None)
    assert action == "none"
    for unreadable, what in zip(answers, ("NVLinks", "NVLinks", "C2C links"), strict=True):
        assert isinstance(unreadable, Unreadable)
        assert unreadable.unread.reason is Reason.FAILED
        assert f"{count} {what}" in str(unreadable)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("lies", "detail"),
    [
        # A library that says it has 10^8 entries has pynvml make room for them, before they can be looked at.
        ("pynvml.nvmlInit = lambda: bytearray(3 << 30)", "nvmlInit: a count in the answer is beyond all bounds"),
        *(
            (
                f"pynvml.nvmlInit = lambda: None; pynvml.nvmlDeviceGetCount = lambda: {count}\n"
                "pynvml.nvmlDeviceGetHandleByIndex = lambda index: sys.exit('asked')",
                f"nvmlDeviceGetCount: {count} GPUs, a node has at most 256",
            )
            for count in (257, 10**9, -1)
        ),
    ],
    ids=["3 GiB", "257 GPUs", "10^9 GPUs", "-1 GPUs"],
)
def test_a_count_beyond_all_bounds_ends_the_reading_with_its_reason(lies: str, detail: str) -> None:
    script = (
        f"import json, sys, types, pynvml; from egmctl.facts import nvml\n{lies}\n"
        "answered = []; nvml.read(types.SimpleNamespace(answer=answered.append), {})\n"
        "print(json.dumps(answered[0]['absent']))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, check=True, timeout=60)
    assert json.loads(done.stdout) == {"reason": "failed", "detail": detail}


def test_more_processes_than_a_gpu_can_have_are_not_asked_for_one_by_one(answer: Answer) -> None:
    answer("nvmlDeviceGetComputeRunningProcesses", [SimpleNamespace(pid=1, usedGpuMemory=1)] * 5000)
    answer("nvmlSystemGetProcessName", lambda _pid: pytest.fail("asked for a name"))
    gpu = read_record([question for question in nvml._GPU if question.fields == "processes"], None)
    assert gpu["unread"]["processes"].detail == "nvmlDeviceGetComputeRunningProcesses: 5000 processes on one GPU"


def test_the_limits_of_a_cgroup_are_asked_by_its_directory(answer: Answer) -> None:
    asked = []

    def limits(_handle: object, limits: Any) -> None:
        asked.append(limits.nameSpace)
        limits.hardLimit, limits.softLimit, limits.currentUsed = 8 << 30, (1 << 64) - 1, 4096

    answer("nvmlDeviceGetMemoryLimits_v1", limits)
    assert nvml._memory_limits("/sys/fs/cgroup/pod", None) == (8 << 30, -1, 4096)
    assert asked == ["/sys/fs/cgroup/pod"]
    with pytest.raises(Unreadable, match="no cgroup of version 2"):
        nvml._memory_limits(None, None)


def test_limits_without_the_structure_of_the_bindings_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("pynvml.c_nvmlGetMemoryLimits_v1_t")
    with pytest.raises(Unreadable) as error:
        nvml._memory_limits("/sys/fs/cgroup/pod", None)
    assert error.value.unread.reason is Reason.DRIVER_TOO_OLD


@pytest.mark.parametrize("garbage", ["", "\x00\xff", "1b:00", "0000:1b:00.0.0"])
def test_a_gpu_whose_bus_id_is_none_costs_itself_alone(answer: Answer, garbage: str) -> None:
    answer("nvmlDeviceGetHandleByIndex", lambda index: index)
    answer("nvmlDeviceGetPciInfo", lambda index: SimpleNamespace(busId=garbage if index else "00000000:1B:00.0"))
    facts = nvml._gpus(2, {}, (), pairs=True)
    assert facts["gpus"] == {"0000:1b:00.0": {"index": 0, "lost_calls": {}, "unread": {}}}
    (lost,) = facts["lost"]
    assert lost.detail.startswith("GPU 1: nvmlDeviceGetPciInfo: ")


@pytest.mark.parametrize(
    ("count", "bus_id", "failure"),
    [
        (10**9, b"", "cuDeviceGetCount: 1000000000 GPUs, a node has at most 256"),
        (-1, b"", "cuDeviceGetCount: -1 GPUs, a node has at most 256"),
        (1, b"garbage", "cuDeviceGetPCIBusId: 'garbage' is not a PCI bus id; valid is 0000:1b:00.0"),
    ],
)
def test_what_cuda_cannot_mean_is_a_reason_that_names_the_call(
    monkeypatch: pytest.MonkeyPatch, count: int, bus_id: bytes, failure: str
) -> None:
    answers = {"cuDriverGetVersion": 13000, "cuDeviceGetCount": count, "cuDeviceGet": 0, "cuDeviceGetPCIBusId": bus_id}
    monkeypatch.setattr(driver_cuda, "call", lambda name, *_: answers[name])
    monkeypatch.setattr(driver_cuda, "initialise", lambda: 13000)
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = cuda.read(None, {})
    assert found["absent"] == {"reason": "failed", "detail": failure}
    assert (found["failure"]["how"], found["failure"]["call"]) == ("error", failure.partition(":")[0])
    assert found["driver_version"] == 13000


def test_one_answer_may_fill_several_fields_and_so_may_one_reason(answer: Answer) -> None:
    question = Question("now pending", "nvmlDeviceGetMigMode", lambda modes: map(bool, modes))
    answer("nvmlDeviceGetMigMode", [0, 1])
    assert read_record([question], None) == {"now": False, "pending": True, "unread": {}}

    answer("nvmlDeviceGetMigMode", pynvml.NVMLError(3))
    why = Unread(reason=Reason.NOT_SUPPORTED, detail="nvmlDeviceGetMigMode: 3 (Not Supported)")
    assert read_record([question], None) == {"now": None, "pending": None, "unread": {"now": why, "pending": why}}


def test_a_structure_is_passed_by_reference_with_its_version_set(answer: Answer) -> None:
    def fill(_handle: Any, reference: Any) -> int:
        info = ctypes.cast(reference, ctypes.POINTER(pynvml.c_nvmlDeviceCapabilities_v1_t)).contents
        assert info.version == 0x1000008
        info.capMask = 1
        return 0

    answer("nvmlDeviceGetCapabilities", fill)

    assert ask_struct("nvmlDeviceGetCapabilities", "DeviceCapabilities_v1_t", None).capMask == 1


def test_an_error_that_pynvml_returns_instead_of_raising_is_an_error(answer: Answer) -> None:
    answer("nvmlDeviceGetCapabilities", 3)

    with pytest.raises(Unreadable, match=r"nvmlDeviceGetCapabilities: 3 \(Not Supported\)"):
        ask_struct("nvmlDeviceGetCapabilities", "DeviceCapabilities_v1_t", None)


# --- field values ----------------------------------------------------------------------------------------------------


def fields(values: dict[Any, int | None]) -> Callable[[Any, list[Any]], list[Any]]:
    """Answer field values; ``None`` is not supported. Values come as 64 bits."""

    def call(_handle: Any, wanted: list[Any]) -> list[Any]:
        return [
            SimpleNamespace(nvmlReturn=3, valueType=0)
            if values.get(field) is None
            else SimpleNamespace(nvmlReturn=0, valueType=3, value=SimpleNamespace(ullVal=values[field]))
            for field in wanted
        ]

    return call


def test_one_field_that_is_not_supported_leaves_the_others(answer: Answer) -> None:
    answer("nvmlDeviceGetFieldValues", fields({91: 18, (164, 0): 26562}))

    found = field_values(None, [91, (164, 0), (164, 1)])

    assert (found[91], found[164, 0]) == (18, 26562)
    assert isinstance(why := found[164, 1], Unreadable)
    assert (why.unread.reason, str(why)) == ("not-supported", "field 164: 3 (Not Supported)")


def test_a_failed_call_is_the_reason_of_every_field(answer: Answer) -> None:
    answer("nvmlDeviceGetFieldValues", pynvml.NVMLError(15))

    found = field_values(None, [91, 170])

    assert [str(why) for why in found.values()] == ["nvmlDeviceGetFieldValues: 15 (GPU is lost)"] * 2


def test_a_gpu_without_c2c_has_no_links_and_says_why(answer: Answer) -> None:
    answer("nvmlDeviceGetFieldValues", fields({91: 0, 230: 0}))

    *_, c2c_links = links(None)

    assert isinstance(c2c_links, Unreadable)
    assert (c2c_links.unread.reason, str(c2c_links)) == ("not-supported", "field 170: 3 (Not Supported)")


def test_c2c_links_are_read_one_by_one(answer: Answer) -> None:
    up = {(171, 0): 1, (172, 0): 45000, (231, 0): 0, (232, 0): 2, (233, 0): 0, (234, 0): 0}
    answer("nvmlDeviceGetFieldValues", fields({91: 0, 170: 2, **up, (171, 1): 0, (231, 1): 7}))

    *_, c2c_links = links(None)

    assert isinstance(c2c_links, list)
    first, second = c2c_links
    assert (first["active"], first["max_rate_mb_s"], first["replays"], first["unread"]) == (True, 45000, 2, {})
    assert (second["active"], second["errors"], second["power_state"]) == (False, 7, None)
    assert "power_state" in second["unread"]


def test_a_remote_bus_id_that_a_virtual_machine_hides_is_null_and_says_so(answer: Answer) -> None:
    answer("nvmlDeviceGetFieldValues", fields({91: 2, **{(164, link): 26562 for link in range(2)}}))
    answer("nvmlDeviceGetNvLinkState", lambda _handle, link: 1 - link)
    answer("nvmlDeviceGetNvLinkVersion", 6)
    answer("nvmlDeviceGetNvLinkRemoteDeviceType", lambda _handle, link: 2 * link)
    bus_ids = ("00000000:1B:00.0", "FFFFFFFF:FF:FF.0")
    answer("nvmlDeviceGetNvLinkRemotePciInfo", lambda _handle, link: SimpleNamespace(busId=bus_ids[link]))

    nvlinks = links(None)[2]

    assert isinstance(nvlinks, list)
    shown, hidden = nvlinks
    assert (shown["active"], shown["remote_type"], shown["speed_mb_s"]) == (True, "gpu", 26562)
    assert shown["remote_bus_id"] == "0000:1b:00.0"
    assert (hidden["active"], hidden["remote_type"], hidden["remote_bus_id"]) == (False, "switch", None)
    assert "masked by the virtual machine" in hidden["unread"]["remote_bus_id"].detail


# --- fabric and platform ---------------------------------------------------------------------------------------------


# From bit 0: 2, 1, 2, 1 (two bits each), 5 (four bits), 1, 2.
HEALTH = {
    "degraded_bandwidth": "false",
    "route_recovery": "true",
    "route_unhealthy": "false",
    "access_timeout_recovery": "true",
    "incorrect_configuration": "insufficient-nvlinks",
    "partition_assigned": "true",
    "fabric_manager": "disconnected",
}


def test_the_health_mask_is_decoded_field_by_field() -> None:
    assert decode_health(0b10_01_0101_01_10_01_10) == HEALTH
    assert decode_health(0) == dict.fromkeys(HEALTH, "not-supported")
    assert decode_health(0xF << 8)["incorrect_configuration"] == "15"


def filling(**members: Any) -> Callable[[Any, Any], int]:
    """Answer by filling the structure that the reference leads to."""

    def fill(_handle: Any, reference: Any) -> int:
        info = reference._obj
        for name, value in members.items():
            if isinstance(value, bytes):
                field = getattr(type(info), name)
                ctypes.memmove(ctypes.addressof(info) + field.offset, value, len(value))
            elif hasattr(info, name):
                setattr(info, name, value)
        return 0

    return fill


def test_a_fabric_without_a_cluster_has_no_uuid_and_says_why(answer: Answer) -> None:
    answer("nvmlDeviceGetGpuFabricInfoV", filling(state=3, status=0, cliqueId=0, healthMask=0, healthSummary=1))
    answer("nvmlDeviceGetGpuFabricInfo_v4", filling())

    record = fabric_information(None)

    values = {"state": "completed", "status": 0, "clique_id": 0, "health_summary": "healthy", "cluster_uuid": None}
    assert {name: record[name] for name in values} == values
    assert record["unread"] == {
        "cluster_uuid": Unread(reason=Reason.NOT_SUPPORTED, detail="all zero: in no multi-node NVLink domain")
    }


def test_a_driver_that_knows_only_version_2_of_the_fabric_still_tells_it(answer: Answer) -> None:
    def only_version_2(handle: Any, reference: Any) -> int:
        if reference._obj.version != pynvml.nvmlGpuFabricInfo_v2:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        return filling(state=2, clusterUuid=bytes(range(16)), cliqueId=5)(handle, reference)

    answer("nvmlDeviceGetGpuFabricInfoV", only_version_2)

    record = fabric_information(None)

    assert record["state"] == "in-progress"
    assert record["cluster_uuid"] == "00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert set(record["unread"]) == {"status", "health_summary", "clique_id", "cliques"}


@pytest.mark.parametrize("state", [0, 1, 2])
def test_a_clique_is_no_fact_before_the_fabric_is_completed(answer: Answer, state: int) -> None:
    """Seen on a virtual machine with one H100: nvidia-smi prints N/A for a clique that NVML fills with 0."""
    answer("nvmlDeviceGetGpuFabricInfoV", filling(state=state, cliqueId=0))
    record = fabric_information(None)
    names = ("clique_id", "cliques", "cluster_uuid", "status")
    assert {name: record[name] for name in names} == dict.fromkeys(names)
    assert {record["unread"][name].detail for name in names} == {"valid once the state is completed"}


def cliques_of(*pairs: tuple[int, int], count: int | None = None) -> Callable[[Any, Any], int]:
    def fill(_handle: Any, reference: Any) -> int:
        for number, pair in enumerate(pairs):
            reference._obj.cliques[number] = pynvml.c_nvmlGpuFabricClique_v1_t(*pair)
        reference._obj.numCliques = len(pairs) if count is None else count
        return 0

    return fill


@pytest.mark.parametrize(
    ("does", "cliques", "detail"),
    [
        (cliques_of((0, 7), (1, 9), (1, 12)), {"unicast-pointer": (7,), "multicast-pointer": (9, 12)}, ""),
        (cliques_of((3, 1), (4, 2)), {"multicast-logical-endpoint": (1,), "4": (2,)}, ""),
        (cliques_of(count=65), None, "has at most 64"),
        (pynvml.NVMLError(13), None, "Function Not Found"),
    ],
)
def test_cliques_have_types_where_the_driver_tells_them(
    answer: Answer, does: Any, cliques: dict[str, tuple[int, ...]] | None, detail: str
) -> None:
    answer("nvmlDeviceGetGpuFabricInfoV", filling(state=3, status=0, cliqueId=7))
    answer("nvmlDeviceGetGpuFabricInfo_v4", does)
    record = fabric_information(None)
    assert (record["clique_id"], record["cliques"]) == (7, cliques)
    assert cliques is not None or detail in record["unread"]["cliques"].detail


def profiles(*words: int) -> Any:
    """Return an answer whose mask of enforced profiles has these words; the other masks are all ones."""

    def fill(_handle: Any, reference: Any) -> int:
        info = reference._obj
        assert info.version == 0x1000064, "nvmlWorkloadPowerProfileCurrentProfiles_v1 (nvml.h)"
        ctypes.memset(ctypes.addressof(info) + 4, 0xFF, ctypes.sizeof(info) - 4)
        info.enforcedProfilesMask.mask[:] = (*words, *[0] * (8 - len(words)))
        return 0

    return fill


@pytest.mark.parametrize(
    ("mask", "names"),
    [((0,), []), ((0b10010,), ["max-q", "network"]), ((1 << 24, 0, 1), ["low-priority-background", "64"])],
)
def test_power_profiles_in_force_are_named(answer: Answer, mask: tuple[int, ...], names: list[str]) -> None:
    answer("nvmlDeviceWorkloadPowerProfileGetCurrentProfiles", profiles(*mask))
    (question,) = (question for question in nvml._GPU if question.fields == "power_profiles")
    assert question.answer((None,)) == names


@pytest.mark.parametrize("word", range(25))
def test_the_names_of_power_profiles_are_pynvml_s(word: int) -> None:
    constant = nvml._power_profile(word).replace("-", "_").upper()
    assert getattr(pynvml, f"NVML_POWER_PROFILE_{constant}") == word


@pytest.mark.parametrize(("value", "encrypted"), [(0, False), (1, True), (pynvml.NVMLError(13), None)])
def test_nvlink_encryption_is_a_state_of_each_gpu(answer: Answer, value: Any, encrypted: bool | None) -> None:
    answer("nvmlDeviceGetNvLinkInfo", filling(isNvleEnabled=value) if isinstance(value, int) else value)
    questions = [question for question in nvml._GPU if question.fields == "nvlink_encryption"]
    record = read_record(questions, None)
    assert record["nvlink_encryption"] is encrypted
    assert encrypted is not None or "Function Not Found" in record["unread"]["nvlink_encryption"].detail


def test_the_platform_is_read_byte_by_byte(answer: Answer) -> None:
    place = filling(
        chassisSerialNumber=b"1234567890123", slotNumber=b"\xc8", trayIndex=b"\x02", hostId=b"\xff", peerType=b"\x01"
    )
    answer("nvmlDeviceGetPlatformInfo", place)
    answer("nvmlDeviceGetModuleId", 4)

    record = read_record(PLATFORM, None)

    assert record.pop("unread").keys() == {"host_id"}
    assert record == {
        "module_id": 4,
        "chassis_serial": "1234567890123",
        "slot": 200,
        "tray": 2,
        "host_id": None,
        "peer_type": "switch",
    }


@pytest.mark.parametrize("place", [filling(hostId=b"\x01"), pynvml.NVMLError(3)], ids=["no chassis", "no platform"])
def test_the_module_id_is_known_where_the_place_is_not(answer: Answer, place: Any) -> None:
    answer("nvmlDeviceGetPlatformInfo", place)
    answer("nvmlDeviceGetModuleId", 6)

    record = read_record(PLATFORM, None)

    assert record["module_id"] == 6
    assert set(record["unread"]) == {"chassis_serial", "slot", "tray", "host_id", "peer_type"}
