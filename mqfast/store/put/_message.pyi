"""Types of _message.pyx; what each part does is described there."""
