"""Federations of sites that keep their data: a server without data, a client at each site."""
