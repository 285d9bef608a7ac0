"""Nothing leaves the site but what is marked as shareable, and what belonged together still does."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from egmctl.facts.redact import known_words, part_redactor, redact
from egmctl.model.codec import to_json
from egmctl.model.gpu import Gpu, GpuNvml, GpuProc
from egmctl.model.host import Cgroup, Confinement, DeviceProgram, Host, Nic, Process
from egmctl.model.kernel_log import EventKind, KernelEvent, KernelLog
from egmctl.model.machine import Machine, Origin, OriginKind, SectionStatus
from egmctl.model.record import Reason, Share, Unread
from tests.known import known
from tests.random_machines import machines

UUID = "11111111-2222-3333-4444-555555555555"


def machine(**sections: object) -> Machine:
    return Machine(origin=Origin(kind=OriginKind.LIVE), **sections)  # type: ignore[arg-type]


def environment(**variables: str) -> dict[str, str]:
    gpu = Gpu(bus_id="0000:1b:00.0", index=0, proc=GpuProc(uuid=f"GPU-{UUID}"))
    redacted = redact(machine(gpus=(gpu,), process=Process(environment=variables)))
    return dict(known(known(redacted.process).environment))


def cgroup(path: str) -> str:
    process = known(redact(machine(process=Process(cgroups=(Cgroup(version=2, path=path),)))).process)
    return known(process.cgroups)[0].path


_SECRETS = itertools.count()


def secrets(share: Share | None) -> st.SearchStrategy[str]:
    """Return strings of which no part may survive, in every field that is not plain."""
    word = st.sampled_from(("hunter", "Alice", "node", "é", "/srv/", "17.example.org"))
    secret = st.lists(word, min_size=1, max_size=3).map(lambda words: f"~{next(_SECRETS)}s3cret{''.join(words)}~")
    if share in (Share.PLAIN, Share.SENTENCE):
        # Sentences are ours: what they may quote has a test of its own.
        return st.text("abc", max_size=3)
    if share is Share.UUID:
        return st.uuids().map(lambda uuid: f"GPU-{uuid}") | secret
    if share is Share.PARAMETER:
        return secret.map(lambda text: f"pt,x=/srv/{text};on")
    if share is Share.KERNEL_RELEASE:
        return secret.map(lambda text: f"6.8.0-{text}-generic")
    if share is Share.CGROUP_PATH:
        return secret.map(lambda text: f"/system.slice/{text}/job_4")
    if share is Share.ENVIRONMENT:
        return secret.map(lambda text: f"0,{text}:all")
    return secret


@pytest.mark.long
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(machines(secrets))
def test_nothing_survives_that_is_not_marked_as_shareable(whole: Machine) -> None:
    whole = dataclasses.replace(whole, origin=dataclasses.replace(whole.origin, redacted=False))
    redacted = redact(whole)
    text = json.dumps(to_json(redacted), ensure_ascii=False)
    assert "s3cret" not in text
    for uuid in re.findall(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", json.dumps(to_json(whole))):
        assert uuid not in text or not uuid.strip("0-")
    assert redacted.origin.redacted
    assert redact(redacted) == redacted, "redacting twice is redacting once"


def test_one_uuid_becomes_one_other_wherever_it_stands() -> None:
    gpu = Gpu(
        bus_id="0000:1b:00.0",
        index=0,
        proc=GpuProc(uuid=f"GPU-{UUID}"),
        nvml=GpuNvml(index=0, uuid=f"GPU-{UUID}", serial="1650123"),
    )
    variables = {"CUDA_VISIBLE_DEVICES": f"GPU-{UUID},GPU-1111", "NVIDIA_VISIBLE_DEVICES": UUID}
    redacted = redact(machine(gpus=(gpu,), process=Process(environment=variables)))
    (other,) = known(redacted.gpus)
    nvml, uuid = known(other.nvml), known(known(other.proc).uuid)
    assert (nvml.uuid, nvml.serial) == (uuid, "serial-1")
    assert re.fullmatch("GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", uuid)
    assert known(redacted.process).environment == {
        "CUDA_VISIBLE_DEVICES": f"{uuid},{uuid[:8]}",
        "NVIDIA_VISIBLE_DEVICES": uuid.removeprefix("GPU-"),
    }


@pytest.mark.parametrize(
    ("process", "text", "expected"),
    [
        ("s3cret", "Timeout waiting for s3cret, Ch 1", "Timeout waiting for process-1, Ch 1"),
        (None, "MMU Fault, pid='2228', name=s3cret, Ch 1", "MMU Fault"),
        (None, "peer s3cret-node does not answer", "peer hostname-1 does not answer"),
        (None, "SM Warp Exception on (GPC 0, TPC 0, SM 0)", "SM Warp Exception on (GPC 0, TPC 0, SM 0)"),
    ],
)
def test_what_the_kernel_logged_names_no_process_and_no_host(process: str | None, text: str, expected: str) -> None:
    logged = KernelEvent(kind=EventKind.XID, time_s=1.0, number=31, process=process, text=text)
    log = KernelLog(source="/dev/kmsg", now_s=2.0, events=(logged,))
    whole = machine(host=Host(hostname="s3cret-node"), kernel_log=log)
    assert known(redact(whole).kernel_log).events[0].text == expected
    assert part_redactor(whole)(logged).text == expected


def test_device_programs_keep_the_names_of_managers_and_their_place() -> None:
    path = "/system.slice/slurmstepd.scope/acme/job_42"
    programs = (
        DeviceProgram(id=1, name="Slurm_Cgroup_v2", cgroup=path),
        DeviceProgram(id=2, name="sd_devices", cgroup="/"),
        DeviceProgram(id=3, name="acme_gpus", cgroup="/acme"),
        DeviceProgram(id=4, name="", cgroup="/"),
    )
    redacted = redact(
        machine(
            process=Process(cgroups=(Cgroup(version=2, path=path),)), confinement=Confinement(device_programs=programs)
        )
    )
    assert redacted.process is not None
    assert redacted.confinement is not None
    first, *others = redacted.confinement.device_programs or ()
    assert (first.name, first.cgroup) == ("Slurm_Cgroup_v2", (redacted.process.cgroups or ())[0].path)
    assert [program.name for program in others] == ["sd_devices", "cgroup-2", ""]
    assert others[1].cgroup == "/cgroup-1", "the same name in another place"
    assert "acme" not in repr(redacted)


def test_two_recordings_of_one_machine_still_join() -> None:
    gpu = Gpu(bus_id="0000:1b:00.0", index=0, proc=GpuProc(uuid=f"GPU-{UUID}"))
    another = Gpu(bus_id="0000:1c:00.0", index=1, proc=GpuProc(uuid="GPU-99999999-2222-3333-4444-555555555555"))
    (alone,), (other, beside) = (known(redact(machine(gpus=gpus)).gpus) for gpus in ((gpu,), (another, gpu)))
    assert alone.uuid == beside.uuid != other.uuid


def test_a_cluster_uuid_of_zeros_stays() -> None:
    """It says that there is no multi-node NVLink domain."""
    zeros = "00000000-0000-0000-0000-000000000000"
    (gpu,) = known(redact(machine(gpus=(Gpu(bus_id="0000:1b:00.0", index=0, proc=GpuProc(uuid=zeros)),))).gpus)
    assert gpu.uuid == zeros


def test_names_are_numbered_by_value() -> None:
    nics = (
        Nic(name="mlx5_0", node_guid="a088:c203:0012:3456", interfaces=("alice0", "bob0")),
        Nic(name="mlx5_1", node_guid="a088:c203:0012:3457", interfaces=("alice0",)),
    )
    first, second = redact(machine(nics=nics)).nics or ()
    assert (first.name, second.name) == ("mlx5_0", "mlx5_1")
    assert (first.node_guid, second.node_guid) == ("node_guid-1", "node_guid-2")
    assert (first.interfaces, second.interfaces) == (("interfaces-1", "interfaces-2"), ("interfaces-1",))


@pytest.mark.parametrize(
    ("original", "redacted"),
    [
        ("6.8.0-1010-nvidia-64k", "6.8.0-nvidia-64k"),
        ("5.14.0-427.13.1.el9_4.aarch64+64k", "5.14.0-el9_4-aarch64-64k"),
        ("6.18.0-rc3-acme-build17", "6.18.0-rc3"),
        ("acme", "unknown"),
    ],
)
def test_kernel_releases_keep_the_upstream_version_and_known_words(original: str, redacted: str) -> None:
    assert known(redact(machine(host=Host(kernel=original))).host).kernel == redacted


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/system.slice/slurmstepd.scope/job_42/step_0/user/task_3",
        "/slurm/uid_1000/job_42/step_batch/task_0",
        "/user.slice/user-1000.slice/user@1000.service/app.slice",
        "/user.slice/user-1000.slice/session-12.scope",
        "/init.scope",
    ],
)
def test_cgroup_paths_of_known_managers_stay(path: str) -> None:
    assert cgroup(path) == path


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("/docker/" + "ab" * 32, "/docker/[0-9a-f]{64}"),
        ("/system.slice/docker-" + "ab" * 32 + ".scope", r"/system\.slice/docker-[0-9a-f]{64}\.scope"),
        (
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UUID.replace('-', '_')}.slice/"
            f"cri-containerd-{'cd' * 32}.scope",
            r"/kubepods\.slice/kubepods-burstable\.slice/kubepods-burstable-pod[0-9a-f]{8}(_[0-9a-f]{4}){3}_[0-9a-f]{12}"
            r"\.slice/cri-containerd-[0-9a-f]{64}\.scope",
        ),
        ("/system.slice/acme-training.service/gh-17", r"/system\.slice/cgroup-1/cgroup-2"),
        ("/a/b/a", "/cgroup-1/cgroup-2/cgroup-1"),
    ],
)
def test_cgroup_paths_keep_their_form(path: str, pattern: str) -> None:
    redacted = cgroup(path)
    assert re.fullmatch(pattern, redacted)
    assert redacted != path


@pytest.mark.parametrize(
    "value",
    [
        "",
        "0,1,2",
        "0-3",
        "all",
        "compute,utility",
        "PCI_BUS_ID",
        "rc,cuda_copy,cuda_ipc",
        "^tcp",
        "mlx5_0:1,mlx5_10:1",
        "50%",
    ],
)
def test_environment_values_of_known_words_stay(value: str) -> None:
    assert environment(X=value) == {"X": value}


def test_environment_values_lose_what_is_not_known() -> None:
    path = "/usr/local/cuda/lib64:/home/alice/lib:/home/alice/lib"
    assert environment(LD_LIBRARY_PATH=path, UCX_NET_DEVICES="acme0") == {
        "LD_LIBRARY_PATH": "/usr/local/cuda/lib64:environment-1:environment-1",
        "UCX_NET_DEVICES": "environment-2",
    }


@pytest.mark.parametrize(
    ("reason", "detail", "kept"),
    [
        # A sentence of ours loses the private names that it quotes; an unexpected error's does not leave.
        (Reason.TIMED_OUT, "/srv/s3cret-node: no answer", "/srv/hostname-1: no answer"),
        (Reason.FAILED, "KeyError: 'gh-17'", "KeyError"),
    ],
)
def test_a_reason_names_nothing_that_is_private(reason: Reason, detail: str, kept: str) -> None:
    status = SectionStatus(version=1, unread=Unread(reason=reason, detail=detail))
    whole = machine(host=Host(hostname="s3cret-node"), sections={"gpus": status})
    assert known(redact(whole).sections["gpus"].unread).detail == kept


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("0,1-3", "0,1-3"),
        ("all", "all"),
        ("GPU-4c1f0c2e-1111-2222-3333-444455556666", "GPU-4c1f0c2e-1111-2222-3333-444455556666"),
        ("/home/someone/lib:/usr/local/cuda/lib64", "...:/usr/local/cuda/lib64"),
        ("s3cr3t", "..."),
        ("", ""),
    ],
)
def test_of_a_variable_only_what_is_well_known_is_told(value: str, kept: str) -> None:
    assert known_words(value) == kept
