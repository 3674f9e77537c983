"""Word problems: state tracking in groups and monoids."""
