"""One file an area; each ends in ``CHECKS``, which ``egmctl.doctor.registry`` puts in order."""
