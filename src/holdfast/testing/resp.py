"""Cutting a stream of RESP bytes into whole messages, without losing or changing a byte."""

from __future__ import annotations

_BULK = b"$!="
_LINE = b"+-:_#,("
_LIST = b"*~>"
_MAP = b"%|"


class Splitter:
    """Give it bytes as they arrive; it returns the messages that are whole by now, as the bytes they came in.

    hiredis would say what a message means but not where it ended, and a proxy has to pass on the very bytes.

    With `inline`, lines that start with a letter are messages too (what a person types into telnet). A stream
    that is not RESP, an encrypted one say, sets `opaque` and is from then on returned as it comes.
    """

    def __init__(self, *, inline: bool = False) -> None:
        self.opaque = False
        self._inline = inline
        self._buffer = bytearray()
        self._at = 0
        # How many values are still missing to a whole message. An array is one value that promises more.
        self._missing = 1

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes and return the messages they complete."""
        self._buffer += data
        messages: list[bytes] = []
        start = 0
        while not self.opaque and self._read_value():
            if self._missing == 0:
                messages.append(bytes(self._buffer[start : self._at]))
                start, self._missing = self._at, 1
        del self._buffer[:start]
        self._at -= start
        if self.opaque and self._buffer:
            messages.append(bytes(self._buffer))
            self._buffer.clear()
        return messages

    def _read_value(self) -> bool:
        """Step over one value, or over the head of an aggregate. False when more bytes are needed."""
        if self._at >= len(self._buffer):
            return False
        kind = self._buffer[self._at : self._at + 1]
        if kind not in _BULK + _LINE + _LIST + _MAP and not (self._inline and kind.isalpha()):
            self.opaque = True
            return False
        end = self._buffer.find(b"\r\n", self._at)
        if end < 0:
            return False
        try:
            return self._step(bytes(kind), bytes(self._buffer[self._at + 1 : end]), end + 2)
        except ValueError:
            self.opaque = True
            return False

    def _step(self, kind: bytes, head: bytes, after: int) -> bool:
        more = -1
        if kind in _BULK:
            length = int(head)
            after += length + 2 if length >= 0 else 0
            if after > len(self._buffer):
                return False
        elif kind in _LIST:
            more += max(0, int(head))
        elif kind in _MAP:
            # An attribute ("|") comes before the value it belongs to and does not stand for it.
            more += 2 * int(head) + (kind == b"|")
        self._at = after
        self._missing += more
        return True


def words(request: bytes) -> tuple[bytes, bytes]:
    """The command and its first argument, in capitals; empty where there is none."""
    array = request.startswith(b"*")
    parts = request.split(b"\r\n", 5)[2:5:2] if array else request.split(None, 2)[:2]
    first, second, *_ = [*parts, b"", b""]
    return first.upper(), second.upper()
