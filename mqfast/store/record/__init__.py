"""One record of the log: encode, check, decode; Arrow's columns."""
