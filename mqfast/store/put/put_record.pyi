"""Types of put_record.pyx; what each part does is described there."""
