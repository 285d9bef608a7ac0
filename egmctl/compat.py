"""Features of Python 3.11 for Python 3.10, which Ubuntu 22.04 has. It goes when 3.10 goes."""

import sys

if sys.version_info >= (3, 11):
    from enum import StrEnum as StrEnum
else:
    from enum import Enum

    class StrEnum(str, Enum):
        """An enumeration whose members are strings, and print as them."""

        _value_: str
        __str__ = str.__str__
