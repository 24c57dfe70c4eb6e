"""What the workers of the chat do. The web process imports this too, to start, stop and read runs.

holdfast work answers:hf --processes 2      # with HOLDFAST_URL set, in this directory
"""

from __future__ import annotations

import os

from model import go_on

from holdfast import ActiveRun, Holdfast

hf = Holdfast(os.environ.get("HOLDFAST_URL", "embedded:"), name="chat", drain=3)
answers = hf.runs("answers", conflict="join")  # at most one at a time for each chat, which is the key


@hf.runner(answers, concurrency=20, resumable=True)
async def answer(run: ActiveRun) -> dict[str, int]:
    """Writes an answer word by word. After a crash another process goes on from the last checkpoint."""
    said: list[str] = run.saved or []
    async for word in go_on(run.input["prompt"], said):
        said.append(word)
        await run.emit({"text": word + " "})
        if len(said) % 10 == 0:
            await run.checkpoint(said)
    return {"words": len(said)}
