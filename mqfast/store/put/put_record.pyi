"""Types of put_record.pyx."""
