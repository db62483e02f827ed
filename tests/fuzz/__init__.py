"""Every reader of texts and objects that come from outside, fed with mutated real ones."""
