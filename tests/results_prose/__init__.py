"""What README.md and docs/results.md say in words of numbers that docs/measured holds."""
