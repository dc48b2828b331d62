"""Directories: the files of stores as an access, and a sink that writes each batch once."""
