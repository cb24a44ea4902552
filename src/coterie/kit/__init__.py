"""What a method is written with: its interface, the local loop, stock functions, aggregation."""
