"""Words in other languages, emoji, and a little Chinese, French, Spanish and German chat."""

from . import pools as P
from .text import an, cap, casual


def language(r):
    k = r.randrange(9)
    if k < 4:
        tongue = r.choice(["Chinese", "Chinese", "French", "Spanish", "German"])
        e, t = r.choice(P.TR[tongue])
        if r.random() < 0.7:
            return [
                (
                    casual(
                        r,
                        r.choice(
                            [
                                f"How do you say {e} in {tongue}?",
                                f'How do you say "{e}" in {tongue}?',
                                f"Translate {e} to {tongue}.",
                                f"What is {e} in {tongue}?",
                            ]
                        ),
                    ),
                    r.choice([f"{cap(e)} in {tongue} is {t}.", f'"{cap(e)}" is {t} in {tongue}.']),
                )
            ]
        return [
            (
                r.choice(
                    [f"What does {t} mean?", f"What does {t} mean in {tongue}?", f"Translate {t} to English."]
                ),
                f"{t} means {e}.",
            )
        ]
    if k < 6:
        e, n = r.choice(P.EMOJI)
        if r.random() < 0.5:
            return [
                (
                    r.choice(
                        [
                            f"What is {e}?",
                            f"What does {e} mean?",
                            f"Describe this emoji: {e}",
                            f"Which emoji is this: {e}",
                        ]
                    ),
                    f"{e} is the {n} emoji.",
                )
            ]
        return [
            (
                r.choice([f"Show me the {n} emoji.", f"Send me {an(n)} emoji.", f"Which emoji is {n}?"]),
                r.choice([f"{e}", f"Here it is: {e}"]),
            )
        ]
    if k == 6:
        n = r.choice(["小明", "小红", "小华", "李雷", "韩梅梅", "王芳", "张伟", "小兰"])
        a = r.choice(["狗", "猫", "兔子", "鸟", "鱼", "马"])
        c = r.choice(["红色", "蓝色", "绿色", "白色", "黑色", "黄色"])
        f = r.choice(["苹果", "香蕉", "米饭", "面条", "面包", "鸡蛋"])
        p = r.choice(["学校", "花园", "河边", "山上", "城市", "海边"])
        x = r.randrange(6)
        if x == 0:
            return [
                (r.choice(["你好", "你好!", "您好"]), r.choice(["你好!我能帮你什么?", "你好!很高兴认识你。"]))
            ]
        if x == 1:
            return [
                (
                    r.choice(["你是谁?", "你叫什么名字?", "请介绍一下你自己。"]),
                    r.choice(["我是一个很小的演示模型。", "我是一个小小的语言模型,用来做演示。"]),
                )
            ]
        if x == 2:
            return [
                (f"我叫{n}。", f"你好,{n}!很高兴认识你。"),
                (r.choice(["我叫什么名字?", "我叫什么?"]), f"你叫{n}。"),
            ]
        if x == 3:
            return [(f"我喜欢{c}。", f"{c}很好看。"), ("我喜欢什么颜色?", f"你喜欢{c}。")]
        if x == 4:
            return [
                (
                    r.choice(["讲一个短故事。", "请讲一个小故事。", "给我讲个故事。"]),
                    f"从前,{n}有一只小{a}。有一天,他们去了{p}。小{a}找到了一个{f},{n}很高兴。他们一起吃了{f},然后回家了。",
                )
            ]
        return [(r.choice(["谢谢!", "谢谢你。"]), "不客气!")]
    if k == 7:
        n = r.choice(P.NAMES)
        x = r.choice(
            [
                ("Bonjour !", "Bonjour ! Comment puis-je vous aider ?"),
                (f"Je m'appelle {n}.", f"Enchanté, {n} !"),
                ("Ça va ?", "Ça va très bien, merci !"),
                ("Merci beaucoup !", "De rien ! À bientôt."),
                ("¡Hola!", "¡Hola! ¿En qué puedo ayudarte?"),
                (f"Me llamo {n}.", f"¡Mucho gusto, {n}!"),
                ("¿Cómo estás?", "¡Muy bien, gracias! ¿Y tú?"),
                ("¡Gracias!", "¡De nada!"),
                ("Guten Tag!", "Guten Tag! Wie kann ich Ihnen helfen?"),
                (f"Ich heiße {n}.", f"Schön, dich kennenzulernen, {n}!"),
                ("Wie geht es dir?", "Sehr gut, danke schön!"),
                ("Olá!", "Olá! Como posso ajudar?"),
                ("Ciao!", "Ciao! Come posso aiutarti?"),
            ]
        )
        return [x]
    e, n = r.choice(P.EMOJI)
    m = r.randint(2, 5)
    return [(r.choice([f"Write {n} {m} times as emoji.", f"Send {m} {n} emojis."]), e * m)]
