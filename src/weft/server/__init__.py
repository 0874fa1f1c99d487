"""The server: what Weft says to whoever comes by HTTP. Pages of links to approvals, and health.

It reads and changes runs by the engine, like every other door, and runs no user code.
"""

from weft.server.app import create_app

__all__ = ["create_app"]
