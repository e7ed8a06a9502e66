"""What models there are and where their files lie; loads none of them."""
