"""Story plots that begin at home. Each gives its sentences in order; `f` chooses."""

from . import pools as P
from .text import an, cap


def lost(s, f):
    return [
        f(
            [
                f"{s.when_capital}, the {s.thing} was gone.",
                f"But {s.when}, {s.hero} could not find the {s.thing}.",
                f"{s.when_capital}, {s.hero} woke up and the {s.thing} was missing.",
            ]
        ),
        f(
            [
                f"{s.hero} looked under the bed, behind the door and up on the roof.",
                f"{s.hero} searched the whole house, but there was nothing.",
                f"{cap(s.they)} looked everywhere and began to cry.",
            ]
        ),
        f(
            [
                (
                    f'Then {an(s.friend_trait)} {s.friend_kind} named {s.friend} came by. "What is the '
                    f'matter?" asked {s.friend}.'
                ),
                f'{s.friend} the {s.friend_kind} heard {s.them} and asked, "Can I help you?"',
            ]
        ),
        f([f'"I have lost my {s.thing}," said {s.hero}.', f'"My {s.thing} is gone," said {s.hero} sadly.']),
        f(
            [
                f"Together they followed the small tracks in the {f(['sand', 'mud', 'snow', 'grass'])}.",
                "They walked all day and asked everyone they met.",
            ]
        ),
        f(
            [
                (
                    f"At last they found the {s.thing} in "
                    f"{f(['a hollow tree', 'a nest', 'an old well', 'a pile of leaves', 'a rabbit hole'])}."
                ),
                f"At sunset, {s.friend} saw something shine. It was the {s.thing}!",
            ]
        ),
    ]


def storm(s, f):
    return [
        f(
            [
                f"{s.when_capital}, a great storm came.",
                f"{s.when_capital}, black clouds filled the sky and the wind began to roar.",
            ]
        ),
        f(["The wind tore at the roof, and the rain came in.", "The water rose higher and higher."]),
        f(
            [
                (
                    f"{s.hero} heard a cry outside. It was {s.friend}, {an(s.friend_trait)} "
                    f"{s.friend_kind}, wet and cold."
                ),
                f"Outside stood {s.friend}, {an(s.friend_trait)} {s.friend_kind} with nowhere to go.",
            ]
        ),
        f(
            [
                f'"Come in!" called {s.hero}, and {s.they} lit a fire.',
                (
                    f"{s.hero} opened the door and gave {s.friend} some hot "
                    f"{f(['soup', 'tea', 'milk', 'bread'])}."
                ),
            ]
        ),
        f(
            [
                f"All night they held the door shut with the {s.thing}.",
                f"They used the {s.thing} to keep the water out.",
            ]
        ),
        f(
            [
                "In the morning the sun came out.",
                "When the storm was over, a rainbow stood over the hills.",
            ]
        ),
    ]


def hungry(s, f):
    fd = f(P.FOODS)
    return [
        f(
            [
                f"{s.when_capital}, there was no {fd} left in the house.",
                f"{s.when_capital}, {s.hero} was very hungry, and all {s.they} wanted was {fd}.",
            ]
        ),
        f(
            [
                f"{s.hero} walked to the market with only the {s.thing}.",
                f"{cap(s.they)} set out with an empty basket and the {s.thing}.",
            ]
        ),
        f(
            [
                (
                    f"On the way {s.they} met {s.friend}, {an(s.friend_trait)} {s.friend_kind}, who was "
                    "hungry too."
                ),
                f"By the road sat {s.friend}, {an(s.friend_trait)} {s.friend_kind}, with a pot and no food.",
            ]
        ),
        f(
            [
                f'"Let us share what we find," said {s.hero}.',
                f'"If we work together, we will both eat," said {s.friend}.',
            ]
        ),
        f(
            [
                f"They picked berries, caught a fish and baked a huge {f(['pie', 'cake', 'loaf'])}.",
                f"They helped an old farmer all day, and he gave them a whole sack of {fd}.",
            ]
        ),
        f(["That night there was enough for everyone.", "They ate until they could eat no more."]),
    ]


def lonely(s, f):
    return [
        f([f"But {s.hero} had no friends, and the days were long.", f"Yet {s.hero} often felt alone."]),
        f(
            [
                f"{s.when_capital}, {s.they} sat by the window and sighed.",
                f"{s.when_capital}, {s.they} wrote a letter and tied it to the {s.thing}.",
            ]
        ),
        f(
            [
                f"The wind carried it far away to {s.friend}, {an(s.friend_trait)} {s.friend_kind}.",
                f"A knock came at the door. It was {s.friend}, {an(s.friend_trait)} {s.friend_kind}.",
            ]
        ),
        f(
            [
                f'"I am alone too," said {s.friend}. "Would you like to play?"',
                f'"May I sit with you?" asked {s.friend} softly.',
            ]
        ),
        f(
            [
                f"They played with the {s.thing} until the stars came out.",
                f"They talked about {f(P.HOBBIES)} and {f(P.FOODS)} for hours.",
            ]
        ),
    ]


def noise(s, f):
    return [
        f(
            [
                f"{s.when_capital}, {s.hero} heard a strange noise.",
                f"{s.when_capital}, something went bump, bump, bump in the attic.",
            ]
        ),
        f(
            [
                f'"Who is there?" whispered {s.hero}.',
                f"{cap(s.their)} heart beat fast, but {s.they} wanted to know what it was.",
            ]
        ),
        f(
            [
                f"{cap(s.they)} took the {s.thing} and went up the stairs, one by one.",
                f"With the {s.thing} in {s.their} hand, {s.they} opened the door very slowly.",
            ]
        ),
        f(
            [
                (
                    f"There sat {s.friend}, {an(s.friend_trait)} {s.friend_kind}, looking for a warm "
                    "place to sleep."
                ),
                f"It was only {s.friend}, {an(s.friend_trait)} {s.friend_kind}, who had lost the way home.",
            ]
        ),
        f(
            [
                f'{s.hero} laughed. "You gave me such a fright!"',
                f'"Don\'t be afraid," said {s.hero}, and {s.they} smiled.',
            ]
        ),
    ]


def gift(s, f):
    return [
        f(
            [
                (
                    f"It was almost the birthday of {s.friend}, {an(s.friend_trait)} {s.friend_kind}, and "
                    f"{s.hero} had no gift."
                ),
                (
                    f"{s.when_capital}, {s.hero} heard that {s.friend}, {an(s.friend_trait)} "
                    f"{s.friend_kind}, was ill."
                ),
            ]
        ),
        f([f"{s.hero} thought and thought.", f'"What can I give?" {s.they} wondered. "I have so little."']),
        f(
            [
                f"{cap(s.they)} made a card and baked {an(f(['cake', 'pie', 'small loaf']))}, but it burned.",
                f"First {s.they} tried to knit a hat, but it was far too big.",
            ]
        ),
        f(
            [
                f"In the end, {s.hero} wrapped up the {s.thing}.",
                f"So {s.they} decided to give away the {s.thing}.",
            ]
        ),
        f(
            [
                (
                    f"When {s.friend} saw it, "
                    f"{f(['there were tears of joy', 'the whole room seemed brighter'])}."
                ),
                f'"It is the best gift of all," said {s.friend}.',
            ]
        ),
    ]
