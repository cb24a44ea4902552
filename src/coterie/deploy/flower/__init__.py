"""The link between a server and its sites over Flower: the only folder that imports Flower.

`server.FlowerServerLink` and `client.FlowerClientLink` are all that others use. Importing this
folder checks the version of Flower first, so that another one is refused in one line.
"""

from coterie.deploy.flower_version import require_flower

require_flower()
