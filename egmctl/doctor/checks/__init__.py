"""The checks, one module per area, each with the texts of its checks in the TOML file next to it."""
