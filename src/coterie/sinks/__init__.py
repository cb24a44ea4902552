"""Tracking tools that `record.to` names, one file each."""
