"""What one batch may cost."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields

from holdfast.errors import ConfigurationError
from holdfast.memory.failures import BudgetExceeded


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The most that one run of an agent on one batch may cost.

    `requests`: how many are sent, retries included. `tokens`: of all requests and answers together. `answer`: the most
    tokens of one answer; less is asked for when less is left. `seconds`: in all, waiting included.
    """

    requests: int = 4
    tokens: int = 50_000
    answer: int = 2_000
    seconds: float = 120.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            whole = item.name != "seconds"
            if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or not value > 0:
                raise ConfigurationError(f"set {item.name} to a {'whole ' if whole else ''}number above 0")


class Purse:
    """What is left of a budget while one batch is worked on."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._requests = 0
        self._tokens = 0
        self._started = time.monotonic()

    def seconds(self) -> float:
        """How many are left. Raises BudgetExceeded when none are."""
        left = self._budget.seconds - (time.monotonic() - self._started)
        if left <= 0:
            raise self._empty("seconds", f"{self._budget.seconds:g}")
        return left

    def request(self, prompt: int) -> int:
        """Count a request whose prompt has about so many tokens. Answers how many the answer may have."""
        self.seconds()
        if self._requests >= self._budget.requests:
            raise self._empty("requests", str(self._budget.requests))
        left = self._budget.tokens - self._tokens - prompt
        if left <= 0:
            raise self._empty("tokens", str(self._budget.tokens))
        self._requests += 1
        return min(self._budget.answer, left)

    def spend(self, tokens: int) -> None:
        """Count tokens that were, or may have been, used."""
        self._tokens += max(0, tokens)

    def afford(self, pause: float) -> None:
        """Raises BudgetExceeded at once when the wait before the next request would outlast what is left."""
        if pause >= self.seconds():
            raise self._empty("seconds", f"{self._budget.seconds:g}")

    def _empty(self, what: str, limit: str) -> BudgetExceeded:
        return BudgetExceeded(
            f"raise the budget or make the batches smaller: its {limit} {what} for one batch do not suffice",
            operation="memory/chat", elapsed=time.monotonic() - self._started,
        )  # fmt: skip
