"""The foundation of the store: operating system, mapped files, locks, services, paths, results."""
