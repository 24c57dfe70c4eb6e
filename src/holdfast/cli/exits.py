"""How a command ends: one code for each thing that a script at night would tell apart."""

from __future__ import annotations

from enum import IntEnum

from holdfast import (
    ConfigurationError,
    Fenced,
    HoldfastError,
    Indeterminate,
    NotAcquired,
    QueueFull,
    Unavailable,
    WouldDeadlock,
)


class Exit(IntEnum):
    """Exit codes of all commands."""

    DONE = 0
    FOUND = 1
    MISTAKE = 2
    UNAVAILABLE = 3
    UNKNOWN = 4
    REFUSED = 5
    INTERRUPTED = 130

    @property
    def meaning(self) -> str:
        """As docs/how-to/exit-codes.md has it; a test compares them."""
        return MEANINGS[self]


MEANINGS = {
    Exit.DONE: "Done; or there was nothing to find fault with.",
    Exit.FOUND: "Nothing of that name was found, `doctor` has a problem or a warning, `watch` saw a change, or it "
    "failed. Nothing was changed, unless the output says what.",
    Exit.MISTAKE: "A mistake on the command line, in a setting or in a file. Doing the same again does not help.",
    Exit.UNAVAILABLE: "The server cannot be reached, or refuses to act. Nothing happened; trying again is safe.",
    Exit.UNKNOWN: "It was sent and no answer came: it may or may not have happened. Look before you repeat it.",
    Exit.REFUSED: "Somebody else has it at this moment, or there is no room. Nothing happened; try again later.",
    Exit.INTERRUPTED: "Ended by Ctrl-C.",
}


def exit_of(error: HoldfastError) -> Exit:
    """The code for an error of the library."""
    match error:
        case ConfigurationError():
            return Exit.MISTAKE
        case Unavailable():
            return Exit.UNAVAILABLE
        case Indeterminate():
            return Exit.UNKNOWN
        case NotAcquired() | WouldDeadlock() | QueueFull() | Fenced():
            return Exit.REFUSED
    return Exit.FOUND
