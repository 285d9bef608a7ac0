"""Where a result goes and in which format: standard output or files, and the sentences on standard error."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import stat
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from egmctl.api.options import option
from egmctl.compat import StrEnum
from egmctl.errors import EgmctlError, UsageError
from egmctl.files import make_folder, next_free, open_parent, settle, state_folder, status_in, write_whole
from egmctl.report.kinds import SUFFIXES, Format, render
from egmctl.units import printable

if TYPE_CHECKING:
    from rich.text import Text


class Color(StrEnum):
    """When to colour: ``auto`` follows NO_COLOR, then FORCE_COLOR, then whether it is a terminal."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OutputOptions:
    """Where a result goes, in which format, and how much is said."""

    json: bool = option("Write one JSON document, also on failure.", default=False)
    csv: bool = option("Write CSV, one fact per row.", default=False)
    format: str | None = option("Output format: {formats}{note}.", "FORMAT")
    output: Sequence[Path] = option(
        "Write to FILE, the format by its suffix: {suffixes}{note}. Can be given several times; - is standard output.",
        "FILE",
        "--output",
        "-o",
        default=(),
    )
    force: bool = option("Overwrite a file that exists.", default=False)
    verbose: int = option("Show more detail.", None, "--verbose", "-v", default=0, count=True, show_default=False)
    quiet: bool = option("No progress and no notes on standard error.", None, "--quiet", "-q", default=False)
    color: Color = option(
        "When to use colour; auto follows NO_COLOR, FORCE_COLOR and the terminal.", default=Color.AUTO
    )

    def chosen(self, formats: Sequence[Format], *, brief: bool = False) -> Outputs:
        """Return the places that a result with these formats goes to: standard output where ``-o`` names no file.

        Raises
        ------
        UsageError
            For options that contradict each other, for a suffix that names no format, for a format that the result has
            not, and where a file is named twice.
        """
        files = [*map(file_of, self.output)] or [None]
        for file in files:
            if files.count(file) > 1:
                raise UsageError(f"-o {printable(file or Path('-'))} is given {files.count(file)} times; give it once")
        targets = tuple(
            Target(format=self._format_of(file, formats), file=file, verbose=self.verbose, brief=brief)
            for file in files
        )
        return Outputs(targets=targets, options=self)

    def checked(self, formats: Sequence[Format]) -> Outputs:
        """Return the places that a result goes to, all of which can be written to: :meth:`Outputs.check`."""
        outputs = self.chosen(formats)
        outputs.check()
        return outputs

    def _format_of(self, file: Path | None, valid: Sequence[Format]) -> Format:
        """Return the format of a result in a file: the suffix says it, unless an option does; text by default."""
        by_suffix = None if file is None else SUFFIXES.get(file.suffix.lower())
        words = {
            "--json": "json" if self.json else None,
            "--csv": "csv" if self.csv else None,
            f"--format {printable((self.format or '')[:40])}": self.format,
            printable(f"the suffix of {file}"): by_suffix if by_suffix in valid else None,
        }
        given = {spelling: word for spelling, word in words.items() if word is not None}
        if wrong := next((spelling for spelling, word in given.items() if word not in valid), None):
            raise UsageError(f"{wrong}: no such format here; valid are {', '.join(valid)}")
        if len(set(given.values())) > 1:
            raise UsageError(f"{' and '.join(given)} exclude each other; give one of them")
        if file is None or given:
            return next(map(Format, given.values()), Format.TEXT)
        if os.path.isdir(file):
            raise UsageError(f"{printable(file)} is a directory; give a file to write the result to")
        lacking = f"the suffix {file.suffix!r} names no format" if file.suffix else "no suffix names the format"
        suffixes = ", ".join(suffix for suffix, word in SUFFIXES.items() if word in valid)
        raise UsageError(f"{printable(file)}: {lacking}; valid are {suffixes}, or any with --format")


def file_of(output: Path | None) -> Path | None:
    """Return the file that ``-o`` names; ``None`` for standard output, which is ``-o -`` too."""
    return None if output == Path("-") else output


def check_output(file: Path | None, force: bool = False) -> None:
    """Refuse, before any work is done, to write where :func:`emit` could not or must not.

    Raises
    ------
    UsageError
        If the file exists and ``force`` is false, is not a regular file, or its directory is missing or not writable.
    EgmctlError
        If the result goes to standard output and that is closed.
    """
    if muted:
        return
    if file is None:
        if sys.stdout is None:
            raise EgmctlError("standard output is closed: there is nowhere to write the result to")
        return
    try:
        with open_parent(file) as (folder, name):
            earlier = status_in(folder, name)
            writable = os.access(".", os.W_OK | os.X_OK, dir_fd=folder)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(f"{printable(file)} cannot be written: {printable(file.parent)} is not a directory") from error
    except OSError as error:
        raise UsageError(f"{printable(file)} cannot be written: {error.strerror}") from error
    if earlier is not None and not stat.S_ISREG(earlier.st_mode):
        raise UsageError(f"{printable(file)} is not a regular file; give a file to write the result to")
    if earlier is not None and not force:
        raise UsageError(f"{printable(file)} exists; --force overwrites it")
    if not writable:
        raise UsageError(f"{printable(file)} cannot be written: no permission to write in {printable(file.parent)}")


muted = False
"""Whether this process keeps silent: of the commands of an MPI job only that of rank 0 prints and writes."""

relayed = False
"""Whether a launcher stands between this process and the user's terminal: mpirun makes rank 0 one of its own."""

emitted = False
"""Whether this process has written, or tried to write, a result: there is never a second document after it."""


def emit(content: Text | str, file: Path | None = None, *, force: bool = False, color: Color = Color.AUTO) -> None:
    """Write a command's result, to a file or to standard output.

    A file that cannot be written any more costs no result: it goes to another file, or to standard output. A reader of
    standard output that goes away early (``| head``) is no error: it has what it wanted.

    Parameters
    ----------
    content
        Text that may be coloured, or JSON or CSV that is written as it is; a missing last newline is added.
    file
        It appears whole or not at all, and is never coloured. ``None`` is standard output.
    force
        Overwrite a file that exists.
    color
        For text on standard output.

    Raises
    ------
    UsageError
        If the file exists and ``force`` is false; the sentence says where the result is.
    EgmctlError
        If writing fails; the sentence says where the result is.
    """
    global emitted
    emitted = True
    if muted:
        return
    if file is not None:
        text = _render(content, colored=False)
        try:
            write_whole(file, text.encode(), replace=force)
        except EgmctlError as error:
            raise type(error)(f"{error}; the result is {_rescued(text, file)}") from error
        return
    check_output(None)
    text = _render(content, colored=colored(sys.stdout, color))
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A locale that cannot spell a character must not cost the result.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
        # Replaced by a program that has no descriptor for it.
        with contextlib.suppress(io.UnsupportedOperation):
            settle(sys.stdout.fileno())
    except BrokenPipeError:
        discard_stdout()
    except OSError as error:
        discard_stdout()
        raise EgmctlError(f"cannot write the result to standard output: {error.strerror}") from error


def _rescued(text: str, file: Path) -> str:
    """Put a result elsewhere that cannot go where it should, and say where: beside it, with the user, on the screen."""
    kept = state_folder() / "results"
    for folder in (file.parent, kept):
        with contextlib.suppress(EgmctlError, OSError):
            if folder is kept:
                make_folder(folder)
            path = next_free(folder / file.name)
            write_whole(path, text.encode(), replace=False)
            return f"in {printable(path)}"
    try:
        emit(text)
    except EgmctlError as error:
        return f"lost: {error}"
    return "on standard output"


def say(sentence: str) -> None:
    """Write one sentence for people to standard error, marked as the tool's, control characters escaped."""
    if sys.stderr is None or muted:
        return
    try:
        sys.stderr.write(f"egmctl: {printable(sentence)}\n")
        sys.stderr.flush()
    except OSError:
        return


def colored(stream: TextIO, color: Color) -> bool:
    """Say whether what is written to ``stream`` is coloured: https://no-color.org, https://force-color.org."""
    if color is not Color.AUTO:
        return color is Color.ALWAYS
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return is_terminal(stream) and os.environ.get("TERM") != "dumb"


def is_terminal(stream: TextIO) -> bool:
    """Say whether what is written to ``stream`` is shown on a terminal."""
    return not relayed and stream.isatty()


def settle_stdout() -> None:
    """Let go of what standard output did not take: failing on it once more at its end, Python would end with 120."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        discard_stdout()


def discard_stdout() -> None:
    """Point standard output at nothing, so that the interpreter's last flush cannot fail."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)


def _render(content: Text | str, *, colored: bool) -> str:
    if isinstance(content, str):
        text = content
    elif not colored:
        text = content.plain
    else:
        from rich.console import Console

        # By itself rich would follow NO_COLOR, which colored() has weighed already.
        console = Console(
            file=io.StringIO(), force_terminal=True, color_system="standard", no_color=False, legacy_windows=False
        )
        with console.capture() as capture:
            console.print(content, soft_wrap=True, end="")
        text = capture.get()
    return text if text.endswith("\n") else text + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One place and the format in which a result goes there."""

    format: Format
    file: Path | None
    """``None`` is standard output."""
    verbose: int = 0
    """How much more detail than usual is shown."""
    brief: bool = False
    """Whether only the answer is shown."""

    @property
    def leaves_the_node(self) -> bool:
        """Whether the result is a document there, which may leave the site: all but text that is read where it is."""
        return self.file is not None or self.format not in (Format.TEXT, Format.NAGIOS)

    @property
    def width(self) -> int | None:
        """Characters of a line of the terminal that shows it; ``None`` where none does."""
        if self.file is not None or sys.stdout is None or not is_terminal(sys.stdout):
            return None
        return shutil.get_terminal_size().columns

    def draw(self, result: object) -> Text | str:
        """Return a result as it is shown there."""
        return render(result, self.format, verbose=self.verbose, brief=self.brief, width=self.width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """All places that a result goes to."""

    targets: tuple[Target, ...]
    options: OutputOptions

    @property
    def files(self) -> tuple[Path, ...]:
        """The files."""
        return tuple(target.file for target in self.targets if target.file is not None)

    @property
    def explains_itself(self) -> bool:
        """Whether the result says itself, in one of the places, why it is empty: text and JSON do."""
        return any(target.format in (Format.TEXT, Format.JSON) for target in self.targets)

    def of_node(self, host: str) -> Outputs:
        """Return the same with the name of a node in that of each file: ``topo-node02.json``."""
        targets = (replace(t, file=t.file and t.file.with_stem(f"{t.file.stem}-{host}")) for t in self.targets)
        return replace(self, targets=tuple(targets))

    def check(self) -> None:
        """Refuse, before any work is done, to write where :meth:`write` could not or must not.

        Raises
        ------
        EgmctlError
            As :func:`check_output`.
        """
        for target in self.targets:
            check_output(target.file, self.options.force)

    def show(self, result: object, redacted: Callable[[], object] | None = None, *, answers: bool = True) -> None:
        """Write a result everywhere.

        Parameters
        ----------
        redacted
            Makes the result with pseudonyms for documents, which may leave the site.
        answers
            As for :meth:`write`.
        """

        def draw(target: Target) -> Text | str:
            return target.draw(redacted() if redacted is not None and target.leaves_the_node else result)

        self.write(draw, answers=answers)

    def write(self, draw: Callable[[Target], Text | str], *, answers: bool = True) -> None:
        """Write to every place what is drawn for it; a file that cannot be written keeps it from no other.

        Parameters
        ----------
        answers
            Where only files are written, the answer and their names go to standard output; not with ``--quiet``.

        Raises
        ------
        EgmctlError
            As :func:`emit`, once all others are written.
        """
        failed: list[EgmctlError] = []
        for target in self.targets:
            try:
                emit(draw(target), target.file, force=self.options.force, color=self.options.color)
            except EgmctlError as error:
                failed.append(error)
        if failed:
            raise failed[0]
        only_files = len(self.files) == len(self.targets)
        if answers and only_files and not self.options.quiet and sys.stdout is not None and not muted:
            from rich.text import Text

            answer = Text.assemble(draw(Target(format=Format.TEXT, file=None, brief=True)))
            answer.rstrip()
            answer.append(f"\nwritten: {', '.join(map(printable, self.files))}\n", "dim")
            emit(answer, color=self.options.color)
