"""What egmctl reads through an NVML that is not the project's own: NVIDIA's mock.

It is pkg/gpu/mocknvml of NVIDIA/k8s-test-infra, read at 3b2b865d. The tests run where ``EGMCTL_NVML_MOCK`` names the
folder in which that library was built, with its profiles in ``configs/``: nothing of it is here. It knows NVML alone,
no PCI, no files of the driver, no CUDA.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.conftest import Ended, ended

MOCK = os.environ.get("EGMCTL_NVML_MOCK")

pytestmark = [
    pytest.mark.processes,
    pytest.mark.optional,
    pytest.mark.skipif(MOCK is None, reason="EGMCTL_NVML_MOCK: the folder of a built library of NVIDIA's nvml-mock"),
]

PROFILES = ("a100", "b200", "gb200", "gb300", "h100", "l40s", "t4")

WITHOUT_LINKS = ("b200",)
"""Profiles for which the library answers that there are no NVLinks, whatever they state."""

GT_S = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
"""The rate of a lane by PCIe generation (PCI Express base specification)."""


def profile(name: str) -> dict[str, Any]:
    """Return one of the library's profiles."""
    content = yaml.safe_load((Path(str(MOCK)) / "configs" / f"mock-nvml-config-{name}.yaml").read_text())
    assert isinstance(content, dict)
    return content


def asked(place: Path, content: Mapping[str, Any], *command: str) -> Ended:
    """Run a command on the library with this profile."""
    config = place / "profile.yaml"
    config.write_text(json.dumps(content))  # JSON is YAML, in which no text looks like a number
    environment = {"LD_LIBRARY_PATH": str(MOCK), "MOCK_NVML_CONFIG": str(config), "EGMCTL_SYSROOT": str(place / "root")}
    return ended([sys.executable, "-m", "egmctl", *command], env=environment)


def on(mode: str) -> bool:
    return mode == "enabled"


class Field(NamedTuple):
    """A field of a GPU's NVML record, and where the profile states it."""

    record: str
    profile: str
    read: Callable[[Any], Any] = lambda stated: stated


FIELDS = (
    Field("uuid", "uuid"),
    Field("name", "name"),
    Field("serial", "serial"),
    Field("board_part_number", "board_part_number"),
    Field("vbios", "vbios_version"),
    Field("minor", "minor_number"),
    Field("compute_capability", "compute_capability", lambda stated: [stated["major"], stated["minor"]]),
    Field("memory_total_bytes", "memory.total_bytes"),
    Field("bar1_total_bytes", "bar1_memory.total_bytes"),
    Field("link.speed_gt_s", "pcie.current_link_gen", GT_S.get),
    Field("link.width", "pcie.current_link_width"),
    Field("link.max_speed_gt_s", "pcie.max_link_gen", GT_S.get),
    Field("link.max_width", "pcie.max_link_width"),
    Field("ecc_mode", "ecc.mode_current", on),
    Field("persistence_mode", "persistence_mode", on),
    Field("compute_mode", "compute_mode"),
    Field("mig_mode", "mig.mode_current", on),
    Field("mig_mode_pending", "mig.mode_pending", on),
    Field("remapped_rows_pending", "remapped_rows.pending"),
    Field("remapped_rows_failure", "remapped_rows.failure_occurred"),
    Field("remapped_rows_correctable", "remapped_rows.correctable"),
    Field("remapped_rows_uncorrectable", "remapped_rows.uncorrectable"),
    Field("sm_clock_mhz", "clocks.sm_current"),
    Field("sm_clock_max_mhz", "clocks.sm_max"),
    Field("memory_clock_mhz", "clocks.memory_current"),
    Field("memory_clock_max_mhz", "clocks.memory_max"),
    Field("performance_state", "performance_state", lambda stated: int(stated.removeprefix("P"))),
    Field("power_limit_mw", "power.enforced_limit_mw"),
    Field("power_limit_default_mw", "power.default_limit_mw"),
    Field("temperature_c", "thermal.temperature_gpu_c"),
)


def at(record: Mapping[str, Any] | None, path: str) -> Any:
    """Return the value at a dotted path, ``None`` where there is none."""
    value: Any = record
    for key in path.split("."):
        value = None if value is None else value.get(key)
    return value


def compared(content: Mapping[str, Any], gpus: list[Any], without_links: bool) -> Iterator[tuple[str, Any, Any]]:
    """Yield each field that a profile states: its name, what egmctl read, and what is stated."""
    for device, gpu in zip(content["devices"], gpus, strict=True):
        stated = merged(content["device_defaults"], device)
        yield f"GPU{gpu['index']}.bus_id", gpu["bus_id"], at(stated, "pci.bus_id").lower()
        for field in FIELDS:
            value = at(stated, field.profile)
            if value is not None and value != "N/A":
                yield f"GPU{gpu['index']}.{field.record}", at(gpu["nvml"], field.record), field.read(value)
        links = {} if content.get("nvlink") is None or without_links else content["nvlink"]
        yield f"GPU{gpu['index']}.nvlinks", len(gpu["nvml"]["nvlinks"] or ()), links.get("links_per_gpu", 0)
        for link in gpu["nvml"]["nvlinks"] or ():
            yield f"GPU{gpu['index']}.link{link['link']}.version", link["version"], links["version"]
            yield f"GPU{gpu['index']}.link{link['link']}.speed", link["speed_mb_s"], links["bandwidth_per_link_mbps"]


def merged(defaults: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return a device's values: its own over the defaults, groups member by member."""
    whole = copy.deepcopy(dict(defaults))
    for key, value in own.items():
        whole[key] = {**whole.get(key, {}), **value} if isinstance(value, dict) else value
    return whole


@pytest.mark.parametrize("name", PROFILES)
def test_every_field_that_a_profile_states_is_read_as_it_is(tmp_path: Path, name: str) -> None:
    content = profile(name)
    done = asked(tmp_path, content, "snapshot", "--full", "-o", "-")
    fields = list(compared(content, json.loads(done.out)["gpus"], without_links=name in WITHOUT_LINKS))
    assert [field for field in fields if field[1] != field[2]] == []
    assert len(fields) >= 20 * len(content["devices"])


class Fault(NamedTuple):
    """A change of a profile, and the check that must find it."""

    profile: str
    check: str
    status: str
    device: Mapping[str, Any] = {}
    """Changed on GPU3."""
    all: Mapping[str, Any] = {}
    """Changed on every GPU."""
    nvlink: Mapping[str, Any] = {}


DOMAIN = {"cluster_uuid": "00000000-0000-0000-0000-000000000001", "clique_id": 1, "state": "completed"}

FAULTS = {
    "lost": Fault("h100", "dev.count-consistency", "fail", device={"failure": {"mode": "lost"}}),
    "lost-later": Fault(
        "h100", "dev.count-consistency", "fail", device={"failure": {"mode": "lost", "after_calls": 3}}
    ),
    "off-the-bus": Fault("h100", "dev.count-consistency", "fail", device={"failure": {"mode": "fallen_off_bus"}}),
    "ecc-errors": Fault("h100", "gpu.health", "fail", device={"failure": {"mode": "ecc_uncorrectable"}}),
    "rows-failed": Fault("h100", "gpu.health", "fail", all={"remapped_rows": {"failure_occurred": True}}),
    "rows-pending": Fault("h100", "gpu.health", "warn", all={"remapped_rows": {"pending": True, "uncorrectable": 1}}),
    "ecc-off": Fault("h100", "gpu.uniform", "warn", device={"ecc": {"mode_current": "disabled"}}),
    "power-limit": Fault("h100", "gpu.uniform", "warn", device={"power": {"enforced_limit_mw": 200000}}),
    "vbios": Fault("h100", "gpu.uniform", "note", device={"vbios_version": "96.00.00.00.01"}),
    "mig": Fault("h100", "gpu.mig", "note", all={"mig": {"mode_current": "enabled", "mode_pending": "enabled"}}),
    "prohibited": Fault("h100", "gpu.compute-mode", "fail", all={"compute_mode": "prohibited"}),
    "exclusive": Fault("h100", "gpu.compute-mode", "warn", all={"compute_mode": "exclusive_process"}),
    "persistence": Fault("h100", "gpu.persistence", "warn", all={"persistence_mode": "disabled"}),
    "hot": Fault("h100", "gpu.throttle", "warn", device={"clocks_throttle_reasons": {"hw_thermal_slowdown": True}}),
    "brake": Fault(
        "h100", "gpu.throttle", "warn", device={"clocks_throttle_reasons": {"hw_power_brake_slowdown": True}}
    ),
    "link-errors": Fault("h100", "nvlink.errors", "fail", device={"nvlink_error": {"rate": 1000.0}}),
    "links-down": Fault(
        "h100",
        "nvlink.links",
        "fail",
        nvlink={"links": [{"link": link, "state": "inactive" if link > 15 else "active"} for link in range(18)]},
    ),
    "unregistered": Fault("h100", "fabric.state", "fail", all={"fabric": {"state": "not_started"}}),
    "in-progress": Fault("gb200", "fabric.state", "fail", all={"fabric": {**DOMAIN, "state": "in_progress"}}),
    "route": Fault("gb200", "fabric.state", "fail", all={"fabric": {**DOMAIN, "health": {"route_unhealthy": True}}}),
    "degraded": Fault(
        "gb200", "fabric.state", "warn", all={"fabric": {**DOMAIN, "health": {"degraded_bandwidth": True}}}
    ),
    "clique": Fault(
        "gb200", "fabric.domain", "fail", all={"fabric": DOMAIN}, device={"fabric": {**DOMAIN, "clique_id": 2}}
    ),
}


def changed(fault: Fault) -> dict[str, Any]:
    """Return a profile with a fault."""
    content = profile(fault.profile)
    content["device_defaults"] = merged(content["device_defaults"], fault.all)
    content["devices"][3] |= {
        key: {**content["device_defaults"].get(key, {}), **value} if isinstance(value, dict) else value
        for key, value in fault.device.items()
    }
    content["nvlink"] |= fault.nvlink
    return content


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_by_its_check_and_by_it_alone(tmp_path: Path, name: str) -> None:
    """Beside what the profile without it already has: the library has no device nodes, no IMEX."""
    fault = FAULTS[name]
    before, after = (
        verdicts(asked(tmp_path, content, "doctor", "--json")) for content in (profile(fault.profile), changed(fault))
    )
    assert after.get(fault.check) == fault.status
    assert before.get(fault.check) != fault.status


def verdicts(done: Ended) -> dict[str, str]:
    """Return the worst status of each check that did not pass."""
    order = ("note", "warn", "fail")
    worst: dict[str, str] = {}
    for finding in json.loads(done.out)["result"]["findings"]:
        if finding["status"] in order:
            known = worst.get(finding["check"], "note")
            worst[finding["check"]] = max(known, finding["status"], key=order.index)
    return worst
