"""Readers of file formats: official archives, IDX, .npz, and folders of images."""
