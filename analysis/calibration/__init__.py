"""What do measurements of one's own say? Links and layer models fitted to them."""
