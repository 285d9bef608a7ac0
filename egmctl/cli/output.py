"""Writes results to standard output or files, each in its format, and messages to standard error."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import stat
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TextIO

from egmctl.ahead import import_ahead
from egmctl.api.options import OUTPUT, option
from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.errors import EgmctlError, UsageError
from egmctl.files import make_folder, next_free, open_parent, settle, state_folder, status_in, write_whole
from egmctl.report.kinds import SUFFIXES, Format, Kind, render
from egmctl.units import printable

if TYPE_CHECKING:
    from rich.text import Text


class Color(StrEnum):
    """When text is coloured. ``auto`` follows NO_COLOR, then FORCE_COLOR, then whether the output is a terminal."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """The destinations, format and detail of a result, and the amount of messages."""

    HEADINGS: ClassVar[dict[str, str]] = {OUTPUT: "csv format force quiet color"}
    json: bool = option("Write JSON, also on failure.", default=False)
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
        """Return the outputs for a result that has these formats; without ``-o``, standard output.

        Raises
        ------
        UsageError
            If options contradict each other, a suffix names no format, the result lacks the format, or a file is given
            twice.
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
        """Return the outputs for a result, checked by :meth:`Outputs.check`."""
        outputs = self.chosen(formats)
        outputs.check()
        return outputs

    def _format_of(self, file: Path | None, valid: Sequence[Format]) -> Format:
        """Return the format of an option or of the file's suffix, which must agree; by default text on standard output.

        A suffix that names no valid format for this result needs an option.
        """
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
    """Return the file that ``-o`` names, or ``None`` for standard output (no ``-o``, or ``-o -``)."""
    return None if output == Path("-") else output


def check_output(file: Path | None, force: bool = False) -> None:
    """Check, before any work is done, that :func:`emit` can and may write there.

    Raises
    ------
    UsageError
        If the file exists and ``force`` is false, is not a regular file, or its directory is missing or not writable.
    EgmctlError
        If the result goes to standard output, which is closed.
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
"""Whether this process writes no result and no message: in an MPI job only rank 0 writes, or one rank per node."""

relayed = False
"""Whether a launcher relays the output to the user: a terminal of this process is then mpirun's, not the user's."""

emitted = False
"""Whether this process has written, or tried to write, a result. No error document is written after it."""


def emit(
    content: Text | str,
    file: Path | None = None,
    *,
    force: bool = False,
    color: Color = Color.AUTO,
    is_document: bool = False,
) -> bool:
    """Write a command's result to a file or to standard output, and return whether a reader may still be there.

    If the file cannot be written, the result goes to another file or to standard output. It is no error if the reader
    of standard output exits early (``| head``), or its terminal is closed.

    Parameters
    ----------
    content
        Text with styles, or a string such as JSON, which is written as it is. A missing final newline is added.
    file
        The file, which is written atomically and without colour. ``None``: standard output.
    force
        Whether to overwrite a file that exists.
    color
        When text on standard output is coloured.
    is_document
        Whether the content is one JSON document, which ``egmctl fleet`` may ask for packed.

    Raises
    ------
    UsageError
        If the file exists and ``force`` is false; the message says where the result is.
    EgmctlError
        If writing fails; the message says where the result is.
    """
    global emitted
    emitted = True
    if muted:
        return True
    if file is not None:
        text = _render(content, colored=False)
        try:
            write_whole(file, text.encode(), replace=force)
        except EgmctlError as error:
            raise type(error)(f"{error}; the result is {_rescued(text, file)}") from error
        return True
    check_output(None)
    text = _render(content, colored=colored(sys.stdout, color))
    if is_document:
        text = _as_asked(text)
    if isinstance(sys.stdout, io.TextIOWrapper):
        text = _encodable(text, sys.stdout.encoding)
        # A character that the locale cannot encode must not lose the result.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
        # A program may have replaced sys.stdout by an object without a file descriptor.
        with contextlib.suppress(io.UnsupportedOperation):
            settle(sys.stdout.fileno())
    except BrokenPipeError:
        discard_stdout()
        return False
    except OSError as error:
        gone = hung_up(error)
        discard_stdout()
        if gone:
            return False
        raise EgmctlError(f"cannot write the result to standard output: {error.strerror}") from error
    return True


def _as_asked(document: str) -> str:
    """Return a JSON document in the encoding that the environment asks for, as ``egmctl fleet`` does on its nodes."""
    from egmctl.documents import ENCODING, GZIP, packed

    return packed(document) if os.environ.get(ENCODING) == GZIP else document


def hung_up(error: OSError) -> bool:
    """Return whether a write failed because the terminal of standard output or standard error was closed.

    The kernel then answers EIO (tty_write in drivers/tty/tty_io.c), and no longer says that it is a terminal.
    """
    if error.errno != errno.EIO or error.filename is not None:
        return False
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if stat.S_ISCHR(os.fstat(stream.fileno()).st_mode):
                return True
    return False


_IN_ASCII = str.maketrans("╭╮╰╯╔╗╚╝├┤┬┴╥╩─═│║▕╳█▉▊▋▌▍▎▏▁▂▃▄▅▆▇·■▲✕□", "++++++++++++++-=|H|X########.:-=+*%.#^Xo")  # noqa: RUF001


def _encodable(text: str, encoding: str) -> str:
    """Return text with its lines and bars in ASCII if the terminal's encoding lacks one of its characters."""
    is_complete = text.encode(encoding, "ignore").decode(encoding) == text
    return text if is_complete else text.translate(_IN_ASCII)


def _rescued(text: str, file: Path) -> str:
    """Write a result beside the failed file, else to the user's state folder, else to standard output; say where."""
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
    """Write one sentence to standard error, prefixed with ``egmctl:``, control characters escaped."""
    if sys.stderr is None or muted:
        return
    try:
        sys.stderr.write(f"egmctl: {printable(sentence)}\n")
        sys.stderr.flush()
    except OSError:
        return


def colored(stream: TextIO, color: Color) -> bool:
    """Return whether text on ``stream`` is coloured (https://no-color.org, https://force-color.org)."""
    if color is not Color.AUTO:
        return color is Color.ALWAYS
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return is_terminal(stream) and os.environ.get("TERM") != "dumb"


def is_terminal(stream: TextIO) -> bool:
    """Return whether ``stream`` is the user's terminal."""
    return not relayed and stream.isatty()


def terminal_is_closed(stream: TextIO | None) -> bool:
    """Return whether ``stream`` is a terminal whose window or connection is gone.

    The kernel then answers EIO to each write and to each question about the terminal, so that it no longer is one.
    """
    if stream is None:
        return False
    try:
        os.get_terminal_size(stream.fileno())
    except OSError as error:
        # ENOTTY of anything else than a terminal.
        return error.errno == errno.EIO
    return False


def settle_stdout() -> None:
    """Flush standard output, and discard what it does not accept; Python would fail again at exit, with code 120."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        discard_stdout()


def discard_stdout() -> None:
    """Redirect standard output to ``/dev/null``, so that the interpreter's last flush cannot fail."""
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

        # rich would follow NO_COLOR by itself; colored() has already considered it.
        console = Console(
            file=io.StringIO(), force_terminal=True, color_system="standard", no_color=False, legacy_windows=False
        )
        with console.capture() as capture:
            console.print(content, soft_wrap=True, end="")
        text = capture.get()
    return text if text.endswith("\n") else text + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One destination of a result, and the format of the result there."""

    format: Format
    file: Path | None
    """The file; ``None``: standard output."""
    verbose: int = 0
    """The levels of detail above the default: the number of ``-v``."""
    brief: bool = False
    """Whether only the short form of the result is shown."""

    @property
    def leaves_the_node(self) -> bool:
        """Whether the output may leave the site: all files and formats, except text and Nagios on standard output."""
        return self.file is not None or self.format not in (Format.TEXT, Format.NAGIOS)

    @property
    def width(self) -> int | None:
        """The width of the terminal that shows the result, in characters; ``None`` if it is not a terminal."""
        if self.file is not None or sys.stdout is None or not is_terminal(sys.stdout):
            return None
        return shutil.get_terminal_size().columns

    def draw(self, result: object) -> Text | str:
        """Return a result as rendered for this destination."""
        return render(result, self.format, verbose=self.verbose, brief=self.brief, width=self.width)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """All destinations of a result."""

    targets: tuple[Target, ...]
    options: OutputOptions

    @property
    def files(self) -> tuple[Path, ...]:
        """The destinations that are files."""
        return tuple(target.file for target in self.targets if target.file is not None)

    @property
    def explains_itself(self) -> bool:
        """Whether one of the formats, text or JSON, says why a result is empty."""
        return any(target.format in (Format.TEXT, Format.JSON) for target in self.targets)

    def of_node(self, host: str) -> Outputs:
        """Return the outputs with the name of a node in each file name: ``topo-node02.json``."""
        targets = (replace(t, file=t.file and t.file.with_stem(f"{t.file.stem}-{host}")) for t in self.targets)
        return replace(self, targets=tuple(targets))

    def check(self) -> None:
        """Check, before any work is done, that :meth:`write` can and may write everywhere.

        Raises
        ------
        EgmctlError
            As :func:`check_output`.
        """
        for target in self.targets:
            check_output(target.file, self.options.force)

    def load_ahead(self, kind: Kind) -> None:
        """Import what writes a result of a kind, while the command waits for its processes."""
        modules = {(kind.export(target.format) or kind.view).partition(":")[0] for target in self.targets}
        if any(target.format is Format.TEXT for target in self.targets):
            modules.add("egmctl.report.render.text")
        import_ahead(*modules)

    def show(self, result: object, redacted: Callable[[], object] | None = None, *, answers: bool = True) -> None:
        """Write a result to all destinations.

        Parameters
        ----------
        redacted
            A function that returns the result with pseudonyms, for outputs that may leave the site.
        answers
            As for :meth:`write`.
        """

        def draw(target: Target) -> Text | str:
            return target.draw(redacted() if redacted is not None and target.leaves_the_node else result)

        def kept() -> Text | str:
            return draw(Target(format=Format.JSON, file=None))

        self.write(draw, answers=answers, kept=kept)

    def write(
        self,
        draw: Callable[[Target], Text | str],
        *,
        answers: bool = True,
        kept: Callable[[], Text | str] | None = None,
    ) -> None:
        """Write what ``draw`` returns for each destination; a failure at one does not affect the others.

        JSON needs no view, so it is on disk before any view is made.

        Parameters
        ----------
        answers
            Whether to print the short answer and the file names if all destinations are files; not with ``--quiet``.
        kept
            A function that returns the result as JSON, which is kept if a view fails and no JSON is written.

        Raises
        ------
        EgmctlError
            The first error of :func:`emit` or of a view, after all other destinations are written.
        """
        failed: list[EgmctlError] = []
        written = False
        for target in sorted(self.targets, key=lambda target: target.format is not Format.JSON):
            try:
                content = draw(target)
            except EgmctlError as error:
                failed.append(error)
                continue
            except Exception as error:
                if kept is None:
                    raise
                where = "" if written else self._kept(kept)
                written = True
                name = printable(target.file or "standard output")
                sentence = f"{name} lacks the result as {target.format}, whose view failed: {error!r}{where}"
                failed.append(EgmctlError(sentence))
                continue
            try:
                is_json = target.format is Format.JSON
                emit(
                    content,
                    target.file,
                    force=self.options.force,
                    color=self.options.color,
                    is_document=is_json,
                )
                written = written or is_json
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

    def _kept(self, content: Callable[[], Text | str]) -> str:
        """Keep a result that no view can show as JSON beside the first file; return words on where it is."""
        file = self.files[0].with_suffix(".json") if self.files else Path("result.json")
        try:
            return f"; the result is {_rescued(str(content()), file)}"
        except ValueError:
            # A number that JSON cannot represent.
            return "; 'egmctl history' shows where the run is kept"
