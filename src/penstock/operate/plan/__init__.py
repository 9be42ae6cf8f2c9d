"""What a start would do: gathered, decided as one value, told as a document."""
