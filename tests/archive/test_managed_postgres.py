"""PostgreSQL as providers give it: what their URLs say, and databases in which nothing can be made."""

from __future__ import annotations

import pytest

from weft.archive.address import Address
from weft.archive.database import Database
from weft.archive.schema import migrate, read_schema
from weft.engine.health import examine
from weft.errors import ArchiveUnavailable, SettingsError

asyncpg = pytest.importorskip("asyncpg", reason="PostgreSQL's driver is not here: pip install asyncpg")


@pytest.fixture
def database_url(tmp_path):
    """The tests name their own."""
    return f"sqlite:///{tmp_path / 'archive.sqlite'}"


@pytest.fixture
def place(postgres):
    """Returns the URL of a database on the server, for a role."""

    def name(database, role="postgres", more=""):
        return f"postgresql://{role}@/{database}?{postgres.partition('?')[2]}{more}"

    return name


@pytest.fixture
async def administer(postgres):
    connection = await asyncpg.connect(postgres)
    yield connection.execute
    await connection.close()


@pytest.mark.parametrize(
    ("parameters", "setting", "value"),
    [
        ("sslmode=disable&connect_timeout=7", "application_name", ""),
        ("ssl=prefer&statement_cache_size=0&prepared_statement_cache_size=0", "application_name", ""),
        ("application_name=shop&target_session_attrs=read-write", "application_name", "shop"),
        ("options=-c%20search_path%3Dshop", "search_path", "shop"),
    ],
)
async def test_a_url_takes_what_managed_servers_write_into_it(postgres, parameters, setting, value):
    database = Database(Address.parse(f"{postgres}&{parameters}"))
    async with database.reading() as connection:
        assert (await connection.exec_driver_sql(f"SHOW {setting}")).scalar() == value
    await database.close()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("postgresql://h/db?sslmode=require&channel_binding=require", "does not know channel_binding: leave it out"),
        ("postgresql://h/db?sslmode=yes", "sslmode is one of disable, .*, not 'yes'"),
        ("postgresql://h/db?connect_timeout=soon", "connect_timeout takes a number, not 'soon'"),
        ("postgresql://h/db?application_name=", "application_name has no value"),
        ("postgresql://me:secret@h:54e2/db", "its port is no number: '54e2'"),
    ],
)
def test_a_url_that_the_driver_would_not_understand_is_refused_with_a_reason(url, why):
    with pytest.raises(SettingsError, match=why) as refused:
        Address.parse(url)
    assert "secret" not in str(refused.value)


def test_what_the_driver_is_told_of_a_url():
    told = Address.parse("postgresql://me:p@s/s?w%25@h1:5432,h2/db?sslmode=require&connect_timeout=3").driver_options
    assert told == {"dsn": "postgresql://me:p%40s%2Fs%3Fw%25@h1:5432,h2/db?sslmode=require", "timeout": 3.0}
    several = Address.parse("postgresql:///db?host=a:1&host=b:2").driver_options
    assert several == {"dsn": "postgresql:///db?host=a%3A1%2Cb%3A2"}


async def refusal(url):
    """Returns how making the tables in a database is refused."""
    database = Database(Address.parse(url))
    with pytest.raises(ArchiveUnavailable) as refused:
        await migrate(database)
    assert (await read_schema(database)).current == ""
    await database.close()
    return str(refused.value)


async def test_a_database_in_which_not_every_text_fits_is_refused(administer, place):
    await administer("CREATE DATABASE latin ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")

    told = await refusal(place("latin"))

    assert "has the encoding LATIN1" in told and "ENCODING 'UTF8'" in told


async def test_a_role_that_may_make_no_tables_is_told_what_it_lacks(administer, place, app, monkeypatch):
    await administer("CREATE ROLE guest LOGIN")
    await administer("CREATE DATABASE bare")
    monkeypatch.setenv("WEFT_DATABASE_URL", place("bare", role="guest"))

    told = await refusal(place("bare", role="guest"))

    assert "GRANT CREATE ON SCHEMA public TO guest" in told
    await app.open()
    health = await examine(app.engine())
    (found,) = [one for one in health.findings if one.about == "archive"]
    assert health.database.status == "unavailable" and found.level == "problem" and "GRANT CREATE" in found.message


async def test_a_search_path_that_leads_nowhere_is_told_of(administer, place):
    await administer("CREATE DATABASE pathless")

    assert "search_path" in await refusal(place("pathless", more="&options=-c%20search_path%3Dnowhere"))
