"""POP: consumption of messages with an invisible time, acks of single messages, and redelivery by the broker."""
