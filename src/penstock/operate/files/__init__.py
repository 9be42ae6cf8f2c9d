"""Files of a job: whose each is, whether it is what was written, which are needed."""
