"""Data sets, their division among clients, and the batches of a client."""
