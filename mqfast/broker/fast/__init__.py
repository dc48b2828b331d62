"""The broker's hot requests inside of reactors, without the interpreter; all others go the way of Python."""
