"""Redact private data from a machine and from results, so that they can be shared outside the site.

In a machine, the marks on the model's types are an allow-list: strings of types without a mark are replaced. Equal
values get equal replacements, which preserves relations. Topology and diagnosis are computed from the redacted machine.
From a run of the bench, the machine's private names are removed. Every document that a command writes is redacted here.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from egmctl.facts.kernel_log import without_process
from egmctl.model.codec import field_types
from egmctl.model.kernel_log import KernelEvent
from egmctl.model.machine import Machine, SectionStatus
from egmctl.model.record import Reason, Record, Share

if TYPE_CHECKING:
    from egmctl.model.measurement import RunReport

_UUID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE)
_UUID_LENGTH = 36
"""The number of characters of a UUID; shorter texts hold none."""
_WHOLE_UUID = re.compile(rf"(?:MIG-)?(?:GPU-|MIG-)?{_UUID.pattern}(?:/[0-9]+/[0-9]+)?", re.IGNORECASE)
"""The pattern of a UUID with the driver's prefixes. Old drivers name a MIG instance ``MIG-GPU-<uuid>/1/0``."""
_PARTIAL_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-f]{1,8}(?:-[0-9a-f]{0,12}){0,4}")
"""The pattern of the start of a UUID, which CUDA_VISIBLE_DEVICES accepts."""

_RELEASE = re.compile(r"[0-9]+\.[0-9]+(?:\.[0-9]+)?(?:-rc[0-9]+)?", re.ASCII)
_RELEASE_WORD = re.compile(
    "generic|lowlatency|hwe|realtime|rt|lts|cloud|server|default|debug|nvidia|tegra|64k|4k"
    "|azure|aws|gcp|oracle|amzn[0-9]*|el[0-9]+(_[0-9]+)?|fc[0-9]+|deb[0-9]+|bpo|ubuntu|fedora|rhel|sle[0-9]*"
    "|x86_64|amd64|aarch64|arm64"
)

_CGROUP_WORD = re.compile(
    # systemd
    r"(system|user|machine|init|session|app|background|user-[0-9]+|runtime)\.slice|init\.scope|session-c?[0-9]+\.scope"
    r"|user@[0-9]+\.service|(slurmd|slurmstepd|sshd?|crond?|docker|containerd|kubelet|crio|podman)\.(service|scope)"
    # Slurm
    r"|slurm|system|user|uid_[0-9]+|job_[0-9]+|step_([0-9]+|batch|extern|interactive)|task_([0-9]+|special)"
    # Kubernetes, Docker, Podman
    r"|kubepods(-besteffort|-burstable)?(\.slice)?|besteffort|burstable|docker|containerd|libpod_parent|lxc|podruntime|lsf"
    # BPF programs that Slurm and systemd attach (slurm, src/plugins/cgroup/v2/ebpf.c; systemd, src/core/bpf-devices.c)
    r"|Slurm_Cgroup_v2|sd_devices"
)
_CGROUP_ID = re.compile(r"[0-9a-f]{32,64}|[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}")
_CGROUP_AROUND_ID = re.compile(
    r"|pod|(docker|cri-containerd|crio|crio-conmon|libpod|libpod-conmon)-\.scope|kubepods(-besteffort|-burstable)?-pod\.slice"
)
"""The pattern of the text around the id of a container or pod, with the id removed."""

_ENVIRONMENT_WORD = re.compile(
    # numbers, ranges, percentages, InfiniBand devices
    r"-?[0-9]{1,9}(\.[0-9]{1,3})?%?|[0-9]{1,4}-[0-9]{1,4}|mlx5_[0-9]+"
    # NVIDIA's container toolkit, CUDA, Slurm
    "|all|none|void|compute|utility|graphics|video|display|ngx|compat32|FASTEST_FIRST|PCI_BUS_ID|LAZY|EAGER|DEFAULT"
    "|single|closest|per_task|map_gpu|mask_gpu|verbose|gpu|true|false|yes|no|on|off|y|n"
    # NCCL's levels, UCX' transports
    "|LOC|NVL|PIX|PXB|PHB|NODE|SYS|sm|shm|posix|sysv|cma|xpmem|knem|self|tcp|ib|rc|rc_x|rc_v|ud|ud_x|dc|dc_x|srd"
    "|cuda|cuda_copy|cuda_ipc|gdr_copy"
    # the usual folders of libraries and of MPS
    r"|/tmp/nvidia-(mps|log)|/var/log/nvidia-mps|/usr/local/nvidia/lib(64)?"
    r"|/usr/local/cuda(-[0-9]{1,2}(\.[0-9])?)?/(lib64|compat(/lib)?|extras/CUPTI/lib64)|/usr/lib(64)?",
    re.IGNORECASE,
)


_PATH_WORD = re.compile(r"[^\s'\"]*/[^\s'\"]*")

_SENTENCE = re.compile(r"[\s/]")

_SHORTEST = 4
"""The minimum length of a private name to replace in sentences. A host name such as ``n1`` would match in too many."""


def redact(machine: Machine) -> Machine:
    """Return the machine without names, serial numbers, paths and identifiers of the site.

    Strings marked as plain are kept. UUIDs are replaced by others of the same format derived from their hash, so that
    UUIDs match between redacted recordings of a machine. Kernel releases, cgroup paths and environment values keep
    well-known words. Every other string becomes its field's name and a number. A redacted machine stays unchanged.
    """
    if machine.origin.redacted:
        return machine
    redacted: Machine = _Redaction(machine).value(Machine, machine, "", fact=True)
    return dataclasses.replace(redacted, origin=dataclasses.replace(redacted.origin, redacted=True))


def redact_report(report: RunReport, machine: Machine | None) -> RunReport:
    """Return a redacted run of the bench, whose UUIDs match those of the redacted machine.

    Parameters
    ----------
    machine
        The live machine, whose private names the run's sentences may contain; ``None`` if it is not available.
    """
    redacted: RunReport = part_redactor(machine)(report)
    return dataclasses.replace(redacted, machines=tuple(map(redact, report.machines)))


def part_redactor(machine: Machine | None) -> Callable[[Any], Any]:
    """Return a function that redacts parts of a run (records or sentences) with consistent pseudonyms.

    Parameters
    ----------
    machine
        As for :func:`redact_report`.
    """
    redaction = _Redaction(machine)
    return lambda part: redaction.value(type(part), part, "", fact=False)


class _Redaction:
    """The pseudonyms of one document."""

    def __init__(self, machine: Machine | None) -> None:
        self._numbers: dict[str, dict[str, int]] = {}
        self._uuids = sorted({gpu.uuid for gpu in (machine and machine.gpus) or () if gpu.uuid})
        self._private: dict[str, str] = {}
        """The pseudonyms of the private names that sentences may contain."""
        self._names = re.compile("")
        self._by_share: dict[Share, Callable[[str, str], str]] = {
            Share.SENTENCE: lambda text, _name: self._sentence(text),
            Share.UUID: self._uuid,
            Share.KERNEL_RELEASE: lambda text, _name: _kernel_release(text),
            Share.CGROUP_PATH: lambda text, _name: "/".join(map(self._cgroup_component, text.split("/"))),
            Share.ENVIRONMENT: lambda text, _name: re.sub(r"[^,;:=^ ]+", self._environment_word, text),
            Share.PARAMETER: lambda text, name: _PATH_WORD.sub(lambda word: self._numbered(name, word[0]), text),
        }
        if machine is not None and not machine.origin.redacted:
            self._learn(machine)

    def _learn(self, machine: Machine) -> None:
        """Assign pseudonyms to the machine's private strings, and keep those that sentences may contain."""
        self.value(Machine, machine, "", fact=True)
        for name, known in self._numbers.items():
            # Words of an environment or cgroup, such as "debug", are not names, but its paths and numbers may be.
            named = (text for text in known if name not in ("environment", "cgroup") or not text.isalpha())
            self._private |= {text: f"{name}-{known[text]}" for text in named if len(text) >= _SHORTEST}
        kernel = machine.host.kernel if machine.host else None
        if kernel:
            self._private[kernel] = _kernel_release(kernel)
        names = "|".join(re.escape(name) for name in sorted(self._private, key=len, reverse=True))
        self._names = re.compile(rf"(?<!\w)(?:{names})(?!\w)")

    def value(self, kind: Any, value: Any, name: str, *, fact: bool) -> Any:
        """Return a redacted value.

        Parameters
        ----------
        kind
            The type of the value, with marks.
        name
            The name of its field, with which its pseudonym starts.
        fact
            Whether the value was read from a machine, so that strings without a mark are private. In results they are
            this tool's sentences, which may quote a machine.
        """
        return _redacting(kind)(self, value, name, fact)

    def shared(self, share: Share, text: str, name: str) -> str:
        """Return a marked text, redacted as its mark says."""
        return self._by_share[share](text, name)

    def text(self, text: str, name: str, *, fact: bool) -> str:
        """Return a text without a mark, redacted."""
        return self._numbered(name, text) if fact else self._sentence(text)

    def record(self, record: Any, *, fact: bool) -> Any:
        """Return a redacted dataclass, which is the same object if nothing of it is private."""
        if isinstance(record, Machine) and not fact:
            # The machines of a result are redacted separately.
            return record
        fact = fact or isinstance(record, Record)
        kind: Any = type(record)
        changed: dict[str, Any] = {}
        for name, redacting in _texts(kind):
            before = getattr(record, name)
            after = redacting(self, before, name, fact)
            if after is not before:
                changed[name] = after
        if isinstance(record, SectionStatus) and record.unread is not None and record.unread.reason is Reason.FAILED:
            # The message of an unexpected exception may contain values of the machine, so only its class is kept.
            detail = record.unread.detail.partition(":")[0]
            changed["unread"] = dataclasses.replace(record.unread, detail=detail)
        if isinstance(record, KernelEvent):
            text = without_process(record.text)
            process = record.process or ""
            if len(process) >= _SHORTEST:
                text = text.replace(process, changed.get("process", process))
            changed["text"] = self._sentence(text)
        return dataclasses.replace(record, **changed) if changed else record

    def _sentence(self, text: str) -> str:
        """Return one of this tool's sentences without the machine's private names. A single word is kept."""
        text = replace_uuids(text)
        if not self._private or not _SENTENCE.search(text):
            return text
        return self._names.sub(lambda name: self._private[name[0]], text)

    def _numbered(self, name: str, text: str) -> str:
        known = self._numbers.setdefault(name, {})
        return f"{name}-{known.setdefault(text, len(known) + 1)}" if text else ""

    def _uuid(self, text: str, name: str) -> str:
        return replace_uuids(text) if _WHOLE_UUID.fullmatch(text) else self._numbered(name, text)

    def _cgroup_component(self, text: str) -> str:
        if not text or _CGROUP_WORD.fullmatch(text):
            return text
        id_ = _CGROUP_ID.search(text)
        if id_ and _CGROUP_AROUND_ID.fullmatch(text[: id_.start()] + text[id_.end() :]):
            return text[: id_.start()] + _other_digits(id_[0]) + text[id_.end() :]
        return self._numbered("cgroup", text)

    def _environment_word(self, match: re.Match[str]) -> str:
        word = match[0]
        if _ENVIRONMENT_WORD.fullmatch(word):
            return word
        if _WHOLE_UUID.fullmatch(word):
            return replace_uuids(word)
        if _PARTIAL_UUID.fullmatch(word):
            meant = [uuid for uuid in self._uuids if uuid.startswith(word)]
            if len(meant) == 1:
                return replace_uuids(meant[0])[: len(word)]
        return self._numbered("environment", word)


_Redacting = Callable[[_Redaction, Any, str, bool], Any]
"""A function that redacts values of one type; the name and whether it is a fact are as for :meth:`_Redaction.value`."""


@functools.cache
def _redacting(kind: Any) -> _Redacting:
    """Return the function that redacts values of a type, made once: type hints are not looked at for each value."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if not _has_text(kind):
        return lambda _redaction, value, _name, _fact: value
    if origin is typing.Annotated and arguments[0] is str:
        (share,) = [mark for mark in arguments[1:] if isinstance(mark, Share)]
        if share is Share.PLAIN:
            return _present(_redact_plain)
        return _present(lambda redaction, text, name, _fact: redaction.shared(share, text, name))
    if kind is str:
        return _present(lambda redaction, text, name, fact: redaction.text(text, name, fact=fact))
    if origin in (typing.Union, types.UnionType):
        (only,) = [option for option in arguments if option is not type(None)]
        return _redacting(only)
    if origin is tuple:
        return _present(_redacting_tuple(arguments))
    if origin is Mapping:
        return _present(_redacting_mapping(*map(_redacting, arguments)))
    if dataclasses.is_dataclass(kind):
        return _present(lambda redaction, record, _name, fact: redaction.record(record, fact=fact))
    return lambda redaction, value, _name, fact: redaction.record(value, fact=fact) if _is_record(value) else value


def _present(redacting: _Redacting) -> _Redacting:
    return lambda redaction, value, name, fact: None if value is None else redacting(redaction, value, name, fact)


def _redact_plain(redaction: _Redaction, text: str, name: str, fact: bool) -> str:
    return replace_uuids(text) if fact else redaction.text(text, name, fact=False)


def _redacting_tuple(kinds: tuple[Any, ...]) -> _Redacting:
    repeated = kinds[1:] == (Ellipsis,)
    each = [_redacting(kind) for kind in kinds if kind is not Ellipsis]

    def items(redaction: _Redaction, value: tuple[Any, ...], name: str, fact: bool) -> tuple[Any, ...]:
        functions = each * len(value) if repeated else each
        parts = [redacting(redaction, part, name, fact) for redacting, part in zip(functions, value, strict=True)]
        unchanged = all(after is before for after, before in zip(parts, value, strict=True))
        return value if unchanged else tuple(parts)

    return items


def _redacting_mapping(of_key: _Redacting, of_item: _Redacting) -> _Redacting:
    def mapping(redaction: _Redaction, value: Mapping[Any, Any], name: str, fact: bool) -> Mapping[Any, Any]:
        parts = [(of_key(redaction, key, name, fact), of_item(redaction, value[key], name, fact)) for key in value]
        unchanged = all(
            key is before and item is value[before] for (key, item), before in zip(parts, value, strict=True)
        )
        return value if unchanged else dict(parts)

    return mapping


def _is_record(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


@functools.cache
def _texts(kind: Any) -> tuple[tuple[str, _Redacting], ...]:
    """Return the names of a dataclass' fields that may contain text, and the functions that redact them."""
    given = {field.name for field in dataclasses.fields(kind) if field.init}
    return tuple(
        (name, _redacting(hint)) for name, hint in field_types(kind).items() if name in given and _has_text(hint)
    )


@functools.cache
def _has_text(kind: Any) -> bool:
    """Return whether values of a type may contain text. This skips the numbers, which most of a measurement is."""
    if kind in (int, float, bool, type(None), Ellipsis) or (isinstance(kind, type) and issubclass(kind, Enum)):
        return False
    if typing.get_origin(kind) in (tuple, typing.Union, types.UnionType):
        return any(map(_has_text, typing.get_args(kind)))
    return True


def known_words(value: str) -> str:
    """Return the value of an environment variable with every word but numbers, UUIDs and well-known words as ``...``.

    Other words may be secret. The words that configure drivers and libraries are well known.
    """
    known = (_ENVIRONMENT_WORD, _WHOLE_UUID, _PARTIAL_UUID)
    return re.sub(
        r"[^,;:=^ ]+", lambda word: word[0] if any(pattern.fullmatch(word[0]) for pattern in known) else "...", value
    )


def replace_uuids(text: str) -> str:
    """Return a text with the pseudonyms of its UUIDs, the same in every document."""
    return text if len(text) < _UUID_LENGTH else _UUID.sub(lambda uuid: _other_digits(uuid[0]), text)


def _other_digits(text: str) -> str:
    """Return an identifier of at least 128 bits with its hexadecimal digits replaced by those of its hash.

    An identifier of zeros, by which the driver reports that there is none, is kept.
    """
    digits = re.sub("[^0-9a-f]", "", text.lower())
    if not digits.strip("0"):
        return text
    # Only what is shared needs it, and it loads OpenSSL.
    from hashlib import sha256

    others = iter(sha256(f"egmctl {digits}".encode()).hexdigest())
    return re.sub("[0-9a-fA-F]", lambda _: next(others), text)


def _kernel_release(text: str) -> str:
    upstream = _RELEASE.match(text)
    words = re.split(r"[-.+~]", text[upstream.end() :] if upstream else text)
    known = [word for word in words if _RELEASE_WORD.fullmatch(word)]
    return "-".join([upstream[0] if upstream else "unknown", *known])
