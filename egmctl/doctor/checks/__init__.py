"""One file an area, which ends in ``CHECKS``, with the texts of its checks in the TOML file beside it."""
