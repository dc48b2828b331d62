"""Directories: a backend of files, and a sink that writes each batch exactly once."""
