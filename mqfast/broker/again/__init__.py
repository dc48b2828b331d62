"""Messages that come again or later: delay levels, send-backs, transactions, replies."""
