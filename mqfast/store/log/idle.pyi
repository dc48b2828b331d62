"""idle.pyx has nothing to call from Python; what each part does is described there."""
