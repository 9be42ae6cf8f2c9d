"""A running job in numbers: its report, and the file that shows it to other processes."""
