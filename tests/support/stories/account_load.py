"""Accounts and their entries under load: three tables, transactions of many kinds, and an audit of their order at a target.

The load stays a bounded number of entries ahead of the target, so that a slow pipeline gets no more to do than a fast one.
"""

import random
from collections.abc import Callable
from contextlib import closing
from threading import Event, Thread

import psycopg

from headwater.errors import HeadwaterError
from headwater.postgres.connect import Connection, connect_sync
from tests.support.stories.pipeline_process import execute, fetch
from tests.support.waiting import eventually

NAMES = ("account", "entry", "tag")
_ACCOUNTS = 200
# Far enough for several batches that wait while a part of the pipeline is started again.
_MOST_AHEAD = 400
# Numbers of entries that come a thousand at a time start here.
_BULK = 10**9
# Seconds between two transactions, and between two looks at the target of a load that is far enough ahead.
_PAUSE_SECONDS = 0.02
_LOOK_SECONDS = 0.05
_TABLES = """
create table account (id int primary key, version bigint not null, note text, large text);
create table entry (id bigint, account int, amount numeric(12, 2));
alter table entry replica identity full;
create table tag (a int, b text, v int, primary key (a, b));
insert into account select g, 0, 'new', repeat(md5(g::text), 300) from generate_series(1, 200) g;
"""
# Fires for the sink too, which writes as a replica.
_AUDIT = """
create table audit (at bigint generated always as identity, id int, version bigint);
create function note() returns trigger language plpgsql as $$
begin
    insert into audit (id, version) values (new.id, new.version);
    return null;
end $$;
create trigger note after insert or update on account for each row execute function note();
alter table account enable always trigger note;
"""
_STEPS_BACK = """
select count(*) from (select version < lag(version) over (partition by id order by at) as back from audit) as step where back
"""


def create_accounts(source: str, target: str) -> None:
    """Create the tables in both databases, and the audit at the target."""
    for url in (source, target):
        execute(url, _TABLES)
    execute(target, _AUDIT)


class AccountLoad:
    """Transactions until told to stop; a transaction that the death of the server cut off is not tried again."""

    def __init__(self, source: str, target: str, choose: random.Random) -> None:
        self._source, self._target, self._random, self._stop = source, target, choose, Event()
        self._thread = Thread(target=self._run)
        self._version = self._entry = self._arrived = 0

    def __enter__(self) -> "AccountLoad":
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with closing(connect_sync(self._source)) as connection:
                    while not self._stop.wait(_PAUSE_SECONDS):
                        self._transaction(connection)
                        self._keep_pace()
            except (psycopg.Error, HeadwaterError):
                # The server is down; there is no signal for its return.
                self._stop.wait(_LOOK_SECONDS)

    def _keep_pace(self) -> None:
        """Wait until the target is close enough."""
        while self._entry - self._arrived > _MOST_AHEAD and not self._stop.wait(_LOOK_SECONDS):
            self._arrived = max(self._arrived, last_entry(self._target))

    def _transaction(self, connection: Connection) -> None:
        choose = self._random
        with connection.transaction():
            for _ in range(choose.choice([1, 1, 3, 20])):
                self._version += 1
                account = choose.randint(1, _ACCOUNTS)
                connection.execute("update account set version = %s where id = %s", [self._version, account])
                self._entry += 1
                connection.execute("insert into entry values (%s, %s, %s)", [self._entry, account, choose.random()])
            match choose.randint(1, 12):
                case 1:
                    connection.execute("delete from account where id = %s", [account])
                    connection.execute("insert into account values (%s, %s, 'again', 'small')", [account, self._version])
                case 2:
                    connection.execute("insert into tag values (%s, 'x', 0) on conflict do nothing", [choose.randint(1, 50)])
                    connection.execute(
                        "update tag set a = a + 100 where a < 100 and b = 'x' and a = %s", [choose.randint(1, 50)]
                    )
                case 3:
                    connection.execute("delete from tag where a > 140")
                case 4:
                    connection.execute("update account set large = repeat(%s, 3000) where id = %s", ["ab", account])
                case 5:
                    first = _BULK + self._entry * 1000
                    connection.execute(
                        "insert into entry select g, 0, 1 from generate_series(%s::bigint, %s::bigint) g",
                        [first, first + 999],
                    )
                case 6:
                    connection.execute("truncate tag")


def last_entry(target: str) -> int:
    """The last entry that has arrived; -1 while the target does not answer."""
    try:
        ((found,),) = fetch(target, "select coalesce(max(id), 0) from entry where id < %s", _BULK)
    except (psycopg.Error, HeadwaterError):
        return -1
    return int(str(found))


def wait_for_entries(target: str, count: int, require_life: Callable[[], None]) -> None:
    """Wait until so many more entries have arrived."""
    before = eventually(lambda: (at := last_entry(target)) >= 0 and at + 1, seconds=60) - 1

    def look() -> bool:
        require_life()
        return last_entry(target) >= before + count

    eventually(look, seconds=120)


def steps_back(target: str) -> int:
    """How often an account got a lower version than it had at the target."""
    ((found,),) = fetch(target, _STEPS_BACK)
    return int(str(found))
