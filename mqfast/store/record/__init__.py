"""Records of the log: encode, check, decode; Arrow columns."""
