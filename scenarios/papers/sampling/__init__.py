"""Which tables and figures of Song et al., CVPR 2021 (gradient sampling), are run in miniature?"""
