"""The holder: keeps the pages of weight files in memory for everybody who maps them, and computes nothing."""
