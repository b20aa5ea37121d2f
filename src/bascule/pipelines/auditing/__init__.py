"""What `audit` looks at, and what it finds."""
