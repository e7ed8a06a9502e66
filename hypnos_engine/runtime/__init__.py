"""The impure half of the scheduler: performs its effects, keeps its time, and hands out leases."""
