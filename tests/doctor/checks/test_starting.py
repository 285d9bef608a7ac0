"""NVML and CUDA that do not start, and what each case needs."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from egmctl.model.finding import Status
from egmctl.model.host import LibraryFailure
from egmctl.model.machine import Machine
from tests.doctor.faults import Fault, changed, healthy
from tests.doctor.machines import patched, run, run_one

FAULTS: dict[str, Fault] = {
    "drv.libraries": changed("driver", nvml_failure=LibraryFailure(how="crashed", call="nvmlDeviceGetUUID"))
}
MISSING = LibraryFailure(how="missing", detail="cannot open shared object file")


def without_libraries(
    *libraries: str, environment: Mapping[str, str] | None, signs: tuple[str, ...] = ("/.dockerenv",)
) -> Machine:
    machine = patched(healthy(), "process", container_signs=signs, environment=environment)
    machine = patched(machine, "driver", **{f"{library}_failure": MISSING for library in libraries})
    return patched(machine, "gpus[*]", **dict.fromkeys(libraries))


@pytest.mark.parametrize(
    ("machine", "summary", "remedy"),
    [
        (
            without_libraries("nvml", "cuda", environment={}),
            "NVML and CUDA are missing: the libraries cannot be loaded (libnvidia-ml.so.1, libcuda.so.1)",
            "Generate the CDI specification anew",
        ),
        (
            without_libraries("nvml", "cuda", environment={"NVIDIA_VISIBLE_DEVICES": "all"}),
            "NVML and CUDA are missing",
            "Start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility.",
        ),
        (
            without_libraries("cuda", environment={"NVIDIA_VISIBLE_DEVICES": "all"}),
            "CUDA is missing: the library cannot be loaded (libcuda.so.1)",
            "Start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility.",
        ),
        (
            without_libraries("nvml", "cuda", environment={}, signs=()),
            "NVML and CUDA are missing",
            "Install the libraries of driver",
        ),
    ],
)
def test_what_gives_a_process_the_libraries(machine: Machine, summary: str, remedy: str) -> None:
    (finding,) = [finding for finding in run("drv.libraries", machine) if finding.status is Status.FAIL]
    assert finding.summary.startswith(summary)
    assert finding.remedy is not None
    assert finding.remedy.text.startswith(remedy)


def test_a_container_whose_variables_were_not_read_may_have_asked_for_less() -> None:
    finding = run_one("drv.libraries", without_libraries("nvml", "cuda", environment=None))
    assert finding.cause == ""
