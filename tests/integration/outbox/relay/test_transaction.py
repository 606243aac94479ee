"""What the relay knows of psycopg by names that are not public: another release of psycopg that has others fails here."""

from headwater.outbox.relay.transaction import depth_of, note_commit


def test_the_blocks_of_psycopg_that_are_open_are_counted(connection):
    depths = [depth_of(connection)]
    with connection.transaction():
        depths.append(depth_of(connection))
        with connection.transaction():
            depths.append(depth_of(connection))
        depths.append(depth_of(connection))
    assert [*depths, depth_of(connection)] == [0, 1, 2, 1, 0]


async def test_the_async_blocks_of_psycopg_that_are_open_are_counted(client):
    depths = [depth_of(client)]
    async with client.transaction():
        depths.append(depth_of(client))
        async with client.transaction():
            depths.append(depth_of(client))
        depths.append(depth_of(client))
    assert [*depths, depth_of(client)] == [0, 1, 2, 1, 0]


def test_psycopg_sends_no_commit_after_one_that_it_was_told_of(connection):
    notices = []
    connection.add_notice_handler(lambda notice: notices.append(notice.message_primary))
    with connection.transaction() as block:
        connection.execute("commit")
        note_commit(block)
    assert notices == []


async def test_psycopg_sends_no_commit_after_one_that_it_was_told_of_on_an_async_connection(client):
    notices = []
    client.add_notice_handler(lambda notice: notices.append(notice.message_primary))
    async with client.transaction() as block:
        await client.execute("commit")
        note_commit(block)
    assert notices == []
