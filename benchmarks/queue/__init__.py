"""The queue against its peers from PyPI, and against the messaging that it was modelled on."""
