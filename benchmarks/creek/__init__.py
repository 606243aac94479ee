"""How fast changes become messages of the Creek wire and messages become changes again, and how late they are."""
