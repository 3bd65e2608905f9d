"""What do the fuzzers of each kind of input change, and which commands read it then?"""
