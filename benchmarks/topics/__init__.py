"""Topics against the log that they were modelled on."""
