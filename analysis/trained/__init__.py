"""What does a person see of training? Table, answer, curves, and the files of them."""
