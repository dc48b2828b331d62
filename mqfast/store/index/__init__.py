"""IndexFiles: hash slots and chains by message key."""
