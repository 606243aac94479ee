"""How fast events leave an application by the relay that runs inside of it, and how soon after their commit."""
