"""How is shown what a paper printed beside what came out here?"""
