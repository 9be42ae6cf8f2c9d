"""How a running job is asked, and answers."""
