"""What every primitive stands on: scripts, flows and their drivers, transport, topology, keeper, embedded server."""
