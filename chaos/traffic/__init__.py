"""Who talks to the server, each in a process of its own: producers that append and workers that absorb; callers that
start and stop runs, runners that execute them, readers that follow them; nodes that observe and tell, and receivers.
"""
