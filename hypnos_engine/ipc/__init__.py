"""How the supervisor and its workers talk: typed messages, frames, shared blocks. Nothing is ever pickled."""
