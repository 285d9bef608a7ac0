"""Messages by a real UCX are tested where ucxx is installed: by ``make test-ucx``, and so in CI."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [] if find_spec("ucxx") else ["test_messages.py"]
