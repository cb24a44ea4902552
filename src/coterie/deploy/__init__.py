"""Federations of sites that keep their data: a server without data, a resident client at each site."""
