"""The content coding of a body, taken off while it arrives: in bounded pieces, and only from a body that came whole.

A connection that is cut may look like the end of a body; gzip and deflate say where theirs is, so no part is taken for all.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

#: Most bytes that are unfolded at once.
PIECE = 64 * 1024

#: How zlib is told what is around the data: the header of gzip, that of zlib, and none.
_GZIP, _ZLIB, _RAW = 16 + zlib.MAX_WBITS, zlib.MAX_WBITS, -zlib.MAX_WBITS


class Unfolding:
    """A body in gzip, deflate or no coding. Raises zlib.error for one that is not what its coding says."""

    def __init__(self, coding: str) -> None:
        self._coding = coding if coding in ("gzip", "deflate") else ""
        self._inner = zlib.decompressobj(_GZIP if coding == "gzip" else _ZLIB)
        self._begun = False

    def take(self, data: bytes) -> Iterator[bytes]:
        """Yields what the next bytes of the body unfold to."""
        if not self._coding:
            yield data
            return
        while data:
            if self._inner.eof:
                if self._coding == "deflate":
                    return  # what is behind the end means nothing
                data = data.lstrip(b"\0")  # padding
                if not data:
                    return
                self._inner = zlib.decompressobj(_GZIP)  # several members make one body
            yield self._unfold(data)
            data = self._inner.unused_data if self._inner.eof else self._inner.unconsumed_tail

    def end(self) -> bytes:
        """Returns what is left when nothing more comes: little, for all that came was unfolded."""
        if not self._coding or not self._begun:
            return b""
        rest = self._inner.flush()
        if not self._inner.eof:
            raise zlib.error("it ends in the middle")
        return rest

    def _unfold(self, data: bytes) -> bytes:
        begun, self._begun = self._begun, True
        try:
            return self._inner.decompress(data, PIECE)
        except zlib.error:
            if begun or self._coding == "gzip":
                raise
            self._inner = zlib.decompressobj(_RAW)  # some servers leave the header of zlib out
            return self._inner.decompress(data, PIECE)
