"""A sealed child: it has what it needs, and takes nothing more from anywhere."""

from __future__ import annotations

import pytest

from egmctl.errors import ChildFailed
from tests.launch.start import run

pytestmark = pytest.mark.processes


def test_target_and_hook_work_as_in_any_child() -> None:
    reported = run("sealed_facts", before="tests.launch.hooks:mark_sealed", before_arguments={"mark": "m"}, sealed=True)
    assert reported == {"mark": "m", "finders": [], "import": "ModuleNotFoundError", "codec": "LookupError"}


def test_an_error_is_told_and_no_source_file_is_read_for_it() -> None:
    with pytest.raises(ChildFailed, match="raise_value_error raised ValueError: seven is not even") as caught:
        run("raise_value_error", sealed=True)
    assert caught.value.output == ""


def test_an_error_that_cannot_be_told_is_an_exit_code() -> None:
    with pytest.raises(ChildFailed, match="exited with code 70 without a result") as caught:
        run("raise_past_the_launcher", sealed=True)
    assert caught.value.output == ""


def test_a_warning_reads_no_source_file() -> None:
    assert run("warn", sealed=True) == "warned"
