"""Where a message ends: for each of these entries, a line from a public thread that is near to it and means another."""

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
NO_CGROUP = f"{CLI}container error: cgroup subsystem devices not found: unknown"
CGROUP_ENTRY = f"{CLI}container error: failed to get device cgroup root path: malformed cgroup entry: 1:net_cls:/"
UVM_TOOLS = f"{CLI}mount error: file creation failed: /scratch/lammps/dev/nvidia-uvm-tools: operation not permitted"
PATH_DENIED = f"{CLI}detection error: path error: ///etc/ld.so.cache: permission denied"
SOCKET_DENIED = f"{CLI}detection error: path error: ///var/run/nvidia-fabricmanager/socket: permission denied"
PROC_DENIED = f"{CLI}initialization error: open failed: /proc/self/ns/mnt: permission denied"
CAPABILITIES = "enroot-aufs2ovlfs: failed to set capabilities: Operation not permitted"
LDCONFIG = f"{CLI}ldcache error: process /sbin/ldconfig.real failed with error code: 1: unknown"
LDCONFIG_KILLED = f"{CLI}ldcache error: process /sbin/ldconfig terminated with signal 9: unknown"
USERNS = "enroot-nsenter: failed to create user namespace: "
CDI_SPEC = "failed to generate CDI spec: failed to create device CDI specs: failed to initialize NVML: "
NVRM = "NVRM: nvAssertOkFailedNoLog: Assertion failed: "

NEIGHBOURS = [
    ("cli-devices-allow", NO_QUERY, "cli-device-rules"),
    ("cli-devices-allow-missing", DENIED_RULES, "cli-devices-allow"),
    ("cli-filter-invalid", DENIED_FILTER, "cli-filter-denied"),
    ("cli-filter-denied", INVALID_FILTER, "cli-filter-invalid"),
    ("cli-filter-attach", INVALID_FILTER, "cli-filter-invalid"),
    ("cli-no-device-cgroup", CGROUP_ENTRY, "cli-cgroup-entry"),
    ("cli-cgroup-entry", NO_CGROUP, "cli-no-device-cgroup"),
    (
        "cli-persistenced-socket",
        f"{CLI}mount error: file creation failed: /x/usr/lib/libnvidia-ml.so.1: file exists",
        "cli-file-exists",
    ),
    ("cli-socket-mount", UVM_TOOLS, None),
    ("cli-path-denied", SOCKET_DENIED, "cli-socket-denied"),
    ("cli-socket-denied", PATH_DENIED, "cli-path-denied"),
    ("cli-lookup-denied", PROC_DENIED, "cli-proc"),
    ("cli-capability", CAPABILITIES, "enroot-capabilities"),
    (
        "cli-firmware-mount",
        "could not start /usr/sbin/ldconfig: mount operation failed: /dev: operation not permitted",
        None,
    ),
    ("cli-ldconfig", LDCONFIG_KILLED, "cli-ldconfig-signal"),
    ("cli-ldconfig-signal", LDCONFIG, "cli-ldconfig"),
    ("cli-proc", "fork/exec /usr/bin/nvidia-container-runtime: permission denied: unknown", None),
    (
        "enroot-capabilities",
        f"{CLI}permission error: capability change failed: operation not permitted",
        "cli-capability",
    ),
    ("enroot-userns", f"{USERNS}No space left on device", "enroot-userns-limit"),
    ("enroot-userns-limit", f"{USERNS}Permission denied", "enroot-userns"),
    ("enroot-folders", "mkdir: cannot create directory '/var/lib/lxc/111/hook': Permission denied", None),
    (
        "image-space",
        "NCCL WARN Error: failed to extend /dev/shm/nccl-WU88OE to 9637892 bytes, error: No space left",
        "nccl-shm-extend",
    ),
    (
        "cdi-management",
        "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all",
        "cdi-unresolvable",
    ),
    (
        "cdi-on-the-fly",
        "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all",
        "cdi-unresolvable",
    ),
    ("ctk-no-nvml", f"{CDI_SPEC}Driver Not Loaded", "ctk-before-driver"),
    ("ctk-before-driver", f"{CDI_SPEC}ERROR_LIBRARY_NOT_FOUND", "ctk-no-nvml"),
    ("ctk-no-libcuda", "WARN[0000] failed to locate libcuda.so: pattern libcuda.so.*.* not found", None),
    ("ctk-optional-socket", "Could not locate libnvdxgdmal.so.1: pattern libnvdxgdmal.so.1 not found", None),
    (
        "plugin-no-nvml",
        "E0627 10:12:47.588061       1 factory.go:68] Failed to initialize NVML: Unknown Error.",
        "nvml-unknown",
    ),
    (
        "dra-not-registered",
        "error asserting ComputeDomain Ready: current node not ready in ComputeDomain (attempt 1)",
        "dra-not-ready",
    ),
    (
        "dra-api",
        '"Unable to get container claim info state" err="unable to get information for ResourceClaim w0"',
        None,
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
        "nccl-no-libcuda",
        "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
        "libcuda-missing",
    ),
    ("nccl-qp-unreachable", "NCCL WARN Call to ibv_modify_qp failed with error No such device", "nccl-qp-no-device"),
    (
        "nccl-qp-no-device",
        "NCCL WARN Call to ibv_modify_qp failed with error Network is unreachable",
        "nccl-qp-unreachable",
    ),
    ("nccl-gid-version", "NCCL WARN NET/IB : Unable to open device mlx5_3", "nccl-open-nic"),
    ("nvshmem-heap-kind", "mem_heap.cpp:1509: non-zero status: 2 cuMemCreate failed", "nvshmem-heap-memory"),
    ("nvshmem-heap-memory", "mem_heap.cpp:1510: non-zero status: 101 cuMemCreate failed", "nvshmem-heap-kind"),
    ("nvshmem-address-handle", "ibgda.cpp:1889: NULL value cannot allocate mlx5dv_devx_uar", "nvshmem-devx"),
    (
        "mlx5-local-length",
        "mlx5_core 0000:5c:00.0: mlx5_pcie_event:299:(pid 268269): Detected insufficient power on the PCIe slot (27W).",
        "mlx5-slot-power",
    ),
    ("ucx-devx", "ib_iface.c:1035 UCX  ERROR ibv_create_cq(cqe=4096) failed: Cannot allocate memory", "ucx-no-memory"),
    ("mooncake-rtr", "[Handshake] Failed to modify QP to INIT", None),
    ("deepep-config", "RuntimeError: DeepEP error: timeout (dispatch CPU)", "deepep-dispatch"),
    ("gpu-lost", "NVRM nvAssertFailedNoLog: Assertion failed: 0 @ osapi.c:1688", None),
    (
        "fsp-timeout",
        "NVRM: kgspWaitForGfwBootOk_TU102: failed to wait for GFW boot complete: 0x65 VBIOS version 94.02.59.00.05",
        "gfw-boot",
    ),
    ("gsp-wpr2", "NVRM: RmInitAdapter: Cannot initialize GSP firmware RM", "gsp-init"),
    (
        "gsp-firmware-interrupted",
        "nvidia 0000:07:00.0: Direct firmware load for nvidia/570.144/gsp_ga10x.bin failed with error -2",
        None,
    ),
    (
        "driver-no-memory",
        "NVRM: nvCheckOkFailedNoLog: Check failed: Call not supported [NV_ERR_NOT_SUPPORTED] (0x00000056)",
        None,
    ),
    ("root-gen-speed", "NVRM: GPU1 kbifCacheVFInfo_GB100: Unable to read NV_PF0_INITIAL_AND_TOTAL_VFS", None),
    ("fabric-address-unknown", f"{NVRM}Requested object not found [NV_ERR_OBJECT_NOT_FOUND] (0x00000057)", None),
    ("nvbandwidth-pattern", "[CUDA_ERROR_INVALID_VALUE] invalid argument in expression cuMemSetAccess", ""),
    ("exec-nvidia-smi", 'exec: "sh": executable file not found in $PATH: unknown', None),
    (
        "ctk-optional-library",
        "WARN[0000] Could not locate libnvdxgdmal.so.1: pattern libnvdxgdmal.so.1 not found",
        None,
    ),
    ("docker-socket", f"{CLI}mount error: file creation failed: /x/run/docker.sock: permission denied", None),
    ("pyxis-spank", "srun: error: node001: task 0: Exited with exit code 1", None),
    ("nvshmem-before-init", "nvshmem initialization failed, exiting", None),
    ("nvshmem-connect", "init.cu:998: non-zero status: 3 building transport map failed", None),
    ("nvshmem-not-mlx5", "WARN: GPU cannot map UAR of device mlx5_1. Skipping...", None),
    ("acpi-dsm", "NVRM: testIfDsmSubFunctionEnabled: GPS ACPI DSM called before subfunction = 11.", None),
    ("iova-left-over", "NVRM: nvAssertFailedNoLog: Assertion failed: pIOVAS != NULL @ io_vaspace.c:592", None),
    ("nixl-backend", "ucx_enums.cpp:58] Unexpected UCX error: Out of memory", None),
    ("custom-allreduce-peer", "CUDA error 217 at ggml-cuda.cu:6292: peer access is not supported", ""),
    ("torch-symm-rendezvous", "RuntimeError: CUDA driver error: invalid argument", ""),
    ("dkms-build", "Error! Build of p_lkrg.ko failed for: 5.18.12-hardened1-1-hardened (x86_64)", None),
    ("kernel-headers", "make[1]: *** [/lib/modules/5.15.0-60-generic/build] Error 2", None),
    (
        "gpl-only-symbol",
        "ERROR: modpost: GPL-incompatible module gdrdrv.ko uses GPL-only symbol 'cc_mkdec'",
        None,
    ),
    ("build-compiler", "warning: the compiler differs from the one used to build the kernel", None),
    ("driver-container-kernel", "Proceeding with Linux kernel version 5.15.0-106-generic", None),
    ("installer-loaded", "ERROR: Unable to load the 'nvidia-drm' kernel module.", "installer-load"),
    ("installer-signature", "Loading of unsigned module is rejected", "module-unsigned"),
    ("installer-load", "nvidia: loading out-of-tree module taints kernel.", None),
    ("installer-no-drm", "ERROR: Unable to open 'kernel/dkms.conf' for copying (No such file or directory)", None),
    ("packages-mixed", "linux-modules-x : Depends: linux-headers-5.11 but it is not going to be installed", None),
    ("unknown-symbol-driver", "nvidia: Unknown symbol ipmi_create_user (err -2)", "unknown-symbol-ipmi"),
    ("unknown-symbol-ipmi", "nvidia_uvm: Unknown symbol radix_tree_preloads (err -2)", "unknown-symbol-driver"),
    (
        "unknown-symbol-driver",
        "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -2)",
        "unknown-symbol",
    ),
    (
        "modprobe-symbol",
        "modprobe: ERROR: could not insert 'nvidia_peermem': Unknown symbol in module, or unknown parameter",
        "peermem-refused",
    ),
    ("module-unsigned", "Loading of module with unavailable key is rejected", "module-key"),
    ("missing-endbr", "x86/cpu: CET detected: Indirect Branch Tracking enabled", None),
    ("vfio-bar", "pci 0000:05:00.0: BAR 0 [mem 0xd0000000-0xdfffffff 64bit pref]", None),
    ("plugin-strategy", "No devices found. Waiting indefinitely.", "plugin-none"),
    ("plugin-register", "Registered device plugin for 'nvidia.com/gpu' with Kubelet", None),
    ("plugin-mig-monitor", "Failed to display compute instances: Insufficient Permissions", None),
    ("kubelet-no-healthy", "no healthy devices present; cannot allocate unhealthy devices gpu.intel.com/i915", None),
    ("plugin-preferred", "Allocate failed due to rpc error: code = Unavailable desc = error reading from server", None),
    ("dra-mig-place", "error creating GPU instance for '1g.20gb': Insufficient Permissions", None),
    ("exporter-no-nvml", "E0102 factory.go:68] Failed to initialize NVML: ERROR_LIBRARY_NOT_FOUND.", None),
    ("dcgm-module", "Skipping loading of module 8 in status 2", None),
    (
        "dcgm-no-profiling",
        "Error watching fields: The third-party Profiling module returned an unrecoverable error",
        "dcgm-profiling",
    ),
    ("slurm-no-nvml", "fatal: gres.conf duplicate records for gpu", "slurm-gres-twice"),
    ("slurm-gres-ignored", "debug:  Gres GPU plugin: Merging configured GRES with system GPUs", None),
    ("slurm-gres-unknown", "Invalid Trackable RESource (TRES) specification", "slurm-tres"),
    ("toolkit-plain-runc", "nvidia-container-runtime: looking for the runc binary", None),
    ("runtime-not-installed", 'exec: "nvidia-smi": executable file not found in $PATH', "exec-nvidia-smi"),
    ("podman-runtime", "unknown or invalid runtime name: nvidia", "docker-runtime"),
    (
        "apptainer-no-files",
        "WARNING: Skipping user bind, non existent bind point (file) in container",
        None,
    ),
    ("nvml-wsl-blocked", "Failed to initialize NVML: Unknown Error", "nvml-unknown"),
    ("vgpu-guest-old", "vmiop_log: (0x0): Cannot query ECC status. vGPU ECC support will be disabled.", None),
    ("vgpu-unsupported", "nvidia-vgpud[2009]: pciId of gpu [0]: 0:1:0:0", None),
    ("vfio-group", "QMP command failed: vfio 0000:01:00.1: group 1 used in multiple address spaces: unknown", None),
    ("slurm-no-cgroup-v2", "error: Couldn't load specified plugin name for proctrack/cgroup: Plugin init()", None),
    ("slurm-no-dbus", "error: cgroup namespace 'freezer' not mounted. aborting", None),
    ("ofi-no-provider", "NET/OFI Creating new endpoint for domain 0x7f9befa99380 failed: Invalid argument", None),
    ("ofi-insert-address", "NCCL WARN NET/OFI Couldn't open AV. RC: -22, ERROR: Invalid argument", "ofi-av"),
    ("nccl-socket-family", "NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth2", None),
    ("nccl-rank-twice", "NCCL WARN Bootstrap Root : mismatch in rank count from procs 8 : 16", None),
    ("nccl-bootstrap-truncated", "NCCL WARN NET/Socket : message truncated", None),
    (
        "gloo-loopback",
        "[Gloo] Rank 0 is connected to 0 peer ranks. Expected number of connected peer ranks is : 0",
        None,
    ),
    ("gloo-mesh", "[Gloo] Rank 0 is connected to 7 peer ranks. Expected number of connected peer ranks is : 7", None),
    (
        "torch-store-gone",
        "[c10d] The client socket has timed out after 60s while trying to connect to (node0, 29500).",
        None,
    ),
    ("jax-tasks-missing", "DEADLINE_EXCEEDED: Barrier timed out. Id: my_own_barrier::0.", None),
    ("jax-rendezvous", "This thread has been waiting for `acquire clique` for 10 seconds", None),
    ("symm-mem-fd-hosts", "RuntimeError: failed to connect to socket: No such file or directory", None),
    (
        "symm-mem-window",
        "NCCL error in: torch/csrc/distributed/c10d/symm_mem/NCCLSymmetricMemory.cu:174, invalid argument",
        None,
    ),
    (
        "ucx-ipc-twice",
        "UCC ERROR ipc-cache: failed to open ipc mem handle. addr:0x7f65a8000000 len:16777216 err:201",
        None,
    ),
    (
        "ucx-transport-retry",
        "ib_mlx5_log.c:145 RC QP 0x638b wqe[1064]: RDMA_WRITE s-- [rva 0x14b3e2d90000 rkey 0x1ba09e]",
        None,
    ),
    ("ompi-ipc-get-handle", "undefined symbol: cuIpcOpenMemHandle_v2 CUDA-aware support is disabled.", None),
    (
        "mooncake-register-address",
        "rdma_context.cpp:203] Failed to register memory 0x7b375b400000: Invalid argument [22]",
        None,
    ),
    ("deepep-peers", "Failed: Assertion error deep_ep.cpp:629 'num_tokens_per_rdma_rank.has_value()'", None),
    (
        "custom-allreduce-ipc",
        "custom_all_reduce.cuh:307 'peer access is not supported between these two devices'",
        "custom-allreduce-peer",
    ),
    ("trtllm-world-size", "[TensorRT-LLM][ERROR] Assertion failed: Failed: MPI error", None),
    (
        "ucx-unreachable",
        "UCXPY  DEBUG Error callback for endpoint called with status -6: Destination is unreachable",
        None,
    ),
    ("torch-producer-ended", "RuntimeError: the producer process has been stopped", None),
    ("nccl-networks-differ", "NCCL WARN socketFinalizeAccept: wrong magic 1234 != 5678", None),
    ("torch-pidfd-denied", "RuntimeError: pidfd_getfd: Bad file descriptor", "torch-pidfd-descriptor"),
    ("torch-pidfd-descriptor", "RuntimeError: pidfd_getfd: Operation not permitted", "torch-pidfd-denied"),
    ("cufile-no-module", "nvidia_fs: Initializing nvfs driver module", None),
    ("cufile-nvme", "NOTICE  cufio-fs:451 dumping volume attributes: DEVNAME:/dev/nvme0n1p2,ID_FS_TYPE:ext4", None),
    ("cufile-compat", " properties.use_compat_mode : true", None),
    ("nvfs-pin", "nvidia-fs:nvfs_pin_gpu_pages:1292 Error ret -12 invoking nvidia_p2p_get_pages", "nvfs-pin-bar1"),
    ("openibd-no-module", "Unloading HCA driver:                                      [  OK  ]", None),
    (
        "symbol-version-rdma",
        "nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client",
        "symbol-version",
    ),
    ("symbol-version", "ksmbd: disagrees about version of symbol ib_unregister_client", "symbol-version-rdma"),
    ("symbol-version-rdma", "ice: disagrees about version of symbol hid_hw_start", "symbol-version-other"),
    ("mlx5-health", "mlx5_core 0000:5e:00.0: synd 0x0: None", None),
    ("report-remap-pending", "            Pending                               : Enabled", None),
    ("report-remap-pending", "        Channel Repair Pending               : Yes", "report-repair-pending"),
    ("report-remap-failed", "        Remapping Failure Occurred        : No", None),
    ("report-recovery", "    GPU Recovery Action                   : None", None),
    ("report-fabric-in-progress", "        State                                          : Completed", None),
    ("report-link-inactive", "         Link 0: 50 GB/s", None),
    ("plugin-inotify", "Starting FS watcher.", None),
    ("slurm-file-less", "slurmd: GRES[gpu] Type:h100 Count:1 File:/dev/nvidia0", None),
    (
        "slurm-select-type",
        "sbatch: error: Batch job submission failed: Requested node configuration is not available",
        "slurm-no-such-node",
    ),
    ("ucx-umem", "ib_mlx5.h:900  UCX  ERROR mlx5dv_devx_umem_reg() failed: Invalid argument", None),
    ("empty-driver-libraries", "/sbin/ldconfig.real: File /usr/lib/libfoo.so.1 is empty, not checked.", None),
    ("ngc-map-failed", "   [[ CUDA driver version is insufficient for CUDA runtime version (error 35) ]]", ""),
    ("ngc-map-failed", "   [[ System not yet initialized (error 802) ]]", ""),
    (
        "nvbandwidth-import",
        "[CUDA_ERROR_NOT_SUPPORTED] operation not supported in expression cuMemImportFromShareableHandle(&h)",
        "",
    ),
    ("nccl-connect", "NCCL INFO Call to connect returned Connection refused, retrying", None),
    (
        "nccl-retry",
        "NCCL WARN NET/IB : Got completion with error 4, opcode 0, len 32694, vendor err 81",
        "nccl-local-protection",
    ),
    ("report-nouveau", "\tKernel driver in use: nvidia", None),
    ("report-port-no-sm", "State: Active\nPhysical state: LinkUp", None),
    ("report-port-no-link", "                Physical state: LinkUp", None),
    (
        "unknown-symbol-rdma",
        "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -22)",
        "unknown-symbol",
    ),
    (
        "verbs-no-providers",
        "libibverbs: Warning: no userspace device-specific driver found for uverbs0",
        "verbs-no-provider",
    ),
    ("ucx-connect", "sock.c:323 UCX DEBUG connect(fd=87, dest_addr=10.0.0.1:47133): in progress", None),
    ("cufile-not-registered", "GDS_MT: cuFileRead failed: Unknown error 5030", None),
    ("ompi-slots", "All nodes which are allocated for this job are already filled.", None),
    ("ssh-refused", "ssh: connect to host worker-1 port 22: Connection timed out", None),
    (
        "slurm-tres",
        "srun: error: Unable to create step for job 7: Requested node configuration is not available",
        "slurm-no-such-node",
    ),
    ("pyxis-import", "pyxis: importing docker image ...", None),
    ("dra-deadline", "Pending rpc error: code = DeadlineExceeded desc = context deadline exceeded", None),
    ("dcgm-server", "Err: Failed to start DCGM Server: -8", None),
    ("dcgm-mig", "MIG Mode: Enabled", None),
    ("cli-cuda", "nvidia-container-cli: initialization error: nvml error: unknown error", ""),
    ("custom-allreduce-handle", "custom_all_reduce.cuh:455 'invalid argument'", "custom-allreduce-ipc"),
    ("smi-setting-denied", "Failed to initialize NVML: Insufficient Permissions", "nvml-permissions"),
    ("vllm-no-cache-blocks", "INFO 04-01 02:45:50 GPU KV cache size: 393,216 tokens", None),
    ("kernel-lockdown", "Lockdown: systemd-logind: hibernation is restricted; see man kernel_lockdown.7", None),
    ("dpdk-huge-size", "EAL: No free hugepages reported in hugepages-2048kB", "dpdk-huge-2mb"),
    ("dpdk-huge-2mb", "EAL: No free hugepages reported in hugepages-524288kB", None),
    (
        "ray-too-few-gpus",
        "Error: No available node types can fulfill resource request {'CPU': 1.0, 'memory': 22548578304.0}.",
        None,
    ),
    (
        "torch-dataloader-bus",
        "RuntimeError: DataLoader worker (pid 325) is killed by signal: Killed.",
        "torch-dataloader-killed",
    ),
    ("torch-dataloader-killed", "RuntimeError: DataLoader worker (pid 325) is killed by signal: Aborted.", None),
    (
        "ngc-gpu-new",
        "WARNING: Detected NVIDIA GB10 GPU, which may not yet be supported in this version of the container",
        "ngc-gpu-maybe",
    ),
    ("verbs-qp-timeout", "Failed to modify QP to RTR: Broken pipe", None),
    ("plugin-platform", "factory.go:107] Detected non-Tegra platform: /sys/devices/soc0/family file not found", None),
    ("driver-compile", "drivers/gpu/drm/i915/i915_drv.c:12:3: error: unknown type name 'foo'", None),
    ("driver-compile", "/var/lib/dkms/nvidia-fs/2.17/build/nvfs-core.c:70:5: error: unknown type name", None),
    ("driver-compile", "nvidia/nv.c:130:18: warning: this statement may fall through", None),
    (
        "slurm-step-gres",
        "sbatch: error: Batch job submission failed: Invalid generic resource (gres) specification",
        "slurm-gres-unknown",
    ),
    (
        "torch-nvml-assert",
        "NVML_SUCCESS == DriverAPI::get()->nvmlInit_v2_() INTERNAL ASSERT FAILED",
        "torch-nvml-init-assert",
    ),
    ("operator-waits", "waiting for the container to be set up", None),
    ("trtllm-no-peer", "[TensorRT-LLM][INFO] Device 0 peer access Device 1 is available.", None),
    ("vllm-worker-start", "INFO 04-01 02:45:50 WorkerProc initialization done", None),
]
"""An entry, a line that is not its, and the entry that explains the line: ``""`` if it is an error of CUDA, ``None`` if
nothing is known of it."""


@pytest.mark.parametrize(("entry", "line", "other"), NEIGHBOURS)
def test_a_line_that_is_near_is_another(entry: str, line: str, other: str | None) -> None:
    assert entry in messages().entries
    result = explained(line)
    assert messages_of(result) == ([] if other is None else [other])
    if other is None:
        assert result.word is Word.NOT_KNOWN


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
