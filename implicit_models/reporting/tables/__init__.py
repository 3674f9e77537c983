"""Tables of the report: the one source of what the HTML and the Markdown version say."""
