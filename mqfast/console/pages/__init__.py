"""The pages of the console, each a function from the state to data."""
