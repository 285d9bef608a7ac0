"""The process that calls a function on a fake node: the arguments come as JSON, and what it returns is printed so."""

from __future__ import annotations

import importlib
import json
import resource
import sys

# Some of these processes die from a signal, as they should.
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
module, function, arguments = json.loads(sys.argv[1])
print(json.dumps(getattr(importlib.import_module(module), function)(*arguments)))  # noqa: T201
