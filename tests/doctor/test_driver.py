"""The driver's parts. The shape that tests of checks have: a machine that passes, and one for each other verdict."""

from __future__ import annotations

from egmctl.model.finding import Status
from tests.doctor.machines import patched, run_one, shipped

NODE = shipped("gb200-nvl72")


class TestVersions:
    def test_the_same_everywhere(self) -> None:
        machine = patched(NODE, "driver", module_version="580.159.04", driver_version="580.159.04")
        finding = run_one("drv.versions", machine)
        assert (finding.status, finding.summary) == (Status.PASS, "kernel module and libraries are both 580.159.04")

    def test_libraries_of_another_version(self) -> None:
        machine = patched(NODE, "driver", module_version="580.159.04", driver_version="575.57.08")
        finding = run_one("drv.versions", machine)
        assert (finding.status, finding.summary) == (
            Status.FAIL,
            "the kernel module is 580.159.04, the libraries are 575.57.08",
        )
        assert finding.remedy is not None
        assert finding.remedy.needs_root

    def test_nvml_that_refuses_to_start(self) -> None:
        error = "NVML_ERROR_LIB_RM_VERSION_MISMATCH"
        machine = patched(NODE, "driver", module_version="580.159.04", driver_version=None, nvml_error=error)
        assert run_one("drv.versions", machine).status is Status.FAIL

    def test_no_driver_is_no_fault_of_its_versions(self) -> None:
        machine = patched(NODE, "driver", module_version=None, driver_version=None, modules=())
        assert run_one("drv.versions", machine).status is Status.SKIP

    def test_a_version_that_was_not_read(self) -> None:
        machine = patched(NODE, "driver", module_version="580.159.04", driver_version=None, nvml_error=None)
        assert run_one("drv.versions", machine).status is Status.UNKNOWN
