"""Objectives by name: one file each."""
