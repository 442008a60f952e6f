"""What every part needs of the machine: devices, seeds, threads, progress, signals, and files that survive a crash."""
