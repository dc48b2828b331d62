"""What all rooms of the store stand on: the operating system, mapped files, locks, services, paths, results."""
