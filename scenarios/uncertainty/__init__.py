"""What is not known of a scenario, and what does that leave open?"""
