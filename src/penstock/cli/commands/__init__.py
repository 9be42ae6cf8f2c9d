"""One module a command: its words, its options, and what it calls. Light to import; work is done elsewhere."""
