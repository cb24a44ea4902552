"""Tables of papers as data: run them again, and compare what comes out with what was printed."""
