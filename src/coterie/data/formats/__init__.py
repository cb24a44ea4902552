"""How files are read: official archives, IDX, .npz, and folders of images."""
