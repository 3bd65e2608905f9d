"""How do float32 values become shorter ones?"""
