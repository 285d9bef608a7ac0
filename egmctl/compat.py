"""Features of Python 3.11 for Python 3.10, which Ubuntu 22.04 has. It goes when 3.10 goes."""

import sys
from typing import NoReturn

if sys.version_info >= (3, 11):
    from enum import StrEnum as StrEnum
else:
    from enum import Enum

    class StrEnum(str, Enum):
        """An enumeration whose members are strings, and print as them."""

        _value_: str
        __str__ = str.__str__


def assert_never(value: NoReturn) -> NoReturn:
    """Mark code that no value reaches: the type checker then refuses a ``match`` that misses a case."""
    raise AssertionError(f"{value!r} has no arm")
