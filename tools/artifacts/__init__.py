"""Makes what is handed out: a folder with its own Python, deb and rpm of it, a pex; see tools/make_dist.py."""
