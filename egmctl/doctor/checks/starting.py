"""The check that NVML and CUDA start, and why they do not."""

from __future__ import annotations

import re
from collections.abc import Mapping

from egmctl.doctor.check import Scope, Verdicts, check, skip
from egmctl.doctor.findings import fact, failed, passed, unknown
from egmctl.doctor.situation import NO_NVIDIA_GPU, in_container
from egmctl.driver.signatures import cause_of
from egmctl.model.finding import Finding, Guard
from egmctl.model.gpu import Gpu
from egmctl.model.host import Driver, LibraryFailure, Process
from egmctl.model.machine import Machine
from egmctl.model.record import Reason
from egmctl.model.remedy import Need, Remedy, as_root, todo
from egmctl.topology.access import cuda_failure, nvml_failure

_LOG = "dmesg | grep -iE 'NVRM|Xid'"
_SICK = as_root("Look in the kernel log for what the driver says; each Xid there has a remedy of its own.", look=_LOG)
_FREE = todo("Free memory, processes or descriptors, or raise their limits (ulimit -a, pids.max, memory.max).")
RELOAD = as_root("Reload the kernel module of the installed driver, or reboot.", Need.DRIVER_RELOAD)
HOST_LIBRARIES = todo(
    "Use the host's driver libraries, as the NVIDIA Container Toolkit mounts them: the image's own libcuda and "
    "libnvidia-ml, or a compat folder in LD_LIBRARY_PATH or ld.so.conf, must not come first.",
    look="ldconfig -p | grep -E 'libcuda|libnvidia-ml'",
)
_BY_NAME: Mapping[str, Remedy] = {
    "NVML_ERROR_DRIVER_NOT_LOADED": as_root("Load the driver's kernel module, or install it.", run="modprobe nvidia"),
    "NVML_ERROR_NO_PERMISSION": as_root("Run as root, or see dev.permissions and dev.control-nodes."),
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": RELOAD,
    "NVML_ERROR_GPU_IS_LOST": as_root("Power-cycle the drained node.", Need.REBOOT, look=_LOG),
    "NVML_ERROR_MEMORY": _FREE,
    "NVML_ERROR_INSUFFICIENT_RESOURCES": _FREE,
}
"""The remedies for NVML errors that name their cause (nvml.h, nvmlReturn_t)."""


@check("drv.libraries", *Guard, sections=("gpus", "driver"))
def _answer(machine: Machine, _scope: Scope) -> Verdicts:
    driver_gpus = [gpu for gpu in machine.gpus or () if gpu.pci is None or gpu.pci.driver in (None, "", "nvidia")]
    if not driver_gpus:
        skip("the NVIDIA driver has no GPU here" if machine.gpus else NO_NVIDIA_GPU)
    failures = {"NVML": nvml_failure(machine), "CUDA": cuda_failure(machine)}
    missing = [library for library, failure in failures.items() if failure is not None and failure.how == "missing"]
    if missing:
        yield _lacking(machine, missing, failures, driver_gpus)
    for library, failure in failures.items():
        if failure is not None and library not in missing:
            yield _failed(machine, library, failure, driver_gpus)
    listed = {"NVML": any(gpu.nvml for gpu in driver_gpus), "CUDA": any(gpu.cuda for gpu in driver_gpus)}
    answering = [library for library, failure in failures.items() if listed[library] and failure is None]
    if answering:
        yield fact("nvmlSystemGetDriverVersion", (machine.driver or Driver()).driver_version)
        yield passed(f"{' and '.join(answering)} work{'s' if len(answering) == 1 else ''}")
    if "NVML" not in answering and not failures["NVML"]:
        if not _lists_no_gpu(driver_gpus):
            yield unknown("whether NVML works is unknown: it was not queried")
        elif not answering and failures["CUDA"] is None:
            yield passed("NVML works but lists no GPU", note="dev.count-consistency judges that")


def _lists_no_gpu(gpus: list[Gpu]) -> bool:
    """Return whether NVML was queried but lists none of these GPUs."""
    reasons = {gpu.reason_of("nvml") for gpu in gpus} - {None}
    return bool(reasons) and reasons.isdisjoint((Reason.NOT_ASKED, Reason.NOT_STATED))


def _failed(machine: Machine, library: str, failure: LibraryFailure, gpus: list[Gpu]) -> Finding:
    failed_gpus = [gpu for gpu in machine.gpus or () if gpu.bus_id == failure.gpu]
    call = failure.call or f"the child process that queries {library}"
    signature = cause_of(failure.call, failure.number) if library == "CUDA" else None
    cause = signature.cause if signature else ""
    remedy = signature.remedy if signature else _BY_NAME.get(failure.name or "", _SICK)
    if library == "CUDA" and (known := _cuda_remedy(machine, failure, is_known=signature is not None)) is not None:
        cause, remedy = known
    match failure.how:
        case "too-old":
            remedy = todo("Install the extra of egmctl that fits the driver (cu12 or cu13), or a newer driver.")
        case "not-started":
            remedy = _FREE
        case "crashed" | "timed-out":
            cause = cause or "a GPU or the driver hangs or is in a bad state: nvidia-smi will not work either"
    return failed(
        f"{library} {failure.words}: what only it reports is unknown",
        remedy,
        failed_gpus or gpus,
        evidence=(fact(call, failure.detail or failure.name or failure.how),),
        cause=cause,
    )


_FILES = {"NVML": "libnvidia-ml.so.1", "CUDA": "libcuda.so.1"}
"""The files of the driver's libraries."""
_CAPABILITIES = todo("Start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility.")
_SPECIFICATION = todo(
    "Generate the CDI specification anew on the host (nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml), and "
    "start the container again; without CDI, start it with NVIDIA_DRIVER_CAPABILITIES=compute,utility.",
)
_TOOLKIT = frozenset({"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES"})
"""The variables with which a container asks the NVIDIA Container Toolkit for GPUs and libraries."""


def _lacking(
    machine: Machine, missing: list[str], failures: Mapping[str, LibraryFailure | None], gpus: list[Gpu]
) -> Finding:
    """Return the finding on libraries that are not there: one package, or one container, has both or neither.

    The NVIDIA Container Toolkit mounts what NVIDIA_DRIVER_CAPABILITIES asks for. CDI mounts the files that its
    specification names, and an update of the driver removes them
    (https://github.com/podman-container-tools/podman/issues/26233).
    """
    files = ", ".join(_FILES[library] for library in missing)
    words = "are missing: the libraries" if len(missing) > 1 else "is missing: the library"
    environment = (machine.process or Process()).environment
    version, cause = (machine.driver or Driver()).module_version, ""
    remedy = todo(f"Install the libraries of driver {version}." if version else "Install the driver.")
    if in_container(machine):
        remedy = _CAPABILITIES
        if len(missing) == len(failures) and environment is not None and _TOOLKIT.isdisjoint(environment):
            remedy = _SPECIFICATION
            cause = "the container has none of the driver's libraries, as with a CDI specification of an earlier driver"
    return failed(
        f"{' and '.join(missing)} {words} cannot be loaded ({files}): what only {'they' if len(missing) > 1 else 'it'} "
        f"report{'' if len(missing) > 1 else 's'} is unknown",
        remedy,
        gpus,
        evidence=tuple(
            fact(failure.call or f"the child process that queries {library}", failure.detail or failure.how)
            for library, failure in failures.items()
            if failure is not None and library in missing
        ),
        cause=cause,
    )


_MISMATCH = "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"
_BY_LIBCUDA = (803, 804)
"""CUDA_ERROR_SYSTEM_DRIVER_MISMATCH and CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE: the libcuda that is loaded does not
fit the kernel module, or these GPUs (cuda.h)."""
_LOAD_UVM = as_root(
    "Load nvidia_uvm, which makes /dev/nvidia-uvm with nvidia-modprobe. A container has to be started again then.",
    run="modprobe nvidia_uvm && nvidia-modprobe -u -c 0",
)


_NOT_READY = 802
"""CUDA_ERROR_SYSTEM_NOT_READY."""


def _cuda_remedy(machine: Machine, failure: LibraryFailure, *, is_known: bool) -> tuple[str, Remedy] | None:
    """Return cause and remedy of a failure of CUDA that this node's facts explain, or that has no known cause."""
    driver = machine.driver or Driver()
    module, loaded = driver.module_version, driver.libcuda_version
    agree = module is not None and module == driver.driver_version
    if failure.number in _BY_LIBCUDA and loaded is not None and (driver.libcuda_compat or loaded != module):
        folder = "CUDA's compat folder" if driver.libcuda_compat else "another folder than the driver's"
        cause = f"libcuda {loaded} of {folder} is loaded; the kernel module is {module or 'of an unknown version'}"
        return cause, HOST_LIBRARIES
    if failure.name == _MISMATCH and (agree or in_container(machine)):
        return (
            "another libcuda than the driver's is loaded first: the image's own, or CUDA's compat folder",
            HOST_LIBRARIES,
        )
    if failure.number == _NOT_READY and driver.confidential_compute == "on" and not machine.switches:
        cause = "under confidential computing the GPUs accept no work until they are set ready"
        return cause, as_root("Set the ready state once the GPUs are attested: nvidia-smi conf-compute -srs 1.")
    if is_known or failure.how != "error":
        return None
    uvm = next((node for node in driver.nodes or () if node.path == "/dev/nvidia-uvm"), None)
    if uvm is not None and not uvm.exists and "nvidia_uvm" not in (driver.modules or ("nvidia_uvm",)):
        return "the kernel module nvidia_uvm is not loaded, so that there is no /dev/nvidia-uvm", _LOAD_UVM
    if re.fullmatch("[A-Za-z0-9_]+", failure.call or "") and failure.number is not None:
        explain = f"egmctl explain {failure.call} {failure.number}"
        return "", todo("Look at its known causes, and at what the driver says in the kernel log.", look=explain)
    return None
