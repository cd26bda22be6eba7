"""Standard input of a child process as an asyncio stream."""

from __future__ import annotations

import asyncio
import sys


async def standard_input() -> asyncio.StreamReader:
    """Lines from the demo; the end of it means that the demo is gone or wants an end."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    return reader
