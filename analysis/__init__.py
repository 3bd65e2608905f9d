"""What does a result mean? Tables, plots, timelines and the sentence that answers."""
