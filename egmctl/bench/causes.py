"""Which errors of the driver have a known cause in the environment: one table from a signature to a sentence."""

from __future__ import annotations

from egmctl.errors import DriverCallError

_CAUSES = {
    "CUDA_ERROR_OUT_OF_MEMORY": "there is not enough free memory: a smaller --size, or end what else uses it",
    "CUDA_ERROR_NOT_PERMITTED": "the driver does not permit it to this process",
    "CUDA_ERROR_DEVICE_UNAVAILABLE": "the GPU is in exclusive use by another process, or its compute mode forbids it",
}


def known_cause(error: DriverCallError) -> str | None:
    """Return what in the environment causes an error and what to do; ``None`` if that is not known."""
    return _CAUSES.get(error.name)
