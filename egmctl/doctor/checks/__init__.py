"""One file an area; each ends in ``CHECKS``, which ``egmctl.doctor.registry`` finds and puts in order."""
