"""Remedies that once did harm, or nothing: what they are now, where they apply and where they do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from egmctl.doctor.check import EVERYTHING, Scope
from egmctl.model.finding import Finding, Guard, Status
from egmctl.model.host import DeviceNode, LibraryFailure, Process
from egmctl.model.machine import Machine
from egmctl.model.remedy import Need, Remedy
from tests.doctor.faults import healthy
from tests.doctor.machines import patched, run, shipped

CHANNELS = "/dev/nvidia-caps-imex-channels"
FABRIC = Scope(purposes=(Guard.FABRIC,))
SITES = {
    "host": Process(container_signs=(), environment={}),
    "job": Process(container_signs=(), environment={"SLURM_JOB_ID": "7"}),
    "container": Process(container_signs=("/.dockerenv",), environment={}),
    "pod": Process(container_signs=("KUBERNETES_SERVICE_HOST",), environment={}),
}


def remedy_of(check: str, machine: Machine, scope: Scope = EVERYTHING) -> Remedy:
    """The remedy of a check's first finding that has one."""
    finding = next(finding for finding in run(check, machine, scope) if finding.remedy is not None)
    assert finding.remedy is not None
    return finding.remedy


def on(site: str, machine: Machine) -> Machine:
    return replace(machine, process=SITES[site])


class TestAMissingImexChannel:
    def machine(self, site: str, **driver: object) -> Machine:
        return on(site, patched(healthy(), "driver", imex_channels=(), **driver))

    def test_root_makes_it_with_the_drivers_major(self) -> None:
        remedy = remedy_of("imex.channel", self.machine("host"), FABRIC)
        assert remedy.run == f"mkdir -p {CHANNELS} && mknod -m 0600 {CHANNELS}/channel0 c 242 0"
        assert remedy.needs == (Need.ROOT,)
        assert "NVreg_CreateImexChannel0=1" in remedy.text

    def test_without_the_major_there_is_no_command(self) -> None:
        remedy = remedy_of("imex.channel", self.machine("host", majors=None), FABRIC)
        assert (remedy.run, remedy.look) == (None, "grep nvidia-caps-imex-channels /proc/devices")

    @pytest.mark.parametrize(
        ("site", "who"),
        [("job", "switch/nvidia_imex"), ("container", "NVIDIA_IMEX_CHANNELS=0"), ("pod", "ComputeDomain")],
    )
    def test_elsewhere_it_is_asked_for(self, site: str, who: str) -> None:
        remedy = remedy_of("imex.channel", self.machine(site), FABRIC)
        assert (remedy.run, who in remedy.text) == (None, True)


class TestAnImexChannelThatCannotBeUsed:
    def machine(self, site: str = "host", **node: object) -> Machine:
        channel = DeviceNode(
            path=f"{CHANNELS}/channel7", exists=True, major=242, minor=7, mode=0o660, uid=1000, gid=1001, access="ok"
        )
        return on(site, patched(healthy(), "driver", imex_channels=(replace(channel, **node),)))  # type: ignore[arg-type]

    def test_a_stale_one_is_made_again_alone_as_it_was(self) -> None:
        node = f"{CHANNELS}/channel7"
        remedy = remedy_of("imex.channel", self.machine(major=241), FABRIC)
        assert remedy.run == f"rm {node} && mknod -m 0660 {node} c 242 7 && chown 1000:1001 {node}"

    def test_in_a_container_it_comes_with_a_new_container(self) -> None:
        assert remedy_of("imex.channel", self.machine("container", major=241), FABRIC).run is None

    def test_another_tenants_is_not_opened(self) -> None:
        remedy = remedy_of("imex.channel", self.machine(access="EACCES"), FABRIC)
        assert (remedy.look, remedy.run) == (f"ls -l {CHANNELS}", None)
        assert "of this user's own" in remedy.text


class TestImexPeers:
    def test_an_absent_peer_restarts_no_other_node(self) -> None:
        machine = patched(healthy(), "system.imex", daemon_state="WAITING_FOR_QUORUM")
        remedy = remedy_of("imex.daemon", on("host", machine))
        assert (remedy.look, remedy.run) == ("nvidia-imex-ctl -N", None)
        assert "the others need nothing" in remedy.text


class TestDeviceNodes:
    def test_the_control_node_is_number_255(self) -> None:
        node = DeviceNode(path="/dev/nvidiactl", exists=False, access="ENOENT")
        machine = patched(patched(healthy(), "driver", nodes=(node,)), "gpus[*]", nvml=None, cuda=None)
        assert remedy_of("dev.control-nodes", on("host", machine)).run == "nvidia-modprobe -c 255"

    @pytest.mark.parametrize("path", ["/dev/nvidiactl", "/dev/nvidia-uvm"])
    def test_a_stale_one_is_made_again_alone(self, path: str) -> None:
        node = DeviceNode(path=path, exists=True, access="ok", major=3, minor=3)
        machine = patched(patched(healthy(), "driver", nodes=(node,)), "gpus[*]", nvml=None, cuda=None)
        run = remedy_of("dev.control-nodes", on("host", machine)).run
        made = {"/dev/nvidiactl": "nvidia-modprobe -c 255", "/dev/nvidia-uvm": "nvidia-modprobe -u -c 0"}
        assert run == f"rm {path} && {made[path]}"

    def test_a_stale_gpus_node_is_that_of_its_own_number(self) -> None:
        machine = patched(shipped("hgx-h200x4"), "gpus[2].node", major=3, minor=3)
        machine = patched(machine, "gpus[2]", nvml=None, cuda=None)
        gpu = (machine.gpus or ())[2]
        assert gpu.node is not None
        number = gpu.node.path.removeprefix("/dev/nvidia")
        remedy = remedy_of("dev.permissions", on("host", machine))
        assert remedy.run == f"rm {gpu.node.path} && nvidia-modprobe -c {number}"
        assert remedy_of("dev.permissions", on("container", machine)).run is None


class TestMig:
    def finding(self, scope: Scope = EVERYTHING) -> Finding:
        machine = on("host", patched(shipped("hgx-h200x4"), "gpus[1].nvml", mig_mode=True))
        return next(finding for finding in run("gpu.mig", machine, scope) if finding.place.label == "GPU1")

    def test_a_partitioned_gpu_is_a_choice(self) -> None:
        remedy = self.finding().remedy
        assert (self.finding().status, remedy and remedy.run) == (Status.NOTE, None)

    def test_where_gpus_work_together_it_is_turned_off_on_that_gpu(self) -> None:
        finding = self.finding(Scope(purposes=(Guard.P2P,)))
        assert finding.status is Status.FAIL
        assert finding.remedy is not None
        assert finding.remedy.run == f"nvidia-smi -i {finding.place.ids[0]} -mig 0"
        assert (finding.remedy.idle, Need.IDLE_GPUS in finding.remedy.needs) == ("GPU1", True)


class TestLibrariesOfAnotherVersion:
    MISMATCH = LibraryFailure(how="error", call="cuInit", number=803, name="CUDA_ERROR_SYSTEM_DRIVER_MISMATCH")

    def machine(self, site: str, **driver: object) -> Machine:
        machine = patched(shipped("hgx-h200x4"), "gpus[*]", cuda=None)
        return on(site, patched(machine, "driver", cuda_failure=self.MISMATCH, **driver))

    @pytest.mark.parametrize("site", ["host", "container"])
    def test_where_module_and_libraries_agree_another_libcuda_is_loaded(self, site: str) -> None:
        remedy = remedy_of("drv.libraries", self.machine(site))
        assert "compat folder" in remedy.text
        assert not {Need.REBOOT, Need.DRIVER_RELOAD}.intersection(remedy.needs)

    @pytest.mark.parametrize(
        ("compat", "version", "module", "cause"),
        [
            (True, "580.65.06", "570.86.15", "libcuda 580.65.06 of CUDA's compat folder is loaded"),
            (False, "580.65.06", "570.86.15", "libcuda 580.65.06 of another folder than the driver's is loaded"),
            (False, "570.86.15", "570.86.15", "another libcuda than the driver's is loaded first"),
        ],
    )
    def test_the_libcuda_that_is_loaded_is_named(self, compat: bool, version: str, module: str, cause: str) -> None:
        facts = {"module_version": module, "libcuda_version": version, "libcuda_compat": compat}
        machine = self.machine("container", driver_version=module, **facts)
        (finding,) = [finding for finding in run("drv.libraries", machine) if finding.status is Status.FAIL]
        assert finding.cause.startswith(cause)

    def test_a_container_is_not_told_to_reload_the_hosts_driver(self) -> None:
        assert "host's driver libraries" in remedy_of("drv.versions", self.machine("pod", module_version="1.2.3")).text
        assert Need.DRIVER_RELOAD in remedy_of("drv.versions", self.machine("host", module_version="1.2.3")).needs


class TestNvidiaUvm:
    FAILED = LibraryFailure(how="error", call="cuInit", number=999, name="CUDA_ERROR_UNKNOWN")

    def machine(self, *, loaded: bool) -> Machine:
        modules = ("nvidia", "nvidia_uvm") if loaded else ("nvidia",)
        access = "ok" if loaded else "ENOENT"
        node = DeviceNode(path="/dev/nvidia-uvm", exists=loaded, access=access)
        machine = patched(shipped("hgx-h200x4"), "gpus[*]", cuda=None)
        return on("host", patched(machine, "driver", cuda_failure=self.FAILED, modules=modules, nodes=(node,)))

    def test_it_is_loaded_where_it_is_missing(self) -> None:
        remedy = remedy_of("drv.libraries", self.machine(loaded=False))
        assert remedy.run == "modprobe nvidia_uvm && nvidia-modprobe -u -c 0"

    def test_elsewhere_the_error_is_looked_up(self) -> None:
        remedy = remedy_of("drv.libraries", self.machine(loaded=True))
        assert (remedy.look, remedy.run) == ("egmctl explain cuInit 999", None)


def test_nouveau_is_in_the_initramfs_too() -> None:
    machine = patched(patched(shipped("hgx-h200x4"), "driver", modules=("nouveau",)), "gpus[*].pci", driver="nouveau")
    remedy = remedy_of("drv.nouveau", on("host", machine))
    assert remedy.run is not None
    assert "initramfs" in remedy.run


def test_turning_egm_on_says_what_it_takes() -> None:
    machine = patched(patched(healthy(), "gpus[*].nvml", capabilities=0), "system", acpi_egm=False, firmware_egm=())
    text = remedy_of("egm.capability", on("host", machine)).text
    assert "P2P only if the fabric manager gives them EGM addresses" in text
    assert "takes memory from the host" in text


def test_a_hypervisors_driver_is_not_kept_from_loading() -> None:
    machine = patched(healthy(), "gpus[*].pci", driver="nvgrace_gpu_vfio_pci")
    machine = patched(machine, "gpus[*]", nvml=None, cuda=None)
    findings = run("dev.driver-binding", on("host", machine))
    assert {finding.status for finding in findings} == {Status.NOTE}
    assert not any("blacklist" in finding.remedy.text for finding in findings if finding.remedy)
