"""The pages of the application: a fitted model, a diagnosis. Drawn from summaries; nothing is trained here."""
