"""Runs a policy on a made-up machine and a recorded or invented stream of requests; knows no clock, file or chance."""
