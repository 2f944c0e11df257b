"""All hand-written tools, each with a request, the right call, a result and an answer."""

from .tools_at_home import contact, currency, email, journey, light, song, task, time, timer, weather
from .tools_at_work import (
    database,
    expression,
    file_reading,
    numbers_list,
    stock,
    text_change,
    translation,
    two_numbers,
    version,
    web_search,
)

FAMILIES = (
    [weather] * 3
    + [two_numbers] * 3
    + [
        expression,
        version,
        time,
        text_change,
        timer,
        email,
        web_search,
        currency,
        file_reading,
        translation,
        light,
        journey,
        song,
        stock,
        task,
        numbers_list,
        contact,
        database,
    ]
)


def family_function(r):
    """A tool of one of the hand-written families, with a request, arguments, result and answer."""
    return r.choice(FAMILIES)(r)
