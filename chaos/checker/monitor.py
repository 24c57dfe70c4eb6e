"""The account of a monitor: what was true, what it found, and what it told whom."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from chaos.checker.runs import Account as RunsAccount
from chaos.traffic.endpoints import Accepted
from chaos.traffic.venues import EVERYBODY, FEED, INTERVAL, Item, Row, key_of, source_of, wanted
from holdfast.monitor.record import Snapshot

FIRM = (
    "foreign", "order", "sequence", "bodies", "final", "outdated", "letters", "left", "eternal", "died", "signatures",
    "unwanted", "claims", "dropped", "unfinished",
)  # fmt: skip
"""What must hold even where a failover has forgotten the last moments."""


class Account(RunsAccount):
    @property
    def clean(self) -> bool:
        return not any(number for kind, number in self.violations.items() if kind in FIRM or not self.forgetful)


class Fact(NamedTuple):
    """A change, as a subscriber was told of it."""

    id: str
    source: str
    key: Any
    kind: str
    before: Any
    after: Any
    observed_at: float


class Told(NamedTuple):
    """A message that a subscriber accepted."""

    key: str
    attempt: int
    body: str
    changes: Sequence[Fact]
    at: float
    answered: bool = True
    signed: bool = True


def told(one: Accepted) -> Told:
    """As it came over HTTP."""
    text = one.body.decode()
    changes = [Fact(*(change[name] for name in Fact._fields)) for change in json.loads(text)["changes"]]
    return Told(one.key, one.attempt, text, changes, one.at, one.answered, one.signed)


@dataclass
class Evidence:
    """All that is known in the end."""

    items: Sequence[Item]
    truth: Mapping[int, Sequence[Row]]
    history: Mapping[int, Sequence[Snapshot]]
    known: Mapping[int, Any]
    """What the server says each venue is now."""
    journal: Sequence[Mapping[str, Any]]
    told: Mapping[str, Sequence[Told]]
    """For each subscriber, in the order in which it accepted them."""
    delivered: Mapping[str, Iterable[str]] = field(default_factory=dict)
    """For each subscriber the messages that the push log calls delivered."""
    replayed: Mapping[str, set[str]] = field(default_factory=dict)
    """For each subscriber the changes that were dead letters."""
    letters: int = 0
    left: Sequence[str] = ()
    """What still waits."""
    eternal: Sequence[str] = ()
    """Keys without a life."""
    died: int = 0
    """Nodes that ended by themselves."""
    faults: int = 0
    window: float = 0.0
    forgetful: bool = False


VENUE = "venue {}".format


def check(found: Evidence) -> Account:
    account = Account(forgetful=found.forgetful)
    names = {place(source_of(venue), key_of(venue)): venue for venue in found.truth}
    changes: dict[str, tuple[int, Snapshot]] = {}
    for venue, rows in found.truth.items():
        ordered = sorted(found.history.get(venue, ()), key=lambda one: one.id)
        changes.update((one.id, (venue, one)) for one in ordered)
        _history(account, venue, rows, ordered)
        if found.known.get(venue) != rows[-1].state:
            account.wrong("final", VENUE(venue), f"the server knows {found.known.get(venue)}, not {rows[-1].state}")
    account.happened["changes in the history"] = len(changes)
    _observers(account, found, changes)
    for name in EVERYBODY:
        _subscriber(account, found, name, names, changes)
    for kind, ones in (("left", found.left), ("eternal", found.eternal)):
        for one in ones:
            account.wrong(kind, "server", str(one))
    for kind, number in (("letters", found.letters), ("died", found.died)):
        if number:
            account.wrong(kind, "fleet", f"{number}")
    return account


def place(source: str, key: Any) -> str:
    """Source and key in a form that JSON leaves as it is."""
    return json.dumps([source, key])


def _history(account: Account, venue: int, rows: Sequence[Row], ordered: Sequence[Snapshot]) -> None:
    """Each state was there, at that time; none is older than the one before, or the same; the last one is the last."""
    wrong = account.wrong
    true = {row.observed_at: row.state for row in rows}
    for one in ordered:
        if true.get(one.observed_at) != one.state:
            wrong("foreign", VENUE(venue), f"{one} never was")
    for before, after in pairwise(ordered):
        if after.observed_at <= before.observed_at:
            wrong("history", VENUE(venue), f"{after} came after {before}")
        if after.state == before.state:
            wrong("history", VENUE(venue), f"{after} is no change: it was {before}")
    kinds = [one.kind for one in ordered]
    if kinds[:1] != ["first"] or "first" in kinds[1:]:
        wrong("history", VENUE(venue), f"it begins with {kinds[:3]}, of {len(kinds)}")
    newest = max(ordered, key=lambda one: one.observed_at, default=None)
    if newest is None or newest.state != rows[-1].state:
        wrong("final", VENUE(venue), f"the history ends with {newest}, not with {rows[-1]}")


def _observers(account: Account, found: Evidence, changes: Mapping[str, tuple[int, Snapshot]]) -> None:
    """What nodes were told of their observations must be so; a page is processed once."""
    pages: dict[int, int] = defaultdict(int)
    happened = account.happened
    for line in found.journal:
        if line["what"] == "observed":
            answers = [(found.items[number].rows[0], *rest) for _, number, *rest in line["answers"]]
        elif line["what"] == "page" and line["answers"] is not None:
            pages[line["page"]] += 1
            answers = [(row, *one) for row, one in zip(found.items[line["page"]].rows, line["answers"], strict=True)]
        else:
            if line["what"] == "dropped":
                account.wrong("dropped", "node", line["text"])
            happened[{"full": "log full", "trouble": "observations tried again"}.get(line["what"], "")] += 1
            continue
        for row, outcome, change in answers:
            happened[f"observed: {outcome}"] += 1
            if change is not None and _differs(row, change, changes):
                account.wrong("acknowledged", VENUE(row.venue), f"{change} of {row} is not in the history")
    del happened[""]
    expected = [item.number for item in found.items if item.source == FEED]
    for page in expected:
        if pages[page] > 1:
            account.wrong("tasks", f"page {page}", f"it was processed {pages[page]} times")
    happened["pages processed"] = sum(pages.values())


def _differs(row: Row, change: str, changes: Mapping[str, tuple[int, Snapshot]]) -> bool:
    venue, one = changes.get(change, (-1, None))
    return one is None or (venue, one.state, one.observed_at) != (row.venue, row.state, row.observed_at)


def _subscriber(
    account: Account, found: Evidence, name: str, names: Mapping[str, int],
    changes: Mapping[str, tuple[int, Snapshot]],
) -> None:  # fmt: skip
    messages = found.told.get(name, ())
    firsts = _firsts(account, name, messages, found.faults)
    seen = _order(account, name, firsts, names, found.replayed.get(name, set()))
    for change, fact in seen.items():
        venue = names.get(place(fact.source, fact.key), -1)
        if venue < 0 or not wanted(name, venue, fact.kind):
            account.wrong("unwanted", name, f"{fact}")
            continue
        if all((row.state, row.observed_at) != (fact.after, fact.observed_at) for row in found.truth[venue]):
            account.wrong("foreign", name, f"{fact} never was")
        if change not in changes:
            account.wrong("unknown", name, f"{fact} is not in the history")
    _complete(account, found, name, names, changes, seen)
    known = {one.key for one in messages}
    for delivery in set(found.delivered.get(name, ())) - known:
        account.wrong("claims", name, f"the push log says that {delivery} was delivered")
    if name == "picky":
        for before, after in pairwise(firsts):
            if after.at - before.at < INTERVAL * 0.9:
                account.wrong("interval", name, f"{after.key} came {after.at - before.at:.3f} s after {before.key}")
    account.happened["messages accepted"] += len(messages)
    account.happened["changes told"] += len(seen)
    account.happened[f"messages: {name}"] = len(firsts)


def _firsts(account: Account, name: str, messages: Sequence[Told], faults: int) -> list[Told]:
    """Each message once. What comes again under its key must be the same, and must have a reason."""
    firsts: dict[str, Told] = {}
    answered: dict[str, int] = {}
    for one in messages:
        if not one.signed:
            account.wrong("signatures", name, one.key)
        first = firsts.setdefault(one.key, one)
        if first is not one:
            if first.body != one.body:
                account.wrong("bodies", name, f"{one.key} was {first.body[:200]} and is {one.body[:200]}")
            # What a receiver takes late was sent before it answered the next attempt.
            known = one.attempt > answered.get(one.key, one.attempt)
            account.happened["came again: sender lost" if known else "came again: answer lost"] += 1
            if known and not faults:
                account.wrong("repeats", name, f"{one.key} was answered, and came again although nothing had failed")
        if one.answered:
            answered.setdefault(one.key, one.attempt)
    return list(firsts.values())


def _order(
    account: Account, name: str, firsts: Sequence[Told], names: Mapping[str, int], replayed: set[str]
) -> dict[str, Fact]:  # fmt: skip
    """All changes told, each once; in the order of the log, but for those that were dead letters."""
    seen: dict[str, Fact] = {}
    last = ""
    of_venue: dict[int, str] = {}
    for message in firsts:
        for fact in message.changes:
            if fact.id in seen:
                if fact.id in replayed:
                    account.happened["accepted before its replay"] += 1
                else:
                    account.wrong("twice", name, f"{fact.id} came in {message.key} and in another message")
                continue
            seen[fact.id] = fact
            if fact.id in replayed:
                continue
            venue = names.get(place(fact.source, fact.key), -1)
            if fact.id < last:
                account.wrong("sequence", name, f"{fact.id} came after {last}")
            if fact.id < of_venue.get(venue, ""):
                account.wrong("order", name, f"venue {venue}: {fact.id} came after {of_venue[venue]}")
            last, of_venue[venue] = max(last, fact.id), max(of_venue.get(venue, ""), fact.id)
    return seen


def _complete(
    account: Account, found: Evidence, name: str, names: Mapping[str, int],
    changes: Mapping[str, tuple[int, Snapshot]], seen: Mapping[str, Fact],
) -> None:  # fmt: skip
    """Nothing is missing, each says what was before, and what it heard last of a venue is what that is."""
    before: dict[int, Any] = {}
    for change, (venue, one) in sorted(changes.items()):
        fact = seen.get(change)
        if wanted(name, venue, one.kind):
            if fact is None:
                account.wrong("lost", name, f"{one} of venue {venue}")
            elif (fact.kind, fact.after, fact.observed_at) != (one.kind, one.state, one.observed_at):
                account.wrong("facts", name, f"{fact} is {one} in the history")
            elif not found.window and fact.before != before.get(venue):
                account.wrong("facts", name, f"{fact}, but it was {before.get(venue)}")
        before[venue] = one.state
    newest: dict[int, Fact] = {}
    for fact in sorted(seen.values()):
        newest[names.get(place(fact.source, fact.key), -1)] = fact
    for venue, rows in found.truth.items():
        heard = newest.get(venue)
        kind = max(found.history.get(venue, ()), key=lambda one: one.id).kind if found.history.get(venue) else "changed"
        if wanted(name, venue, kind) and (heard is None or heard.after != rows[-1].state):
            account.wrong("outdated", name, f"venue {venue} is {rows[-1].state}, and it heard {heard} last")
