"""One file an area; each ends in ``CHECKS``, which ``egmctl.doctor.runner`` finds and puts in order."""
