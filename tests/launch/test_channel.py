"""One end of the socket pair by itself: messages in pieces, time limits, and files that nobody asked for."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator

import pytest

from egmctl.launch import Channel, ChannelClosed
from egmctl.launch.channel import FD_LIMIT
from tests.launch.start import open_descriptors


@pytest.fixture
def pair() -> Iterator[tuple[Channel, socket.socket]]:
    """A channel and the bare socket at its other end."""
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    yield channel, theirs
    channel.close()
    theirs.close()


def message(text: bytes, fds: int = 0) -> bytes:
    return b"egmm" + fds.to_bytes(4, "little") + len(text).to_bytes(4, "little") + text


def test_a_message_may_come_byte_by_byte(pair: tuple[Channel, socket.socket]) -> None:
    channel, other = pair
    for byte in message(b'{"a":1}'):
        with pytest.raises(TimeoutError):
            channel.receive(timeout_s=0)
        other.send(bytes([byte]))
    assert channel.receive(timeout_s=0) == ({"a": 1}, [])


def test_several_messages_may_come_at_once_each_with_its_files(pair: tuple[Channel, socket.socket]) -> None:
    channel, other = pair
    sender = Channel(other)
    paths = ["/", "/proc", "/dev"]
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        sender.send({"path": path})
        sender.send({"path": path}, fds=[fd])
        os.close(fd)
    for path in paths:
        assert channel.receive(timeout_s=0) == ({"path": path}, [])
        _, (received,) = channel.receive(timeout_s=0)
        assert os.path.samestat(os.fstat(received), os.stat(path))
        os.close(received)


def test_waiting_ends_in_time_on_either_side(pair: tuple[Channel, socket.socket]) -> None:
    channel, _ = pair
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        channel.receive(timeout_s=0.2)
    with pytest.raises(TimeoutError, match="does not read"):
        channel.send({"text": "x" * 10_000_000}, timeout_s=0.2)
    assert 0.4 <= time.monotonic() - start < 30


def test_an_end_that_is_gone_is_told_after_what_it_said_last(pair: tuple[Channel, socket.socket]) -> None:
    channel, other = pair
    other.sendall(message(b"{}") + b"egm")
    channel.send({"never": "read"})
    other.close()
    assert channel.receive(timeout_s=1) == ({}, [])
    with pytest.raises(ChannelClosed):
        channel.receive(timeout_s=1)
    with pytest.raises(ChannelClosed):
        channel.send({})


def test_files_that_nobody_asked_for_are_closed(pair: tuple[Channel, socket.socket]) -> None:
    channel, other = pair
    before = open_descriptors()
    socket.send_fds(other, [message(b"{}", fds=2)[:-1]], [0, 0])
    with pytest.raises(TimeoutError):
        channel.receive(timeout_s=0)
    assert len(open_descriptors()) == len(before) + 2
    channel.close()
    assert len(open_descriptors()) == len(before) - 1


def test_as_many_files_as_the_kernel_takes_go_with_a_message(pair: tuple[Channel, socket.socket]) -> None:
    channel, other = pair
    sender = Channel(other)
    sender.send({}, fds=[0] * FD_LIMIT)
    _, fds = channel.receive(timeout_s=0)
    for fd in fds:
        os.close(fd)
    assert len(fds) == FD_LIMIT
    with pytest.raises(ValueError, match="254 file descriptors are more than the limit of 253"):
        sender.send({}, fds=[0] * (FD_LIMIT + 1))
