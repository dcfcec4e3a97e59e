"""What programs train models for: translations, numbers to add and sort, dates, recall, and numbers dialled on a telephone."""
