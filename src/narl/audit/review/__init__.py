"""People check labels in their browser: what they are shown, what they answer, and what their answers agree on."""
