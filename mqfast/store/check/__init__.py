"""Recovery, verify, repair, salvage: what finds and mends damage."""
