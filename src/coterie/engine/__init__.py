"""Running rounds: the loop orders them, sites do the clients' work, stores save the states."""
