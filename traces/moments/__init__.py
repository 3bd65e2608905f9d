"""How much do a mini-batch's gradients scatter? Second moments over its samples."""
