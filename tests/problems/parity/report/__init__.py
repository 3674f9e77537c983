"""What the report says of parities."""
