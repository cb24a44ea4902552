"""What several evaluators share."""
