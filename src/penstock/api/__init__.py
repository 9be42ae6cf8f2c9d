"""What users write."""
