"""Where a message ends: for each of these entries, a line from a public thread that is near to it and means another.

A line that the example of another entry holds is not here: ``test_messages`` has it that this entry alone explains it.
"""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest

from egmctl.api.doctor import judged
from egmctl.driver.messages import messages
from egmctl.facts.error_log import read_failures
from egmctl.model.explanation import CauseState, Word
from egmctl.model.host import Host, NumaKind
from egmctl.model.machine import Machine
from egmctl.report.kinds import Format
from tests.answers import render
from tests.doctor.machines import shipped
from tests.handles.messages import explained, messages_of

CLI = "nvidia-container-cli: "
DENIED_RULES = f"{CLI}mount error: open failed: /sys/fs/cgroup/devices/user.slice/devices.allow: permission denied"
NO_QUERY = f"{CLI}mount error: failed to add device rules: bpf_prog_query(BPF_CGROUP_DEVICE) failed: not permitted"
FILTER = f"{CLI}mount error: failed to add device rules: unable to create new device filters program: load program: "
INVALID_FILTER = f"{FILTER}invalid argument: last insn is not an exit or jmp"
DENIED_FILTER = f"{FILTER}permission denied: 0: R1=ctx(off=0,imm=0) R10=fp0"
UVM_TOOLS = f"{CLI}mount error: file creation failed: /scratch/lammps/dev/nvidia-uvm-tools: operation not permitted"
CDI_SPEC = "failed to generate CDI spec: failed to create device CDI specs: failed to initialize NVML: "
NVRM = "NVRM: nvAssertOkFailedNoLog: Assertion failed: "

OF_NOTHING = {
    "cli-socket-mount": UVM_TOOLS,
    "cli-firmware-mount": "could not start /usr/sbin/ldconfig: mount operation failed: /dev: operation not permitted",
    "cli-proc": "fork/exec /usr/bin/nvidia-container-runtime: permission denied: unknown",
    "enroot-folders": "mkdir: cannot create directory '/var/lib/lxc/111/hook': Permission denied",
    "ctk-no-libcuda": "WARN[0000] failed to locate libcuda.so: pattern libcuda.so.*.* not found",
    "ctk-optional-socket": "Could not locate libnvdxgdmal.so.1: pattern libnvdxgdmal.so.1 not found",
    "dra-api": '"Unable to get container claim info state" err="unable to get information for ResourceClaim w0"',
    "mooncake-rtr": "[Handshake] Failed to modify QP to INIT",
    "gpu-lost": "NVRM nvAssertFailedNoLog: Assertion failed: 0 @ osapi.c:1688",
    "gsp-firmware-interrupted": "Direct firmware load for nvidia/570.144/gsp_ga10x.bin failed with error -2",
    "driver-no-memory": "NVRM: nvCheckOkFailedNoLog: Check failed: Call not supported [NV_ERR_NOT_SUPPORTED] (0x56)",
    "root-gen-speed": "NVRM: GPU1 kbifCacheVFInfo_GB100: Unable to read NV_PF0_INITIAL_AND_TOTAL_VFS",
    "fabric-address-unknown": f"{NVRM}Requested object not found [NV_ERR_OBJECT_NOT_FOUND] (0x00000057)",
    "exec-nvidia-smi": 'exec: "sh": executable file not found in $PATH: unknown',
    "ctk-optional-library": "WARN[0000] Could not locate libnvdxgdmal.so.1: pattern libnvdxgdmal.so.1 not found",
    "docker-socket": f"{CLI}mount error: file creation failed: /x/run/docker.sock: permission denied",
    "pyxis-spank": "srun: error: node001: task 0: Exited with exit code 1",
    "nvshmem-before-init": "nvshmem initialization failed, exiting",
    "nvshmem-connect": "init.cu:998: non-zero status: 3 building transport map failed",
    "nvshmem-not-mlx5": "WARN: GPU cannot map UAR of device mlx5_1. Skipping...",
    "acpi-dsm": "NVRM: testIfDsmSubFunctionEnabled: GPS ACPI DSM called before subfunction = 11.",
    "iova-left-over": "NVRM: nvAssertFailedNoLog: Assertion failed: pIOVAS != NULL @ io_vaspace.c:592",
    "nixl-backend": "ucx_enums.cpp:58] Unexpected UCX error: Out of memory",
    "dkms-build": "Error! Build of p_lkrg.ko failed for: 5.18.12-hardened1-1-hardened (x86_64)",
    "kernel-headers": "make[1]: *** [/lib/modules/5.15.0-60-generic/build] Error 2",
    "gpl-only-symbol": "ERROR: modpost: GPL-incompatible module gdrdrv.ko uses GPL-only symbol 'cc_mkdec'",
    "build-compiler": "warning: the compiler differs from the one used to build the kernel",
    "driver-container-kernel": "Proceeding with Linux kernel version 5.15.0-106-generic",
    "installer-load": "nvidia: loading out-of-tree module taints kernel.",
    "installer-no-drm": "ERROR: Unable to open 'kernel/dkms.conf' for copying (No such file or directory)",
    "packages-mixed": "linux-modules-x : Depends: linux-headers-5.11 but it is not going to be installed",
    "missing-endbr": "x86/cpu: CET detected: Indirect Branch Tracking enabled",
    "vfio-bar": "pci 0000:05:00.0: BAR 0 [mem 0xd0000000-0xdfffffff 64bit pref]",
    "plugin-register": "Registered device plugin for 'nvidia.com/gpu' with Kubelet",
    "plugin-mig-monitor": "Failed to display compute instances: Insufficient Permissions",
    "kubelet-no-healthy": "no healthy devices present; cannot allocate unhealthy devices gpu.intel.com/i915",
    "plugin-preferred": "Allocate failed due to rpc error: code = Unavailable desc = error reading from server",
    "dra-mig-place": "error creating GPU instance for '1g.20gb': Insufficient Permissions",
    "exporter-no-nvml": "E0102 factory.go:68] Failed to initialize NVML: ERROR_LIBRARY_NOT_FOUND.",
    "dcgm-module": "Skipping loading of module 8 in status 2",
    "slurm-gres-ignored": "debug:  Gres GPU plugin: Merging configured GRES with system GPUs",
    "toolkit-plain-runc": "nvidia-container-runtime: looking for the runc binary",
    "apptainer-no-files": "WARNING: Skipping user bind, non existent bind point (file) in container",
    "vgpu-guest-old": "vmiop_log: (0x0): Cannot query ECC status. vGPU ECC support will be disabled.",
    "vgpu-unsupported": "nvidia-vgpud[2009]: pciId of gpu [0]: 0:1:0:0",
    "vfio-group": "QMP command failed: vfio 0000:01:00.1: group 1 used in multiple address spaces: unknown",
    "slurm-no-cgroup-v2": "error: Couldn't load specified plugin name for proctrack/cgroup: Plugin init()",
    "slurm-no-dbus": "error: cgroup namespace 'freezer' not mounted. aborting",
    "ofi-no-provider": "NET/OFI Creating new endpoint for domain 0x7f9befa99380 failed: Invalid argument",
    "nccl-socket-family": "NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth2",
    "nccl-rank-twice": "NCCL WARN Bootstrap Root : mismatch in rank count from procs 8 : 16",
    "nccl-bootstrap-truncated": "NCCL WARN NET/Socket : message truncated",
    "gloo-loopback": "[Gloo] Rank 0 is connected to 0 peer ranks. Expected number of connected peer ranks is : 0",
    "gloo-mesh": "[Gloo] Rank 0 is connected to 7 peer ranks. Expected number of connected peer ranks is : 7",
    "torch-store-gone": "[c10d] The client socket has timed out after 60s while trying to connect to (node0, 29500).",
    "jax-tasks-missing": "DEADLINE_EXCEEDED: Barrier timed out. Id: my_own_barrier::0.",
    "jax-rendezvous": "This thread has been waiting for `acquire clique` for 10 seconds",
    "symm-mem-fd-hosts": "RuntimeError: failed to connect to socket: No such file or directory",
    "symm-mem-window": "NCCL error in: torch/csrc/distributed/c10d/symm_mem/NCCLSymmetricMemory.cu:1, invalid argument",
    "ucx-ipc-twice": "UCC ERROR ipc-cache: failed to open ipc mem handle. addr:0x7f65a8000000 len:16777216 err:201",
    "ucx-transport-retry": "ib_mlx5_log.c:145 RC QP 0x638b wqe[1064]: RDMA_WRITE s-- [rva 0x14b3e2d9000 rkey 0x1ba09e]",
    "ompi-ipc-get-handle": "undefined symbol: cuIpcOpenMemHandle_v2 CUDA-aware support is disabled.",
    "mooncake-register-address": "rdma_context.cpp:203] Failed to register memory 0x7b375b40000: Invalid argument [22]",
    "deepep-peers": "Failed: Assertion error deep_ep.cpp:629 'num_tokens_per_rdma_rank.has_value()'",
    "trtllm-world-size": "[TensorRT-LLM][ERROR] Assertion failed: Failed: MPI error",
    "ucx-unreachable": "UCXPY  DEBUG Error callback for endpoint called with status -6: Destination is unreachable",
    "torch-producer-ended": "RuntimeError: the producer process has been stopped",
    "nccl-networks-differ": "NCCL WARN socketFinalizeAccept: wrong magic 1234 != 5678",
    "cufile-no-module": "nvidia_fs: Initializing nvfs driver module",
    "cufile-nvme": "NOTICE  cufio-fs:451 dumping volume attributes: DEVNAME:/dev/nvme0n1p2,ID_FS_TYPE:ext4",
    "cufile-compat": " properties.use_compat_mode : true",
    "openibd-no-module": "Unloading HCA driver:                                      [  OK  ]",
    "mlx5-health": "mlx5_core 0000:5e:00.0: synd 0x0: None",
    "report-remap-pending": "            Pending                               : Enabled",
    "report-remap-failed": "        Remapping Failure Occurred        : No",
    "report-recovery": "    GPU Recovery Action                   : None",
    "report-fabric-in-progress": "        State                                          : Completed",
    "report-link-inactive": "         Link 0: 50 GB/s",
    "plugin-inotify": "Starting FS watcher.",
    "slurm-file-less": "slurmd: GRES[gpu] Type:h100 Count:1 File:/dev/nvidia0",
    "ucx-umem": "ib_mlx5.h:900  UCX  ERROR mlx5dv_devx_umem_reg() failed: Invalid argument",
    "empty-driver-libraries": "/sbin/ldconfig.real: File /usr/lib/libfoo.so.1 is empty, not checked.",
    "nccl-connect": "NCCL INFO Call to connect returned Connection refused, retrying",
    "report-nouveau": "\tKernel driver in use: nvidia",
    "report-port-no-sm": "State: Active\nPhysical state: LinkUp",
    "report-port-no-link": "                Physical state: LinkUp",
    "ucx-connect": "sock.c:323 UCX DEBUG connect(fd=87, dest_addr=10.0.0.1:47133): in progress",
    "cufile-not-registered": "GDS_MT: cuFileRead failed: Unknown error 5030",
    "ompi-slots": "All nodes which are allocated for this job are already filled.",
    "ssh-refused": "ssh: connect to host worker-1 port 22: Connection timed out",
    "pyxis-import": "pyxis: importing docker image ...",
    "dra-deadline": "Pending rpc error: code = DeadlineExceeded desc = context deadline exceeded",
    "dcgm-server": "Err: Failed to start DCGM Server: -8",
    "dcgm-mig": "MIG Mode: Enabled",
    "vllm-no-cache-blocks": "INFO 04-01 02:45:50 GPU KV cache size: 393,216 tokens",
    "kernel-lockdown": "Lockdown: systemd-logind: hibernation is restricted; see man kernel_lockdown.7",
    "dpdk-huge-2mb": "EAL: No free hugepages reported in hugepages-524288kB",
    "ray-too-few-gpus": "Error: No available node types can fulfill resource request {'CPU': 1.0, 'memory': 225485.0}.",
    "torch-dataloader-killed": "RuntimeError: DataLoader worker (pid 325) is killed by signal: Aborted.",
    "verbs-qp-timeout": "Failed to modify QP to RTR: Broken pipe",
    "plugin-platform": "factory.go:107] Detected non-Tegra platform: /sys/devices/soc0/family file not found",
    "driver-compile": (
        "drivers/gpu/drm/i915/i915_drv.c:12:3: error: unknown type name 'foo'\n"
        "/var/lib/dkms/nvidia-fs/2.17/build/nvfs-core.c:70:5: error: unknown type name\n"
        "nvidia/nv.c:130:18: warning: this statement may fall through"
    ),
    "operator-waits": "waiting for the container to be set up",
    "trtllm-no-peer": "[TensorRT-LLM][INFO] Device 0 peer access Device 1 is available.",
    "vllm-worker-start": "INFO 04-01 02:45:50 WorkerProc initialization done",
}
"""By an entry, a line that is not its, of which nothing is known."""

OF_ANOTHER = [
    ("cli-devices-allow", NO_QUERY, "cli-device-rules"),
    ("cli-devices-allow-missing", DENIED_RULES, "cli-devices-allow"),
    ("cli-filter-invalid", DENIED_FILTER, "cli-filter-denied"),
    ("cli-filter-denied", INVALID_FILTER, "cli-filter-invalid"),
    (
        "cli-persistenced-socket",
        f"{CLI}mount error: file creation failed: /x/usr/lib/libnvidia-ml.so.1: file exists",
        "cli-file-exists",
    ),
    ("ctk-no-nvml", f"{CDI_SPEC}Driver Not Loaded", "ctk-before-driver"),
    (
        "dra-not-registered",
        "error asserting ComputeDomain Ready: current node not ready in ComputeDomain (attempt 1)",
        "dra-not-ready",
    ),
    (
        "nccl-shm-attach-empty",
        "NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl-glnlGK (size 14156128)",
        "nccl-shm-attach",
    ),
    (
        "nccl-cuda-217",
        "transport/p2p.cc:238 NCCL WARN Cuda failure 217 'peer access is not supported between these two devices'",
        "",
    ),
    ("nccl-address-space", "[0] enqueue.cc:1 NCCL WARN Cuda failure 2 'out of memory'", ""),
    (
        "fsp-timeout",
        "NVRM: kgspWaitForGfwBootOk_TU102: failed to wait for GFW boot complete: 0x65 VBIOS version 94.02.59.00.05",
        "gfw-boot",
    ),
    ("nvbandwidth-pattern", "[CUDA_ERROR_INVALID_VALUE] invalid argument in expression cuMemSetAccess", ""),
    ("custom-allreduce-peer", "CUDA error 217 at ggml-cuda.cu:6292: peer access is not supported", ""),
    ("torch-symm-rendezvous", "RuntimeError: CUDA driver error: invalid argument", ""),
    ("installer-loaded", "ERROR: Unable to load the 'nvidia-drm' kernel module.", "installer-load"),
    (
        "modprobe-symbol",
        "modprobe: ERROR: could not insert 'nvidia_peermem': Unknown symbol in module, or unknown parameter",
        "peermem-refused",
    ),
    (
        "dcgm-no-profiling",
        "Error watching fields: The third-party Profiling module returned an unrecoverable error",
        "dcgm-profiling",
    ),
    ("nvfs-pin", "nvidia-fs:nvfs_pin_gpu_pages:1292 Error ret -12 invoking nvidia_p2p_get_pages", "nvfs-pin-bar1"),
    ("symbol-version", "ksmbd: disagrees about version of symbol ib_unregister_client", "symbol-version-rdma"),
    ("symbol-version-rdma", "ice: disagrees about version of symbol hid_hw_start", "symbol-version-other"),
    (
        "slurm-select-type",
        "sbatch: error: Batch job submission failed: Requested node configuration is not available",
        "slurm-no-such-node",
    ),
    ("ngc-map-failed", "   [[ CUDA driver version is insufficient for CUDA runtime version (error 35) ]]", ""),
    ("ngc-map-failed", "   [[ System not yet initialized (error 802) ]]", ""),
    (
        "nvbandwidth-import",
        "[CUDA_ERROR_NOT_SUPPORTED] operation not supported in expression cuMemImportFromShareableHandle(&h)",
        "",
    ),
    (
        "nccl-retry",
        "NCCL WARN NET/IB : Got completion with error 4, opcode 0, len 32694, vendor err 81",
        "nccl-local-protection",
    ),
    (
        "verbs-no-providers",
        "libibverbs: Warning: no userspace device-specific driver found for uverbs0",
        "verbs-no-provider",
    ),
    (
        "slurm-tres",
        "srun: error: Unable to create step for job 7: Requested node configuration is not available",
        "slurm-no-such-node",
    ),
    ("cli-cuda", "nvidia-container-cli: initialization error: nvml error: unknown error", ""),
    (
        "slurm-step-gres",
        "sbatch: error: Batch job submission failed: Invalid generic resource (gres) specification",
        "slurm-gres-unknown",
    ),
]
"""An entry, a line that is not its, and the entry that explains the line: ``""`` if it is an error of CUDA."""


@pytest.mark.parametrize(("entry", "line"), OF_NOTHING.items())
def test_a_line_that_is_near_and_not_known_has_no_entry(entry: str, line: str) -> None:
    assert entry in messages().entries
    result = explained(line)
    assert (messages_of(result), result.word) == ([], Word.NOT_KNOWN)


@pytest.mark.parametrize(("entry", "line", "other"), OF_ANOTHER)
def test_a_line_that_is_near_is_of_another(entry: str, line: str, other: str) -> None:
    assert entry in messages().entries
    assert messages_of(explained(line)) == [other]


EMPTY_SEGMENT = messages().entries["nccl-shm-attach-empty"].example


def on(machine: Machine | None) -> CauseState:
    (explanation,) = judged(read_failures(io.BytesIO(EMPTY_SEGMENT.encode())), machine).explanations
    return explanation.causes[0].state


def test_ranks_that_differ_in_host_memory_are_the_cause_where_a_node_has_none() -> None:
    healthy = shipped("hgx-h200x4")
    host = healthy.host or Host()
    nodes = host.numa_nodes or ()
    empty = replace(nodes[0], id=len(nodes), kind=NumaKind.CPU_ONLY, memory_total_bytes=0, memory_free_bytes=0)
    bare = replace(healthy, host=replace(host, numa_nodes=(*nodes, empty)))
    assert on(bare) is CauseState.HOLDS
    assert on(healthy) is CauseState.UNKNOWN
    assert on(None) is CauseState.UNKNOWN


def test_an_empty_segment_is_not_mended_by_a_larger_shm() -> None:
    text = str(render(explained(EMPTY_SEGMENT), Format.TEXT))
    assert "NCCL_CUMEM_HOST_ENABLE=0" in text
    assert not re.search(r"--shm-size|--ipc=host", text)
