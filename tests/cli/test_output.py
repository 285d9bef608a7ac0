"""A result goes where it was asked to go, whole, in the format asked for, and never over something else."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from egmctl.cli.output import Color, OutputOptions, check_output, colored, emit
from egmctl.documents import ENCODING, GZIP, unpacked
from egmctl.errors import EgmctlError, UsageError
from egmctl.report.kinds import BENCH, Format
from egmctl.saved import load
from tests.answers import with_answer
from tests.conftest import ended
from tests.in_process import run
from tests.saved.documents import measured_report

SUFFIXES_OF_BENCH = ".txt, .json, .csv, .html, .svg, .md, .prom, .xml"


@pytest.mark.parametrize(
    ("asked", "name", "format"),
    [
        ({}, None, Format.TEXT),
        ({"json": True}, None, Format.JSON),
        ({"csv": True}, None, Format.CSV),
        ({"format": Format.PROM}, None, Format.PROM),
        ({}, "a.txt", Format.TEXT),
        ({}, "a.json", Format.JSON),
        ({}, "a.b.CSV", Format.CSV),
        ({}, "a.html", Format.HTML),
        ({}, "a.svg", Format.SVG),
        ({}, "a.md", Format.MARKDOWN),
        ({}, "a.prom", Format.PROM),
        ({"json": True}, "a.json", Format.JSON),
        ({"json": True, "format": Format.JSON}, "a.json", Format.JSON),
        ({"format": Format.MARKDOWN}, "ticket", Format.MARKDOWN),
    ],
)
def test_the_form_is_said_by_the_option_or_the_suffix(asked: dict[str, Any], name: str | None, format: Format) -> None:
    (target,) = OutputOptions(output=[Path(name)] if name else (), **asked).chosen(BENCH.formats).targets
    assert target.format is format


@pytest.mark.parametrize(
    ("asked", "name", "sentence"),
    [
        ({"json": True, "csv": True}, None, "--json and --csv exclude each other; give one of them"),
        ({"json": True, "format": Format.SVG}, None, "--json and --format svg exclude each other; give one of them"),
        ({"json": True}, "a.csv", "--json and the suffix of a.csv exclude each other; give one of them"),
        ({"csv": True}, "a.txt", "--csv and the suffix of a.txt exclude each other; give one of them"),
        ({"format": Format.SVG}, "a.md", "--format svg and the suffix of a.md exclude each other; give one of them"),
        (
            {"format": Format.NAGIOS},
            None,
            "--format nagios: no such format here; valid are text, json, csv, html, svg, md, prom, junit",
        ),
        *(
            ({}, name, f"{name}: {complaint}; valid are {SUFFIXES_OF_BENCH}, or any with --format")
            for name, complaint in (
                ("a.yaml", "the suffix '.yaml' names no format"),
                ("a.xls", "the suffix '.xls' names no format"),
                ("result", "no suffix names the format"),
                ("/dev/null", "no suffix names the format"),
            )
        ),
        ({}, "/usr/lib", "/usr/lib is a directory; give a file to write the result to"),
    ],
)
def test_what_contradicts_itself_or_names_no_form_is_refused(
    asked: dict[str, Any], name: str | None, sentence: str
) -> None:
    with pytest.raises(UsageError) as caught:
        OutputOptions(output=[Path(name)] if name else (), **asked).chosen(BENCH.formats)
    assert str(caught.value) == sentence


def test_a_file_that_exists_is_kept_without_force_and_replaced_with_it(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("mine")
    with pytest.raises(UsageError, match=r"a\.json exists; --force overwrites it"):
        check_output(path, force=False)
    with pytest.raises(UsageError, match="exists"):
        emit("{}", path)
    assert path.read_text() == "mine"
    emit("{}", path, force=True)
    assert path.read_text() == "{}\n"


def test_a_file_is_written_with_usual_rights_and_a_replaced_one_keeps_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    mask = os.umask(0o022)
    try:
        emit("1", path)
        assert path.stat().st_mode & 0o777 == 0o644
        path.chmod(0o600)
        emit("2", path, force=True)
        assert path.stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(mask)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    link, target = tmp_path / "link.txt", tmp_path / "target.txt"
    target.write_text("old")
    link.symlink_to(target)
    emit("new", link, force=True)
    assert (link.is_symlink(), target.read_text()) == (True, "new\n")


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("pipe.json", "is not a regular file"),
        ("folder.json", "is not a regular file"),
        ("no/a.txt", "no/a.txt cannot be written: .*/no is not a directory"),
        ("file/a.txt", "is not a directory"),
    ],
)
def test_where_no_file_can_be_is_said_before_any_work(tmp_path: Path, name: str, sentence: str) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=sentence):
        check_output(tmp_path / name, force=True)


@pytest.mark.parametrize(("mode", "sentence"), [(0o500, "no permission to write in {}"), (0o000, "Permission denied")])
@pytest.mark.processes
def test_a_directory_without_permission_is_named(tmp_path: Path, mode: int, sentence: str) -> None:
    """Asked of a process without root's rights: root may write anywhere."""
    folder = tmp_path / "closed"
    folder.mkdir()
    script = (
        "import os, sys; from pathlib import Path\n"
        "from egmctl.cli.output import check_output\n"
        "from egmctl.errors import UsageError\n"
        "folder = Path(sys.argv[1]); folder.chmod(int(sys.argv[2]))\n"
        "try: check_output(folder / 'a.txt', False)\n"
        "except UsageError as error: print(error)\n"
        "else: print('accepted')\n"
    )
    command = [sys.executable, "-c", script, str(folder), str(mode)]
    if os.geteuid() == 0:
        command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *command]
    assert ended(command).out == f"{folder}/a.txt cannot be written: {sentence.format(folder)}\n"


def test_a_name_that_is_too_long_is_refused_and_costs_no_result(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written: File name too long"):
        check_output(tmp_path / f"{300 * 'a'}.txt", force=False)
    with pytest.raises(EgmctlError, match=r"cannot write .*: File name too long; the result is in .*/a{200}-2\.txt"):
        emit("{}", tmp_path / f"{300 * 'a'}.txt")
    assert [path.name for path in tmp_path.iterdir()] == [f"{200 * 'a'}-2.txt"]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_write_that_fails_costs_neither_the_earlier_file_nor_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], failing: str
) -> None:
    path = tmp_path / "a.json"
    path.write_text("mine")

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, fail)
    sentence = f"cannot write {path}: No space left on device; the result is"
    with pytest.raises(EgmctlError) as caught:
        emit("{}", path, force=True)
    assert path.read_text() == "mine"
    if failing == "fsync":
        assert str(caught.value) == f"{sentence} on standard output"
        assert capsys.readouterr().out == "{}\n"
        assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]
    else:
        assert str(caught.value) == f"{sentence} in {tmp_path / 'a-2.json'}"
        assert (tmp_path / "a-2.json").read_text() == "{}\n"
        assert len(list(tmp_path.iterdir())) == 2


def test_text_in_a_file_is_never_coloured(tmp_path: Path) -> None:
    emit(Text("PASS", style="green"), tmp_path / "a.txt", color=Color.ALWAYS)
    assert (tmp_path / "a.txt").read_text() == "PASS\n"


@pytest.mark.parametrize("color", Color)
def test_text_is_never_wrapped_cut_or_read_as_markup(
    color: Color, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    line = "[bold]not markup[/] :smile: https://example.org 12345 " + "x" * 300
    emit(Text(line), color=color)
    assert capsys.readouterr().out == f"{line}\n"


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_are_the_terminals_own_sixteen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], environment: dict[str, str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    emit(Text("PASS", style="green"), color=Color.ALWAYS)
    assert capsys.readouterr().out == "\x1b[32mPASS\x1b[0m\n"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("terminal", "environment", "color", "answer"),
    [
        (True, {}, Color.AUTO, True),
        (False, {}, Color.AUTO, False),
        (True, {"TERM": "dumb"}, Color.AUTO, False),
        (True, {"NO_COLOR": "1"}, Color.AUTO, False),
        (True, {"NO_COLOR": ""}, Color.AUTO, True),
        (False, {"FORCE_COLOR": "1"}, Color.AUTO, True),
        (False, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, Color.AUTO, False),
        (True, {"NO_COLOR": "1"}, Color.ALWAYS, True),
        (False, {"TERM": "dumb"}, Color.ALWAYS, True),
        (True, {"FORCE_COLOR": "1"}, Color.NEVER, False),
    ],
)
def test_who_decides_about_colour(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, environment: dict[str, str], color: Color, answer: bool
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert colored(Terminal() if terminal else io.StringIO(), color) is answer


@pytest.mark.processes
def test_a_locale_without_the_letters_costs_no_result() -> None:
    script = "from egmctl.cli.output import emit; emit('h\\u00f6st \\u2192')"
    done = ended([sys.executable, "-c", script], env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert done.out == "h\\xf6st \\u2192\n"


def test_one_newline_ends_every_result(capsys: pytest.CaptureFixture[str]) -> None:
    emit("{}\n")
    emit("a,b")
    assert capsys.readouterr().out == "{}\na,b\n"


def test_only_a_json_document_is_packed_for_a_launcher(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line of ``watch --json`` begins as a document does, but nobody could unpack a stream of them."""
    monkeypatch.setenv(ENCODING, GZIP)
    emit('{"gpus": []}')
    assert capsys.readouterr().out == '{"gpus": []}\n'
    for arguments in (["topo", "--json", "--machine", "hgx-h200x4"], ["topo", "--json", "--nonsense"]):
        document, _ = unpacked(run(*arguments).out.encode(), "standard output")
        assert json.loads(document)["tool"].startswith("egmctl ")


# --- a result is not lost --------------------------------------------------------------------------------------------


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state/egmctl/results"


def test_a_file_that_appeared_meanwhile_is_kept_and_so_is_the_result(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    check_output(path, force=False)
    path.write_text("mine")
    (tmp_path / "a-2.json").write_text("mine, too")
    with pytest.raises(UsageError) as caught:
        emit("{}", path)
    assert str(caught.value) == f"{path} exists; --force overwrites it; the result is in {tmp_path / 'a-3.json'}"
    assert (path.read_text(), (tmp_path / "a-3.json").read_text()) == ("mine", "{}\n")


def test_where_the_folder_has_gone_the_result_goes_to_the_users_state(tmp_path: Path, state: Path) -> None:
    (tmp_path / "gone").mkdir()
    path = tmp_path / "gone" / "a.json"
    check_output(path, force=False)
    path.parent.rmdir()
    with pytest.raises(EgmctlError) as caught:
        emit("{}", path)
    sentence = f"cannot write {path}: No such file or directory; the result is in {state / 'a-2.json'}"
    assert str(caught.value) == sentence
    assert (state / "a-2.json").read_text() == "{}\n"


def test_a_dash_is_standard_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    usual = run("topo", "--machine", "gh200", "--json")
    assert run("topo", "--machine", "gh200", "--json", "-o", "-").out == usual.out
    assert run("topo", "--machine", "gh200", "-o", "-").out.startswith("MODEL")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words",
    [
        *("profile show {}", "compare {} {}", "show {}", "topo --machine {}", "history --journal {}"),
        *("topo --machine gh200 -o {}", "topo --machine gh200 -o {}/x.json"),
    ],
)
def test_a_name_that_is_too_long_for_a_file_is_a_sentence(words: str) -> None:
    ended = run(*words.replace("{}", "x" * 300).split())
    assert ended.code in (0, 2)
    assert "please report it" not in ended.err


def test_a_view_that_fails_costs_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON needs no view: it is written first, whatever the order; without one the result is kept as JSON."""

    def fails(_report: object) -> None:
        raise OverflowError("cannot convert float infinity to integer")

    monkeypatch.setattr("egmctl.report.views.bench.bench_document", fails)
    page, data = tmp_path / "run.html", tmp_path / "run.json"
    result = with_answer(measured_report("hgx-h200x4"))
    failure = r"run\.html lacks the result as html, whose view failed: OverflowError"
    with pytest.raises(EgmctlError, match=failure):
        OutputOptions(output=[page, data], quiet=True).chosen(BENCH.formats).show(result)
    assert load(data).result == result
    with pytest.raises(EgmctlError, match=failure) as caught:
        OutputOptions(output=[page], quiet=True).chosen(BENCH.formats).show(result)
    assert load(str(caught.value).rpartition("the result is in ")[2]).result == result
    assert not page.exists()
