"""What the workers of the chat do. The web process imports this too, to start, stop and read runs.

holdfast work answers:hf --processes 2      # with HOLDFAST_URL set, in this directory
"""

from __future__ import annotations

import os

from model import go_on

from holdfast import ActiveRun, Batch, Draft, Holdfast
from holdfast.memory import Memory

hf = Holdfast(os.environ.get("HOLDFAST_URL", "embedded:"), name="chat", drain=3)
answers = hf.runs("answers", conflict="join")  # at most one at a time for each chat, which is the key
talks = hf.sessions("talks", max_entries=40)  # what the model is shown of a chat
turns = hf.buffer("turns")  # what was said, until it is in long-term memory
memory = Memory(os.environ.get("CHAT_MEMORY", "sqlite:///chat-memory.db"), forget_also=[turns])


@hf.runner(answers, concurrency=20, resumable=True)
async def answer(run: ActiveRun) -> dict[str, int]:
    """Writes an answer word by word. After a crash another process goes on from the last checkpoint."""
    said: list[str] = run.saved or []
    earlier = await talks.context(run.key, limit=20)
    async for word in go_on(run.input["prompt"], said, len(earlier) // 2):
        said.append(word)
        await run.emit({"text": word + " "})
        if len(said) % 10 == 0:
            await run.checkpoint(said)
    await run.step("remember", remember, run.key, run.input["prompt"], " ".join(said))
    return {"words": len(said)}


async def remember(chat: str, asked: str, answered: str) -> None:
    """For the next answer, and for the long term. A step: it is not done again by who takes over after it."""
    await talks.save_many(chat, [Draft(asked), Draft(answered, "assistant")])
    await turns.append(chat, {"text": asked, "answer": answered})


@hf.absorber(turns, threshold=4, quiet=float(os.environ.get("CHAT_QUIET", "30")))
async def absorb(batch: Batch) -> None:
    """Into SQL, once in effect: when a chat has four turns that wait, or has been quiet for a while."""
    await memory.open()  # once in a process
    await memory.absorb(batch)
