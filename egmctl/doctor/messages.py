"""What the driver's messages in the kernel's log mean, how grave they are, and what to do.

Where each comes from in open-gpu-kernel-modules 595.45.04 is told by its text in :class:`DriverMessage`.
"""

from __future__ import annotations

from dataclasses import dataclass

from egmctl.model.finding import Remedy, Status
from egmctl.model.kernel_log import DriverMessage as M


@dataclass(frozen=True, slots=True)
class Meaning:
    """One message's meaning."""

    status: Status
    meaning: str
    remedy: Remedy


_FIRMWARE = Remedy(text="Update the node's firmware (SBIOS), then report the line to its vendor.", needs_reboot=True)
_EGM_FABRIC = Remedy(
    text="Make EGM equal on all trays (firmware) and in Fabric Manager, then restart Fabric Manager.", needs_root=True
)
_FABRIC = Remedy(
    text="Check Fabric Manager (nvlsm, nvidia-fabricmanager) and its log, then reset the GPU.", needs_root=True
)
_RESET = Remedy(
    text="Drain and reset the GPU; inspect the NVLink cable or board if it returns.",
    command="nvidia-smi --gpu-reset",
    needs_root=True,
)
_IMEX = Remedy(
    text="Restart the IMEX service on every node of the domain.",
    command="systemctl restart nvidia-imex",
    needs_root=True,
)
_REGKEY = Remedy(
    text="Remove the registry key from the driver's NVreg_RegistryDwords and reload the driver.", needs_root=True
)
_ONLINE = Remedy(text="Boot with memhp_default_state=online_movable.", needs_root=True, needs_reboot=True)
_POWER = Remedy(text="Drain and power-cycle the node; inspect or replace the GPU if it returns.", needs_reboot=True)
_CGROUP = Remedy(text="Give the job every GPU of the node: its device cgroup lacks the GPU that owns the memory.")

_FAIL, _WARN = Status.FAIL, Status.WARN

MESSAGES: dict[M, Meaning] = {
    M.EGM_ADDRESS: Meaning(_FAIL, "the firmware's EGM address is incorrect", _FIRMWARE),
    M.EGM_HSHUB: Meaning(_FAIL, "EGM could not be set up in the GPU's hub", _FIRMWARE),
    M.EGM_PEER_IN_USE: Meaning(_FAIL, "the peer id of local EGM is taken", _REGKEY),
    M.EGM_NO_FABRIC_ADDRESS: Meaning(
        _FAIL, "a GPU with EGM has no EGM fabric address, which turns its whole NVLink P2P off", _EGM_FABRIC
    ),
    M.EGM_UNEXPECTED_FABRIC_ADDRESS: Meaning(_FAIL, "a GPU without NVSwitch has an EGM fabric address", _EGM_FABRIC),
    M.EGM_NOT_ENABLED: Meaning(_FAIL, "Fabric Manager requires EGM, but the GPU has it off", _EGM_FABRIC),
    M.EGM_FABRIC_BASE: Meaning(_FAIL, "two GPUs were given one EGM fabric address", _EGM_FABRIC),
    M.EGM_INVALID_FABRIC_ADDRESS: Meaning(_FAIL, "an invalid EGM fabric address", _EGM_FABRIC),
    M.EGM_PEER_MISSING: Meaning(_FAIL, "a GPU has no EGM route to the owner of host memory", _CGROUP),
    M.NO_P2P_FOR_SYSTEM_MEMORY: Meaning(
        _WARN,
        "a GPU tried to map another GPU's host memory that is not EGM",
        Remedy(text="Turn EGM on in the firmware, or allocate host memory at a HOST_NUMA node.", needs_reboot=True),
    ),
    M.NO_FABRIC_ADDRESS: Meaning(_FAIL, "a GPU has no fabric address", _FABRIC),
    M.P2P_DISABLED: Meaning(_FAIL, "P2P is disabled", _REGKEY),
    M.C2C_P2P: Meaning(_FAIL, "a P2P mapping over C2C failed", _RESET),
    M.C2C_SELF_TEST: Meaning(_FAIL, "the C2C link failed its self test", _POWER),
    M.SWITCH_TRAINING: Meaning(_FAIL, "links to an NVSwitch did not train", _RESET),
    M.SYSMEM_LINK_TRAINING: Meaning(_FAIL, "links to the CPU did not train", _POWER),
    M.NVLINK_ACTIVATION: Meaning(_FAIL, "an NVLink could not be activated", _RESET),
    M.NVLINK_ALI: Meaning(_FAIL, "an NVLink did not train (ALI)", _RESET),
    M.NVLINK_RECEIVER_DETECT: Meaning(_WARN, "the receivers of NVLinks were not detected", _RESET),
    M.NVLINK_UNCONTAINED: Meaning(_FAIL, "an uncontained NVLink error", _RESET),
    M.NVLINK_DEGRADED: Meaning(_FAIL, "a GPU was marked degraded after an NVLink error", _RESET),
    M.COHERENT_MAPPINGS_OFF: Meaning(_WARN, "a registry key turns mappings over NVLink-C2C off", _REGKEY),
    M.FABRIC_PROBE: Meaning(_FAIL, "the fabric refused the GPU, or did not answer", _FABRIC),
    M.FABRIC_INBAND: Meaning(_FAIL, "the fabric's manager cannot be reached", _FABRIC),
    M.CLIQUE_MISMATCH: Meaning(
        _FAIL,
        "memory of a GPU in another clique was imported",
        Remedy(text="Run the job within one clique (partition) of the NVLink domain."),
    ),
    M.BANDWIDTH_MODE_MISMATCH: Meaning(
        _FAIL,
        "memory of a GPU in another NVLink bandwidth mode was imported",
        Remedy(text="Set one NVLink bandwidth mode on all GPUs.", needs_root=True),
    ),
    M.OWNER_NOT_ACCESSIBLE: Meaning(_FAIL, "memory was imported without access to the GPU that owns it", _CGROUP),
    M.IMEX_SHUTDOWN: Meaning(_FAIL, "the IMEX daemon ended and fabric allocations are disabled", _IMEX),
    M.IMEX_RECOVERY: Meaning(_WARN, "a daemon's end made the driver end the jobs that shared memory", _IMEX),
    M.MEMORY_NOT_MOVABLE: Meaning(_FAIL, "the GPU's memory could not go online: the zone is not movable", _ONLINE),
    M.MEMORY_ADD: Meaning(_FAIL, "the GPU's memory could not be added to the system", _ONLINE),
    M.SMMU_SVA: Meaning(
        _FAIL,
        "the SMMU's shared virtual addressing could not be enabled, so that the GPU has no ATS",
        Remedy(text="Boot a kernel with CONFIG_ARM_SMMU_V3_SVA and CONFIG_IOMMU_SVA.", needs_reboot=True),
    ),
    M.FELL_OFF_BUS: Meaning(_FAIL, "a GPU fell off the bus", _POWER),
    M.INIT_FAILED: Meaning(_FAIL, "a GPU could not be initialized", _POWER),
}
