"""Which messages of a queue a consumer wants: tags by their codes, or an SQL92 expression over the properties."""
