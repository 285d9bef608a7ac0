"""Containers, pods and Slurm: what a process was given of the driver and the GPUs."""

from tests.incidents.makers.healthy import add_nics, cards, few_gpus, hgx, hgx_container, nvl72, shipped
from tests.incidents.makers.parts import (
    Machine,
    cuda_fails,
    gpu_lost,
    kernel_log,
    library_missing,
    machine,
    node_missing,
    version,
)


@machine
def libcuda_compat_by_ld_so_conf() -> Machine:
    """The image's ld.so.conf names the compat folder, so no variable gives it away: its libcuda is CUDA 12.9's."""
    node = hgx_container()
    node["driver"]["cuda_driver_version"] = 12090
    cuda_fails(node, 803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH")
    return node


@machine
def libcuda_compat_on_geforce() -> Machine:
    node = cards("NVIDIA GeForce RTX 3060", 0x2503, [8, 6], 12884901888, 1)
    node["process"].update(container_signs=["/.dockerenv", "overlay root"])
    node["process"]["environment"] = {"NVIDIA_VISIBLE_DEVICES": "all", "LD_LIBRARY_PATH": "/usr/local/cuda/compat"}
    node["driver"].update(module_version="570.211.01", driver_version="570.211.01", nvml_version="12.570.211.01")
    node["driver"]["cuda_driver_version"] = 12090
    node["gpus"][0]["nvml"].update(ecc_mode=None)
    cuda_fails(node, 804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE")
    return node


@machine
def uvm_node_missing_in_podman() -> Machine:
    """The module is loaded on the host; the container was started without its nodes."""
    node = hgx_container(["/run/.containerenv", "overlay root"])
    for device in node["driver"]["nodes"]:
        if "uvm" in device["path"]:
            path = device["path"]
            device.clear()
            device.update(path=path, exists=False, kind=None, access="ENOENT")
    cuda_fails(node, 999, "CUDA_ERROR_UNKNOWN")
    return node


@machine
def verbs_not_in_container() -> Machine:
    """sysfs shows the NICs in every container; their nodes were not passed."""
    node = add_nics(hgx_container())
    for verbs in node["system"]["verbs"]:
        path = verbs["node"]["path"]
        verbs["node"] = {"path": path, "exists": False, "kind": None, "access": "ENOENT"}
    return node


@machine
def shared_memory_64m() -> Machine:
    node = hgx_container()
    node["confinement"].update(shm_total_bytes=67108864, shm_free_bytes=67104768)
    return node


@machine
def memory_policy_by_seccomp() -> Machine:
    """The runtime's default seccomp profile denies the calls of NUMA policy without CAP_SYS_NICE."""
    node = nvl72()
    node["process"].update(container_signs=["/run/.containerenv", "KUBERNETES_SERVICE_HOST", "overlay root"])
    node["process"]["environment"] = {"NVIDIA_VISIBLE_DEVICES": "all"}
    node["confinement"].update(seccomp="filter", no_new_privileges=True, capabilities=2818844155)
    node["confinement"]["namespaces"] = dict(node["confinement"]["namespaces"], mnt=4026533002, pid=4026533003)
    for call in ("get_mempolicy", "mbind", "set_mempolicy"):
        node["confinement"]["system_calls"][call] = "EPERM"
    return node


@machine
def visible_devices_of_the_host() -> Machine:
    """The container got one GPU, which is number 0 in it, and the host's CUDA_VISIBLE_DEVICES=1."""
    node = few_gpus(hgx_container(), 1)
    node["process"]["environment"] = {"NVIDIA_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "1"}
    return node


@machine
def lxc_with_the_old_uvm_major() -> Machine:
    """The container's configuration allows the number that nvidia-uvm had before the host's new kernel."""
    node = hgx_container(["/run/systemd/container"])
    node["process"]["environment"] = {}
    node["driver"]["majors"]["nvidia-uvm"] = 511
    for device in node["driver"]["nodes"]:
        if "uvm" in device["path"]:
            device.update(major=511, access="EPERM")
    cuda_fails(node, 999, "CUDA_ERROR_UNKNOWN")
    return node


@machine
def pod_without_runtime_class() -> Machine:
    """containerd's default runtime is runc and the pod names no other: it got nothing of the driver."""
    node = hgx_container(["KUBERNETES_SERVICE_HOST", "overlay root"])
    node["process"].update(cgroups=[{"version": 2, "controllers": [], "path": "/kubepods/besteffort/pod1/x"}])
    node["process"]["environment"] = {"KUBERNETES_SERVICE_HOST": "set", "NVIDIA_VISIBLE_DEVICES": "all"}
    for device in node["driver"]["nodes"]:
        node_missing(device)
    for gpu in node["gpus"]:
        node_missing(gpu["node"])
    library_missing(node, "nvml", "libnvidia-ml.so.1")
    library_missing(node, "cuda", "libcuda.so.1")
    node["pairs"] = []
    return node


@machine
def driver_capabilities_utility() -> Machine:
    """The image asks for the capability ``utility`` alone: nvidia-smi is there, libcuda is not."""
    node = hgx_container()
    node["process"]["environment"]["NVIDIA_DRIVER_CAPABILITIES"] = "utility"
    library_missing(node, "cuda", "libcuda.so.1")
    return node


@machine
def cdi_of_the_old_driver() -> Machine:
    """The host has a new driver; the specification still names the old one's files, which are gone."""
    node = hgx_container(["/run/.containerenv", "overlay root"])
    node["process"]["environment"] = {}
    library_missing(node, "nvml", "libnvidia-ml.so.1")
    library_missing(node, "cuda", "libcuda.so.1")
    return node


@machine
def yama_forbids_pidfd() -> Machine:
    """kernel.yama.ptrace_scope=1 in a container without CAP_SYS_PTRACE: "pidfd_getfd: Operation not permitted"."""
    node = nvl72()
    node["process"].update(effective_uid=1000, container_signs=["/.dockerenv", "overlay root"])
    node["process"]["environment"] = {"NVIDIA_VISIBLE_DEVICES": "all"}
    node["confinement"].update(ptrace_scope=1, capabilities=0)
    node["confinement"]["namespaces"] = dict(node["confinement"]["namespaces"], mnt=4026533002, pid=4026533003)
    return node


@machine
def open_files_1024() -> Machine:
    """The shells of a cluster have a soft limit of 1024 open files, which srun hands on to the ranks."""
    node = shipped("hgx-b200")
    node["driver"].update(cuda_driver_version=13000, modules=["nvidia", "nvidia_uvm"], module_flavour="open")
    version(node, "580.126.16", 13000)
    node["system"].update(daemons=["nv-fabricmanager", "nvidia-persistenced"], uptime_s=90000.0)
    node["process"].update(
        effective_uid=1000,
        cgroups=[
            {"version": 2, "controllers": [], "path": "/system.slice/slurmstepd.scope/job_171642/step_0/user/task_0"}
        ],
        environment={"SLURM_JOB_ID": "171642"},
    )
    node["confinement"]["limits"] = {"memlock": -1, "nofile": 1024, "stack": 8388608}
    kernel_log(node, [])
    return node


@machine
def slurm_numbers_of_the_host() -> Machine:
    """The container got the job's two GPUs as 0 and 1; Slurm, without ConstrainDevices, says 2 and 3.

    CUDA is read without that variable, so it lists both.
    """
    node = few_gpus(hgx_container(["overlay root"]), 2)
    node["process"]["cgroups"][0]["path"] = "/system.slice/slurmstepd.scope/job_12/step_0/user/task_0"
    node["process"]["environment"] = {
        "SLURM_JOB_ID": "12",
        "SLURM_GPUS_ON_NODE": "2",
        "CUDA_VISIBLE_DEVICES": "2,3",
        "NVIDIA_VISIBLE_DEVICES": "2,3",
    }
    return node


@machine
def slurm_job_with_one_gpu() -> Machine:
    """A job asked for one of four GPUs and got GPU 2, which is number 0 in its cgroup."""
    node = hgx()
    node["process"].update(effective_uid=1000)
    node["process"]["cgroups"][0]["path"] = "/system.slice/slurmstepd.scope/job_12/step_0/user/task_0"
    node["process"]["environment"] = {"SLURM_JOB_ID": "12", "SLURM_GPUS_ON_NODE": "1", "CUDA_VISIBLE_DEVICES": "0"}
    node["confinement"]["capabilities"] = 0
    for gpu in node["gpus"]:
        if gpu["index"] == 2:
            gpu["nvml"]["index"] = 0
            gpu["cuda"]["ordinal"] = 0
        else:
            gpu["node"]["access"] = "EPERM"
            gpu_lost(gpu, "not listed", "nvml", "cuda")
    node["pairs"] = []
    return node


@machine
def memlock_64k() -> Machine:
    """slurmd was started by systemd, which does not read limits.conf."""
    node = add_nics(hgx())
    node["process"].update(effective_uid=1000)
    node["process"]["cgroups"][0]["path"] = "/system.slice/slurmstepd.scope/job_81/step_batch/user/task_0"
    node["process"]["environment"] = {"SLURM_JOB_ID": "81"}
    node["confinement"].update(capabilities=0)
    node["confinement"]["limits"]["memlock"] = 65536
    return node


@machine
def p2p_disabled_by_a_variable() -> Machine:
    """A workaround for other cards, left in the environment of a node with NVLink."""
    node = hgx()
    node["process"]["environment"] = {"NCCL_P2P_DISABLE": "1", "NCCL_IB_DISABLE": "1"}
    return node


@machine
def host_with_the_cdi_of_the_old_driver() -> Machine:
    """The host of cdi-of-the-old-driver: the driver was updated, and nobody generated the specification anew."""
    node = hgx()
    loaded = node["driver"]["module_version"]
    node["system"]["containers"] = {
        "toolkit": True,
        "specifications": [{"path": "/etc/cdi/nvidia.yaml", "driver_versions": ["575.51.03"]}],
        "engines": [],
    }
    assert loaded != "575.51.03"
    return node
