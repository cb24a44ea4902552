"""One file a method; the file name is the method's name."""
