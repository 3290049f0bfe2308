"""Text cleaning and sentence splitting."""
