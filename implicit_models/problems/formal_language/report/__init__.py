"""What the report says of models of formal languages."""
