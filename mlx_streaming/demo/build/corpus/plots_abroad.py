"""Story plots that begin out of doors. Each gives its sentences in order; `f` chooses."""

from . import pools as P
from .text import an, cap

HIDING_PLACES = ["an old barn", "the top of the tower", "a boat in the harbour", "the back of the bakery"]


def stuck(s, f):
    return [
        f(
            [
                f"{s.when_capital}, {s.hero} went for a walk and fell into a deep hole.",
                f"{s.when_capital}, {s.hero} climbed too high and could not get down.",
            ]
        ),
        f(
            [
                f'"Help!" shouted {s.hero}, but nobody came.',
                f"{cap(s.they)} called and called until {s.their} voice was gone.",
            ]
        ),
        f(
            [
                f"Then {s.hero} remembered the {s.thing}.",
                f"{s.hero} took out the {s.thing} and held it up to the light.",
            ]
        ),
        f(
            [
                (
                    f"{an(s.friend_trait).capitalize()} {s.friend_kind} named {s.friend} saw it and came "
                    "running."
                ),
                f"Far away, {s.friend} the {s.friend_kind} saw it shine.",
            ]
        ),
        f(
            [
                f"{s.friend} brought a long rope and pulled {s.them} out.",
                f'"Hold on!" said {s.friend}, and slowly, step by step, {s.hero} was free.',
            ]
        ),
    ]


def race(s, f):
    return [
        f(
            [
                f"{s.when_capital}, there was a big race, and everyone came to watch.",
                f"Every year there was a great race, and {s.hero} had never won it.",
            ]
        ),
        f(
            [
                f"{s.friend}, {an(s.friend_trait)} {s.friend_kind}, was the fastest of all.",
                f'"You will never beat me," said {s.friend} the {s.friend_kind}.',
            ]
        ),
        f(["They ran over the hills and through the water.", "One, two, three, and off they went!"]),
        f(
            [
                f"Near the end, {s.friend} fell and could not get up.",
                f"Then {s.friend} took a wrong turn and got lost.",
            ]
        ),
        f(
            [
                f'{s.hero} stopped and turned back. "Take my hand," {s.they} said.',
                f"{s.hero} could have won, but {s.they} went back to help.",
            ]
        ),
        f(
            [
                f"They crossed the line together, and everyone cheered. The prize was {an(s.thing)}.",
                "Nobody cared who was first.",
            ]
        ),
    ]


def river(s, f):
    return [
        f(
            [
                (
                    f"{s.when_capital}, {s.hero} wanted to visit "
                    f"{f(['an old aunt', 'a friend', 'the market'])} on the other side of the river, but "
                    "the bridge was gone."
                ),
                f"{s.when_capital}, {s.hero} came to a wide river.",
            ]
        ),
        f(["The water was fast and deep.", "There was no boat to be seen."]),
        f(
            [
                (
                    f'{s.friend}, {an(s.friend_trait)} {s.friend_kind}, was sitting on the bank. "I want '
                    f'to cross too," said {s.friend}.'
                ),
                (
                    f"On the bank stood {s.friend}, {an(s.friend_trait)} {s.friend_kind}, who was afraid "
                    "of water."
                ),
            ]
        ),
        f(
            [
                "They cut down branches and tied them together with grass.",
                "They built a raft from old barrels.",
            ]
        ),
        f(
            [
                f"{s.hero} used the {s.thing} to steer.",
                f"{s.hero} held the {s.thing} high so that it stayed dry.",
            ]
        ),
        f(
            [
                "It took all afternoon, but they reached the other side.",
                "The waves splashed and the raft turned in circles, but at last they were across.",
            ]
        ),
    ]


def broken(s, f):
    return [
        f(
            [
                f"{s.when_capital}, the {s.thing} broke into two pieces.",
                f"{s.when_capital}, {s.hero} dropped the {s.thing}, and it broke.",
            ]
        ),
        f(
            [
                f"{s.hero} tried glue, string and nails, but nothing worked.",
                f"{cap(s.they)} tried to mend it, but it only got worse.",
            ]
        ),
        f(
            [
                f'"Take it to {s.friend}," said the neighbours. "That {s.friend_kind} can mend anything."',
                f"Far away lived {s.friend}, {an(s.friend_trait)} {s.friend_kind} who could repair anything.",
            ]
        ),
        f(
            [
                f"{s.hero} walked for three days to find {s.friend}.",
                f"So {s.hero} packed some {f(P.FOODS)} and set off.",
            ]
        ),
        f(
            [
                f'{s.friend} looked at the {s.thing} and smiled. "We will do it together," said {s.friend}.',
                f'"I will show you how," said {s.friend}.',
            ]
        ),
        f(
            [
                f"They worked all night, and in the morning the {s.thing} was better than new.",
                "When it was done, nobody could see the crack.",
            ]
        ),
    ]


def dark(s, f):
    return [
        f(
            [
                f"But {s.hero} was afraid of the dark.",
                f"There was only one problem: {s.hero} could not sleep when it was dark.",
            ]
        ),
        f(
            [
                f"{s.when_capital}, all the lights went out.",
                f"{s.when_capital}, {s.they} had to walk home alone through the trees.",
            ]
        ),
        f([f"{s.hero} held the {s.thing} tight and counted to ten.", "Every shadow looked like a monster."]),
        f(
            [
                (
                    f'Then a small voice said, "Hello, I am {s.friend}." It was {an(s.friend_trait)} '
                    f"{s.friend_kind}."
                ),
                (
                    f"Then {s.they} saw two bright eyes. It was {s.friend}, {an(s.friend_trait)} "
                    f"{s.friend_kind}."
                ),
            ]
        ),
        f(
            [
                f'"The dark is only the day with its eyes closed," said {s.friend}.',
                f'"Look up," said {s.friend}, and {s.hero} saw a thousand stars.',
            ]
        ),
    ]


def stolen(s, f):
    return [
        f(
            [
                f"{s.when_capital}, someone stole the {s.thing}.",
                f"{s.when_capital}, {s.hero} came home and saw that a thief had taken the {s.thing}.",
            ]
        ),
        f(["There were footprints in the garden.", f"The only clue was a small {f(P.COLORS)} button."]),
        f(
            [
                f"{s.hero} asked {s.friend}, {an(s.friend_trait)} {s.friend_kind}, for help.",
                (
                    f'"I will help you," said {s.friend}, {an(s.friend_trait)} {s.friend_kind} who was '
                    "good at riddles."
                ),
            ]
        ),
        f(
            [
                f"The trail led them to {f(HIDING_PLACES)}.",
                "They waited behind a wall all night.",
            ]
        ),
        f(
            [
                "The thief was a little crow who only wanted a friend.",
                "There they found a young magpie who was sorry for what it had done.",
            ]
        ),
        f(
            [
                f"{s.hero} forgave the bird and got the {s.thing} back.",
                f'"You could have asked," said {s.hero}, and they shared some {f(P.FOODS)}.',
            ]
        ),
    ]
