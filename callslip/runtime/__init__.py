"""Runtime services: devices, seeds, threads, progress bars, signals, and crash-safe files."""
