"""Dead letters of a job: which there are, what they say, and having them read again."""
