"""Traffic, faults, a history of what was promised and what happened, and a checker that compares them.

    python -m chaos                      one server: kills, pauses, restarts, cut connections
    python -m chaos --server sentinel    failovers, with what asynchronous replication loses
    python -m chaos --guard off          the same with a sink that checks nothing: it must show duplicates

The schedule of faults is drawn from a number (`--schedule`), so that a run can be repeated.
"""
