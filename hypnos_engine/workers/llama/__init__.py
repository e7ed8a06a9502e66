"""The text worker on llama.cpp: one context, several sequences, one decode step at a time for all of them."""
