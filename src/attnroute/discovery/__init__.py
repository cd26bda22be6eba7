"""Where endpoints come from: one source a file, all behind `base.Resolver`."""
