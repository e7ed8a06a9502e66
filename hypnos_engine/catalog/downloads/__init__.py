"""Downloads of models: jobs that survive pauses, restarts and kills, and one child process for each that runs."""
