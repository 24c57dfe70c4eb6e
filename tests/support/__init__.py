"""What the tests share: servers, actors, conditions."""
