"""Weft beside its peers: same server, same no-op task, same way of counting. `python -m bench --help` runs it.

Reading order: `__main__` (options) -> `cases` (what is measured) -> `peers`, `server`, `processes` (what it starts)
-> `driver`, `effects` and the `*_driver` files (what runs inside a peer's own interpreter) -> `report`, `document`.
"""
