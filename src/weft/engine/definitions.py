"""Stored definitions of graphs, kept ready by content address."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from weft.core.published import Bundle, Published
from weft.errors import NotFound
from weft.store.graphs import read_definition
from weft.store.namespace import Namespace

#: Definitions that a process keeps ready.
MAX_KEPT = 256

_BUNDLE = msgspec.json.Decoder(Bundle)
_bundle_encoder = msgspec.json.Encoder(order="sorted")


def bundle_bytes(bundle: Bundle) -> bytes:
    """Returns the one form in which a definition is stored."""
    return _bundle_encoder.encode(bundle)


def decode_bundle(data: bytes) -> Bundle:
    """Returns a definition as it was stored."""
    return _BUNDLE.decode(data)


class Definitions:
    """Definitions by content address; the ones used longest ago make room."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Published] = OrderedDict()

    def get(self, address: str) -> Published | None:
        found = self._kept.get(address)
        if found is not None:
            self._kept.move_to_end(address)
        return found

    def make(self, address: str, data: bytes) -> Published:
        found = self.get(address)
        if found is None:
            found = self._kept[address] = Published(_BUNDLE.decode(data), address)
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return found


#: Those of this process.
definitions = Definitions()


async def definition_of(ns: Namespace, p: int, address: str) -> Published:
    """Returns a definition that runs of a partition follow."""
    found = definitions.get(address)
    if found is None:
        data = await read_definition(ns, p, address)
        if data is None:
            raise NotFound(f"the definition cas://sha256:{address} is gone from the store")
        found = definitions.make(address, data)
    return found
