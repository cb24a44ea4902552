"""Kernels in C for CPUs: convolutions with few channels, the way of images to them, SGD."""
