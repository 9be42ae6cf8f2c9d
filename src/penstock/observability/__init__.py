"""Folds facts; decides nothing."""
