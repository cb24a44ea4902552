"""How a round runs: the loop knows its order, a site does the clients' work, a store keeps it."""
