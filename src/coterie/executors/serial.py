"""The reference executor: runs all tasks in this process, one after the other."""

from collections.abc import Iterable, Iterator, Sequence

from coterie.core.task import ClientInfo, Reply, Task
from coterie.engine.cohort import list_clients
from coterie.engine.site import Site


class Serial:
    """Runs tasks on a site in this process."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def clients(self) -> Sequence[ClientInfo]:
        """Everyone on the site."""
        return list_clients(self._site.partition)

    def run(self, tasks: Iterable[Task]) -> Iterator[Reply]:
        """Run the tasks in order."""
        return map(self._site.run, tasks)

    def close(self) -> None:
        """Do nothing: no process was started."""
