"""Traffic, faults, a history of what was promised and what happened, and a checker that compares them.

    python -m chaos                      one server: kills, pauses, restarts, cut connections
    python -m chaos --server sentinel    failovers, with what asynchronous replication loses
    python -m chaos --guard off          the same with a sink that checks nothing: it must show duplicates
    python -m chaos runs                 runs whose owners are killed, frozen and drained, stopped and read meanwhile
    python -m chaos runs --guard off     the same where a lost owner may still write: the checker must see it
    python -m chaos monitor              nodes that observe and tell are killed and frozen, and receivers fail
    python -m chaos monitor --guard off  the same without safeguards (or `--without older`): the checker must see it

The schedule of faults is drawn from a number (`--schedule`), so that a run can be repeated.
"""
