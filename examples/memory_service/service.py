"""What the workers do. The web process imports this too, to append messages and to recall.

holdfast work service:hf --processes 2      # with HOLDFAST_URL set, in this directory
"""

from __future__ import annotations

import os

from agents import AGENTS

from holdfast import Batch, Holdfast
from holdfast.memory import Memory

hf = Holdfast(os.environ.get("HOLDFAST_URL", "embedded:"), name="memory", drain=5)
inbox = hf.buffer("messages", capacity=1000)
memory = Memory(os.environ.get("MEMORY_DB", "sqlite:///memory.db"), agents=AGENTS, forget_also=[inbox])


@hf.absorber(inbox, threshold=5, quiet=float(os.environ.get("MEMORY_QUIET", "10")), backoff=0.5)
async def remember(batch: Batch) -> None:
    """With five messages of a user, or after a while of silence; the same batch again until all agents are done."""
    await memory.open()  # once in a process
    await memory.absorb(batch)
