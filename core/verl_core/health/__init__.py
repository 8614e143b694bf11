"""Whether a run may start: everything that can be known before a model is loaded, asked in one go."""
