"""A job: a pipeline on a state directory. The composition root, where all parts meet."""
