"""Data sets, how they are divided among clients, and how a client walks through its share."""
