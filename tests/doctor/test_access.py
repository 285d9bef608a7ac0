"""The cgroup verdict and the container's: who lost which GPU, to whom, and when that is a fault."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from egmctl.doctor.check import Expectation, Scope
from egmctl.model.finding import Confidence, Finding, Guard, Status
from egmctl.model.host import Cgroup, Confinement, DeviceList, DeviceProgram, DeviceUnit, Mount, Process
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from tests.doctor.cases import asked
from tests.doctor.machines import bus_id, patched, run, run_one, shipped, with_gpu_denied

HGX = shipped("hgx-h200x4")
NVL4 = shipped("gb200-tray")
"""Two owners a NUMA node."""
GH200X4 = shipped("gh200x4")
"""One owner a NUMA node."""

CGROUP, NODES = "dev.cgroup-restricted", "dev.nodes-missing"


def in_cgroup(
    machine: Machine,
    path: str,
    *,
    version: int = 2,
    program: str | None = None,
    at: str | None = None,
    **variables: str,
) -> Machine:
    """Return the machine seen from a cgroup, with a device program attached to ``at``."""
    controllers = ("devices",) if version == 1 else ()
    process = Process(
        cgroups=(Cgroup(version=version, controllers=controllers, path=path),),
        container_signs=(),
        environment=variables,
    )
    programs = () if program is None else (DeviceProgram(id=7, name=program, cgroup=at or path),)
    return dataclasses.replace(machine, process=process, confinement=Confinement(device_programs=programs))


def of_nobody(machine: Machine) -> Machine:
    """Return the machine without an environment that says whose GPUs are whose."""
    return patched(machine, "process", environment={})


def values(finding: Finding) -> dict[str, str]:
    return {evidence.source: evidence.value for evidence in finding.evidence}


class TestSeverity:
    def test_a_share_of_a_node_is_no_fault(self) -> None:
        denied = bus_id(HGX, 1)
        finding = run_one(CGROUP, of_nobody(with_gpu_denied(HGX, 1)))
        assert (finding.status, finding.blocks) == (Status.NOTE, ())
        assert finding.summary == "the device cgroup denies /dev/nvidia1"
        assert "normal for a partial allocation" in finding.note
        assert "GPU0-2 cannot import memory of GPU3 by legacy, descriptor, pool or fabric handle" in finding.note
        assert finding.place.ids == (denied,)
        (access,) = [evidence for evidence in finding.evidence if evidence.source == "access(/dev/nvidia1)"]
        assert (access.value, access.errno) == ("EPERM", "EPERM")

    def test_a_gpu_that_was_asked_for_is_a_fault(self) -> None:
        denied = bus_id(HGX, 1)
        finding = run_one(CGROUP, with_gpu_denied(HGX, 1), Scope(gpus=(denied,)))
        assert finding.status is Status.FAIL
        assert finding.summary == "the device cgroup denies /dev/nvidia1, but GPU3 is required (--gpus, --expect)"
        assert finding.remedy is not None
        assert "CUDA_VISIBLE_DEVICES" in finding.remedy.text

    def test_another_gpu_that_was_asked_for_is_none(self) -> None:
        scope = Scope(gpus=(bus_id(HGX, 0),))
        assert run_one(CGROUP, with_gpu_denied(HGX, 1), scope).status is Status.NOTE

    @pytest.mark.parametrize(
        ("expectation", "status"),
        [
            (Expectation(gpus=4), Status.FAIL),
            (Expectation(gpus=3), Status.NOTE),
            (Expectation(reference=HGX, gpus=4), Status.FAIL),
            (Expectation(reference=with_gpu_denied(HGX, 1), gpus=4), Status.NOTE),
        ],
    )
    def test_an_expectation_asks_too(self, expectation: Expectation, status: Status) -> None:
        assert run_one(CGROUP, with_gpu_denied(HGX, 1), Scope(expectation=expectation)).status is status

    def test_an_egm_node_that_keeps_an_owner_warns(self) -> None:
        finding = run_one(CGROUP, with_gpu_denied(NVL4, 3))
        assert finding.status is Status.WARN
        assert finding.summary == "the device cgroup denies /dev/nvidia3: EGM to NUMA 1 has fewer GPUs to go through"
        assert values(finding)["GPUs of each NUMA node"] == "NUMA 0: GPU0-1; NUMA 1: GPU2, GPU3 blocked"

    def test_nodes_out_of_scope_do_not_count(self) -> None:
        assert run_one(CGROUP, with_gpu_denied(GH200X4, 1), Scope(numa=(0,))).status is Status.NOTE

    def test_local_egm_needs_no_other_gpu(self) -> None:
        scope = Scope(gpus=(bus_id(NVL4, 2),), numa=(1,))
        assert run_one(CGROUP, with_gpu_denied(NVL4, 3), scope).status is Status.NOTE

    def test_without_egm_no_node_loses_anything(self) -> None:
        off = patched(NVL4, "gpus[*].nvml", capabilities=0)
        assert run_one(CGROUP, with_gpu_denied(off, 2, 3)).status is Status.NOTE

    def test_a_hidden_gpu_passes_and_says_why(self) -> None:
        machine = patched(HGX, "process", environment={"CUDA_VISIBLE_DEVICES": "0"})
        finding = run_one(CGROUP, machine, Scope(gpus=(bus_id(HGX, 1),)))
        assert finding.status is Status.PASS
        assert "EGM routes over them stay" in finding.note

    def test_the_rules_of_version_1_are_shown_and_not_believed(self) -> None:
        machine = in_cgroup(with_gpu_denied(HGX, 1), "/job", version=1)
        machine = patched(machine, "confinement", device_rules=("a *:* rwm",))
        finding = run_one(CGROUP, machine)
        assert values(finding)["devices.list (a hint only)"] == "a *:* rwm"
        assert finding.summary == "the device cgroup denies /dev/nvidia1"

    def test_of_another_process_only_root_can_tell(self) -> None:
        untold = {"node": Unread(reason=Reason.NO_PERMISSION, detail="only root can join it")}
        machine = patched(patched(HGX, "gpus[*]", node=None, unread=untold), "process", pid=42)
        finding = run_one(CGROUP, machine)
        assert finding.status is Status.UNKNOWN
        assert finding.summary == "whether these GPUs are accessible is unknown: only root can join it"

    def test_what_nvml_lists_says_nothing_of_another_process(self) -> None:
        machine = patched(patched(HGX, "gpus[1].node", access="EPERM"), "process", pid=42)
        assert run_one(CGROUP, machine, Scope(gpus=(bus_id(HGX, 1),))).status is Status.FAIL
        missing = patched(patched(HGX, "gpus[1].node", access="ENOENT", exists=False), "process", pid=42)
        assert run_one(NODES, missing).place.ids == (bus_id(HGX, 1),)
        line = run_one("dev.count-consistency", machine).evidence[0].value
        assert line.endswith("3 accessible > not asked NVML > not asked CUDA")

    def test_egm_of_another_process(self) -> None:
        healthy = patched(NVL4, "process", pid=42)
        assert run_one("egm.cgroup-route", healthy).status is Status.PASS
        denied = run("egm.cgroup-route", patched(healthy, "gpus[3].node", access="EPERM"))
        assert [finding.status for finding in denied] == [Status.WARN, Status.PASS]
        untold = {"node": Unread(reason=Reason.NO_PERMISSION, detail="")}
        unknown = run("egm.cgroup-route", patched(healthy, "gpus[3]", node=None, unread=untold))
        assert [finding.status for finding in unknown] == [Status.UNKNOWN, Status.PASS]

    @pytest.mark.parametrize("access", [None, "ELOOP", "EIO"])
    def test_an_access_that_cannot_be_told_is_neither_a_pass_nor_a_denial(self, access: str | None) -> None:
        unread = {} if access else {"access": Unread(reason=Reason.FAILED, detail="/dev/nvidia1: ELOOP")}
        machine = patched(patched(HGX, "gpus[1].node", access=access, unread=unread), "process", pid=42)
        findings = run(CGROUP, machine)
        why = "/dev/nvidia1: ELOOP" if unread else f"/dev/nvidia1: access(2) answers {access}"
        assert (findings[0].status, findings[0].place.ids) == (Status.UNKNOWN, (bus_id(HGX, 1),))
        assert findings[0].summary == f"whether these GPUs are accessible is unknown: {why}"


JOB = "/system.slice/slurmstepd.scope/job_42/step_0/user/task_3"


class TestWhoSetIt:
    @pytest.mark.parametrize(
        ("path", "program", "at", "cause", "confidence"),
        [
            (JOB, "Slurm_Cgroup_v2", "/system.slice/slurmstepd.scope/job_42", "Slurm for this job", "high"),
            (JOB, "Slurm_Cgroup_v2", JOB, "Slurm for this task", "high"),
            (JOB, None, None, "Slurm for this job", "medium"),
            ("/kubepods.slice/kubepods-burstable.slice/cri-containerd-1.scope", None, None, "Kubernetes", "high"),
            ("/system.slice/docker-0123456789abcdef.scope", None, None, "Docker", "high"),
            ("/docker/0123456789abcdef", None, None, "Docker", "high"),
            ("/machine.slice/libpod-0123.scope", None, None, "Podman", "high"),
            ("/lsf/cluster1/job.7", None, None, "LSF", "high"),
            ("/system.slice/train.service", "sd_devices", None, "systemd for train.service", "high"),
        ],
    )
    def test_by_path_and_program(
        self, path: str, program: str | None, at: str | None, cause: str, confidence: str
    ) -> None:
        machine = in_cgroup(with_gpu_denied(HGX, 1), path, program=program, at=at)
        finding = run_one(CGROUP, machine)
        assert finding.cause.startswith(f"set by {cause} (")
        assert finding.confidence is Confidence(confidence)

    def test_slurm_of_version_1_binds_gpus_to_tasks_where_the_job_says_so(self) -> None:
        path = "/slurm/uid_1000/job_42/step_0/task_3"
        denied = with_gpu_denied(HGX, 1)
        bound = in_cgroup(denied, path, version=1, SLURM_GPU_BIND="single:1")
        assert run_one(CGROUP, bound).cause.startswith("set by Slurm for this task (")
        free = in_cgroup(denied, path, version=1, SLURM_GPU_BIND="none")
        assert run_one(CGROUP, free).cause.startswith("set by Slurm for this job (")

    @pytest.mark.parametrize("program", ["Slurm_Cgroup_v2", None])
    @pytest.mark.parametrize(
        ("denied", "environment", "cause", "remedy"),
        [
            # As real tasks have them: srun --gres=gpu:3; --gres=gpu:4 --gpu-bind=single:1; --gres=none.
            (
                [1],
                {"SLURM_GPUS_ON_NODE": "3", "SLURM_STEP_GPUS": "0,2,3"},
                "this job",
                "of the node (--gres=gpu:4) and",
            ),
            ([1, 2, 3], {"SLURM_GPUS_ON_NODE": "4", "SLURM_STEP_GPUS": "0"}, "this task", "srun --gpu-bind=none"),
            (range(4), {}, "this job", "Ask Slurm for GPUs (--gres=gpu:N, this node has 4): this step has none."),
            (range(4), {"SLURM_GPUS_ON_NODE": "4"}, "this task", "--gres-flags=allow-task-sharing"),
            (
                [2, 3],
                {"SLURM_GPUS_ON_NODE": "2", "SLURM_JOB_GPUS": "0-3", "SLURM_STEP_GPUS": "0,1"},
                "this job",
                "the step all GPUs of the job (srun --gres=gpu:4, this one got 2)",
            ),
        ],
    )
    def test_slurms_remedy_depends_on_what_the_job_has(
        self, program: str | None, denied: Sequence[int], environment: dict[str, str], cause: str, remedy: str
    ) -> None:
        machine = with_gpu_denied(HGX, *denied)
        machine = in_cgroup(machine, JOB, program=program, at=JOB)
        finding = run_one(CGROUP, patched(machine, "process", environment={"SLURM_JOB_ID": "42", **environment}))
        assert finding.cause.startswith(f"set by Slurm for {cause} (")
        assert finding.remedy is not None
        assert remedy in finding.remedy.text

    def test_the_remedy_is_the_managers(self) -> None:
        asked = Scope(gpus=(bus_id(HGX, 1),))
        for path, words in (
            (JOB, "--gres=gpu:4"),
            ("/docker/0123456789abcdef", "--gpus all"),
            ("/kubepods/x", "DRA claim"),
            ("/lsf/c/job.7", "-gpu"),
            ("/system.slice/train.service", "cgroup that allows all GPUs"),
            ("/", "cgroup that allows all GPUs"),
        ):
            remedy = run_one(CGROUP, in_cgroup(with_gpu_denied(HGX, 1), path), asked).remedy
            assert remedy is not None
            assert words in remedy.text, path

    @pytest.mark.parametrize(
        ("unit", "setting", "command"),
        [
            ("train@1.service", "DevicePolicy=closed", "systemctl show -p DevicePolicy,DeviceAllow train@1.service"),
            ("job.scope", "DeviceAllow=/dev/nvidia0 rw", "systemctl show -p DevicePolicy,DeviceAllow job.scope"),
            ("a;reboot;.service", "DevicePolicy=strict", None),
        ],
    )
    def test_systemd_is_named_by_its_unit_files(self, unit: str, setting: str, command: str | None) -> None:
        """Everything is in some unit: that alone says nothing of who limits its devices."""
        machine = in_cgroup(with_gpu_denied(HGX, 1), f"/system.slice/{unit}")
        asked = Scope(gpus=(bus_id(HGX, 1),))
        assert run_one(CGROUP, machine, asked).cause == f"owner unknown; the cgroup is /system.slice/{unit}"
        file = DeviceUnit(unit=unit, file=f"/etc/systemd/system/{unit}", settings=(setting,))
        finding = run_one(CGROUP, patched(machine, "confinement", device_units=(file,)), asked)
        assert finding.cause == f"set by systemd for {unit} (/etc/systemd/system/{unit}: {setting})"
        assert finding.remedy is not None
        assert "DevicePolicy=auto" in finding.remedy.text
        assert finding.remedy.look == command

    def test_a_policy_that_limits_nothing_is_no_sign(self) -> None:
        machine = in_cgroup(with_gpu_denied(HGX, 1), "/system.slice/train.service")
        file = DeviceUnit(
            unit="train.service", file="/etc/systemd/system/train.service", settings=("DevicePolicy=auto",)
        )
        assert run_one(CGROUP, patched(machine, "confinement", device_units=(file,))).cause.startswith("owner unknown")

    def test_a_limit_on_an_ancestor_is_named_as_such(self) -> None:
        machine = in_cgroup(with_gpu_denied(HGX, 1), "/a/b/c", program="", at="/a")
        assert run_one(CGROUP, machine).cause == (
            "owner unknown; the limit is on /a, an ancestor of this process' cgroup /a/b/c"
        )
        lists = (
            DeviceList(cgroup="/", rules=("a *:* rwm",)),
            DeviceList(cgroup="/a", rules=("c 195:0 rw",)),
            DeviceList(cgroup="/a/b", rules=("c 195:0 rw",)),
        )
        machine = patched(in_cgroup(with_gpu_denied(HGX, 1), "/a/b", version=1), "confinement", device_lists=lists)
        assert run_one(CGROUP, machine).cause.endswith("the limit is on /a, an ancestor of this process' cgroup /a/b")

    def test_a_container_is_blamed_for_its_own_cgroup_only(self) -> None:
        for path, cause in (
            ("/", "set by Docker (/.dockerenv: is there)"),
            ("/other", "owner unknown; the cgroup is /other"),
        ):
            machine = in_cgroup(with_gpu_denied(HGX, 1), path)
            machine = patched(machine, "process", container_signs=("/.dockerenv",))
            assert run_one(CGROUP, machine).cause == cause

    def test_kubernetes_from_inside_of_its_cgroup_namespace(self) -> None:
        machine = in_cgroup(with_gpu_denied(HGX, 1), "/")
        machine = patched(machine, "process", container_signs=("KUBERNETES_SERVICE_HOST",))
        assert run_one(CGROUP, machine).cause.startswith("set by Kubernetes (")


class TestNodesMissing:
    def test_on_a_host_it_was_not_made(self) -> None:
        host = patched(with_gpu_denied(HGX, 1, access="ENOENT"), "process", container_signs=())
        finding = run_one(NODES, host)
        assert (finding.status, finding.summary) == (Status.FAIL, "there is no device node: /dev/nvidia1")
        assert finding.remedy is not None
        assert finding.remedy.run == "nvidia-modprobe -c 1"

    def test_nodes_mounted_one_by_one_are_a_container_too(self) -> None:
        machine = patched(with_gpu_denied(HGX, 1, access="ENOENT"), "process", container_signs=())
        mount = Mount(path="/dev/nvidia0", kind="devtmpfs", options=("ro", "nosuid"))
        finding = run_one(NODES, dataclasses.replace(machine, confinement=Confinement(mounts=(mount,))))
        assert finding.status is Status.NOTE
        assert values(finding)["/proc/self/mountinfo"] == "/dev/nvidia0"

    def test_enroot_says_so_itself(self) -> None:
        machine = patched(
            with_gpu_denied(HGX, 1, access="ENOENT"),
            "process",
            container_signs=("overlay root",),
            environment={"ENROOT_RESTRICT_DEV": "y", "NVIDIA_VISIBLE_DEVICES": "0"},
        )
        finding = run_one(NODES, machine, Scope(gpus=(bus_id(HGX, 1),)))
        assert finding.cause == "enroot passes in only the requested device nodes; NVIDIA_VISIBLE_DEVICES=0"
        assert finding.remedy is not None
        assert "ENROOT_RESTRICT_DEV" in finding.remedy.text

    def test_an_egm_node_that_loses_its_owner_warns_here_too_and_fails_for_egm(self) -> None:
        machine = patched(with_gpu_denied(GH200X4, 1, access="ENOENT"), "process", container_signs=("/.dockerenv",))
        assert run_one(NODES, machine).status is Status.WARN
        assert "EGM routes to NUMA 1 are blocked" in run_one(NODES, machine).summary
        assert run_one(NODES, machine, asked(Guard.EGM)).status is Status.FAIL

    def test_a_container_that_hides_the_drivers_folder_too(self) -> None:
        """As libnvidia-container's legacy mode does: then nothing tells the minor."""
        hidden = {"node": Unread(reason=Reason.NOT_PRESENT), "nvml": Unread(reason=Reason.NOT_PRESENT)}
        machine = patched(HGX, "gpus[1]", proc=None, node=None, nvml=None, cuda=None, unread=hidden)
        signs = ("tmpfs /proc/driver/nvidia",)
        finding = run_one(NODES, patched(of_nobody(machine), "process", container_signs=signs))
        assert finding.summary == f"this container was not given {bus_id(HGX, 1)}"

    def test_a_node_that_nvml_made_meanwhile_is_not_missed(self) -> None:
        assert HGX.gpus is not None
        gone = {"exists": False, "access": "ENOENT"}
        assert run_one(NODES, patched(HGX, "gpus[1].node", **gone)).status is Status.PASS
