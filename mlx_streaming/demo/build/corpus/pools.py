"""Closed pools of words: hand-written lists, and emoji by their Unicode names."""

import unicodedata

NAMES = """
Anna Ben Clara David Elena Felix Grace Hugo Iris Jack Kira Leo Maria Noah Olivia Paul Quinn Rosa Sam Tara
Uma Victor Wendy Xavier Yara Zoe Ada Bruno Cara Dario Emma Finn Gina Hans Ines Jonas Kate Lars Mina Nils
Otto Petra Rafael Sofia Tom Ursula Vera Will Yusuf Zara Aisha Boris Chen Diego Esther Fatima Georg Hana Ivan
Julia Kenji Lena Mateo Nadia Omar Priya Ravi Sara Tariq Umar Valentina Wei Ximena Yuki Zain Amelia Oscar
Lucy Henry Alice Max Nora Peter Ruth Simon Martha Luis Carmen Ahmed Ingrid Sven Maya Liam Ella Theo Ruby
Jade Ali Nina Emil Greta Marco Lucia Pablo Chloe Daniel Hannah Adam Eva Robert Linda Frank Helen Arthur Rose
George Irene Albert Mabel Walter Stella Tim Laura Mark Susan Kevin Amy Brian Diana Eric Fiona Gavin Holly
Ian Jenny Kyle Lily Mike Nancy Owen Polly Ryan Sally
""".split()
SURN = """
Adams Baker Castillo Dupont Evans Fischer Garcia Hansen Ito Jensen Kowalski Lopez Müller Novak Okafor Patel
Quist Rossi Schmidt Tanaka Ueda Vargas Weber Xu Young Zimmer Andersson Brown Cohen Diaz Ericsson Fernández
Grant Haddad Ivanov Jones Kim Larsen Moreau Nguyen Olsen Park Reyes Silva Taylor Urban Vogel White Yamada
Zhang
""".split()
CITIES = """
Paris London Berlin Madrid Rome Lisbon Vienna Prague Dublin Oslo Stockholm Helsinki Warsaw Athens Budapest
Tokyo Kyoto Seoul Beijing Shanghai Delhi Mumbai Sydney Melbourne Toronto Montreal Chicago Boston Seattle
Denver Austin Miami Lima Bogotá Quito Santiago Cairo Nairobi Lagos Accra Tunis Rabat Istanbul Ankara Tehran
Baghdad Amman Doha Dubai Karachi Lahore Dhaka Bangkok Hanoi Manila Jakarta Singapore Auckland Wellington
Havana Panama Geneva Zürich Milan Naples Turin Venice Porto Seville Valencia Bilbao Lyon Nice Lille Hamburg
Munich Cologne Leipzig Dresden Bremen Antwerp Ghent Rotterdam Utrecht Copenhagen Aarhus Bergen Gothenburg
Tampere Riga Vilnius Tallinn Kraków Gdańsk Brno Bratislava Zagreb Belgrade Sofia Bucharest Reykjavik
Edinburgh Glasgow Cardiff Belfast Bristol Leeds York Oxford Cambridge
""".split()
COLORS = """
red blue green yellow orange purple pink black white brown grey turquoise violet gold silver crimson teal
indigo beige maroon
""".split()
ANIMALS = """
fox rabbit bear owl mouse cat dog turtle frog hedgehog squirrel wolf deer duck goose swan horse pony donkey
goat sheep lamb pig cow hen rooster crow sparrow robin eagle hawk parrot penguin seal otter beaver badger
mole bat snail bee butterfly ant spider beetle whale dolphin crab lobster octopus lion tiger elephant
giraffe monkey panda kangaroo koala camel zebra hippo crocodile lizard dragon unicorn
""".split()
FOODS = """
bread cheese apple pear plum cherry banana orange lemon grape melon strawberry tomato potato carrot onion
garlic rice pasta soup salad pizza pancake cookie cake pie honey jam butter milk tea coffee juice chocolate
walnut almond mushroom pumpkin bean pea corn egg fish curry sushi noodle dumpling taco sandwich omelette
waffle muffin
""".split()
HOBBIES = """
reading painting cooking gardening swimming cycling hiking singing dancing drawing chess knitting fishing
photography running skating sailing climbing writing pottery juggling baking astronomy birdwatching
carpentry yoga
""".split()
JOBS = """
teacher doctor nurse baker farmer pilot engineer painter singer writer lawyer carpenter plumber gardener
librarian chef driver tailor mechanic journalist scientist musician dentist firefighter sailor builder
designer programmer waiter photographer
""".split()
PETS = """
Rex Bella Luna Milo Coco Daisy Rocky Pepper Shadow Ginger Biscuit Pickle Nugget Muffin Whiskers Tiger Snowy
Buddy Molly Simba Nemo Ziggy Olive Peanut
""".split()
COUNTRIES = {
    "France": "Paris",
    "Germany": "Berlin",
    "Spain": "Madrid",
    "Italy": "Rome",
    "Portugal": "Lisbon",
    "Austria": "Vienna",
    "Ireland": "Dublin",
    "Norway": "Oslo",
    "Sweden": "Stockholm",
    "Finland": "Helsinki",
    "Denmark": "Copenhagen",
    "Poland": "Warsaw",
    "Greece": "Athens",
    "Hungary": "Budapest",
    "Japan": "Tokyo",
    "China": "Beijing",
    "South Korea": "Seoul",
    "India": "New Delhi",
    "Australia": "Canberra",
    "New Zealand": "Wellington",
    "Canada": "Ottawa",
    "Mexico": "Mexico City",
    "Brazil": "Brasília",
    "Argentina": "Buenos Aires",
    "Chile": "Santiago",
    "Peru": "Lima",
    "Colombia": "Bogotá",
    "Ecuador": "Quito",
    "Egypt": "Cairo",
    "Kenya": "Nairobi",
    "Nigeria": "Abuja",
    "Ghana": "Accra",
    "Tunisia": "Tunis",
    "Morocco": "Rabat",
    "Turkey": "Ankara",
    "Iran": "Tehran",
    "Iraq": "Baghdad",
    "Jordan": "Amman",
    "Qatar": "Doha",
    "Pakistan": "Islamabad",
    "Bangladesh": "Dhaka",
    "Thailand": "Bangkok",
    "Vietnam": "Hanoi",
    "Indonesia": "Jakarta",
    "Cuba": "Havana",
    "Switzerland": "Bern",
    "Belgium": "Brussels",
    "the Netherlands": "Amsterdam",
    "Latvia": "Riga",
    "Lithuania": "Vilnius",
    "Estonia": "Tallinn",
    "Slovakia": "Bratislava",
    "Croatia": "Zagreb",
    "Serbia": "Belgrade",
    "Bulgaria": "Sofia",
    "Romania": "Bucharest",
    "Iceland": "Reykjavik",
    "the Czech Republic": "Prague",
    "Ukraine": "Kyiv",
    "Russia": "Moscow",
    "the United Kingdom": "London",
    "the United States": "Washington, D.C.",
    "Ethiopia": "Addis Ababa",
    "Senegal": "Dakar",
    "Uruguay": "Montevideo",
    "Bolivia": "Sucre",
    "Paraguay": "Asunción",
    "Nepal": "Kathmandu",
    "Mongolia": "Ulaanbaatar",
    "Lebanon": "Beirut",
}
ELEMENTS = """
H Hydrogen,He Helium,Li Lithium,Be Beryllium,B Boron,C Carbon,N Nitrogen,O Oxygen,F Fluorine,Ne Neon,
Na Sodium,Mg Magnesium,Al Aluminium,Si Silicon,P Phosphorus,S Sulfur,Cl Chlorine,Ar Argon,K Potassium,
Ca Calcium,Sc Scandium,Ti Titanium,V Vanadium,Cr Chromium,Mn Manganese,Fe Iron,Co Cobalt,Ni Nickel,
Cu Copper,Zn Zinc,Ga Gallium,Ge Germanium,As Arsenic,Se Selenium,Br Bromine,Kr Krypton,Rb Rubidium,
Sr Strontium,Y Yttrium,Zr Zirconium,Nb Niobium,Mo Molybdenum,Tc Technetium,Ru Ruthenium,Rh Rhodium,
Pd Palladium,Ag Silver,Cd Cadmium,In Indium,Sn Tin,Sb Antimony,Te Tellurium,I Iodine,Xe Xenon,
Cs Caesium,Ba Barium
"""
ELEMENTS = [(i, *e.split()) for i, e in enumerate(ELEMENTS.split(","), 1)]  # (number, symbol, name)
MONTHS = "January February March April May June July August September October November December".split()
MDAYS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
NUMW = "zero one two three four five six seven eight nine ten eleven twelve".split()
OPP = dict(
    x.split("-")
    for x in """
hot-cold big-small up-down left-right fast-slow day-night light-dark happy-sad old-young open-closed
full-empty hard-soft high-low rich-poor strong-weak wet-dry early-late loud-quiet near-far clean-dirty
thick-thin true-false first-last inside-outside win-lose buy-sell come-go give-take push-pull begin-end
love-hate
""".split()
)
YOUNG = dict(
    x.split("-")
    for x in """
dog-puppy cat-kitten cow-calf horse-foal sheep-lamb goat-kid pig-piglet duck-duckling goose-gosling
swan-cygnet frog-tadpole bear-cub lion-cub fox-cub deer-fawn kangaroo-joey hen-chick owl-owlet
""".split()
)
PLANETS = "Mercury Venus Earth Mars Jupiter Saturn Uranus Neptune".split()
LISTS = {
    "planets of the solar system": PLANETS,
    "days of the week": DAYS,
    "months of the year": MONTHS,
    "seasons": ["spring", "summer", "autumn", "winter"],
    "colours of the rainbow": "red orange yellow green blue indigo violet".split(),
    "continents": ["Africa", "Antarctica", "Asia", "Australia", "Europe", "North America", "South America"],
    "oceans": ["Arctic Ocean", "Atlantic Ocean", "Indian Ocean", "Pacific Ocean", "Southern Ocean"],
    "vowels in English": list("aeiou"),
    "primary colours": ["red", "yellow", "blue"],
    "five senses": ["sight", "hearing", "smell", "taste", "touch"],
    "first ten prime numbers": "2 3 5 7 11 13 17 19 23 29".split(),
    "strings of a violin": list("GDAE"),
    "states of matter": ["solid", "liquid", "gas", "plasma"],
    "suits in a deck of cards": ["clubs", "diamonds", "hearts", "spades"],
    "chess pieces": ["king", "queen", "rook", "bishop", "knight", "pawn"],
}
ZH = """
hello 你好|thank you 谢谢|goodbye 再见|yes 是|no 不|water 水|fire 火|mountain 山|river 河|sun 太阳|
moon 月亮|star 星星|sky 天空|earth 地球|rain 雨|snow 雪|wind 风|tree 树|flower 花|grass 草|dog 狗|
cat 猫|bird 鸟|fish 鱼|horse 马|cow 牛|sheep 羊|tiger 老虎|dragon 龙|rabbit 兔子|panda 熊猫|monkey 猴子|
apple 苹果|banana 香蕉|tea 茶|coffee 咖啡|rice 米饭|noodles 面条|bread 面包|egg 鸡蛋|milk 牛奶|book 书|
pen 笔|paper 纸|school 学校|teacher 老师|student 学生|friend 朋友|mother 妈妈|father 爸爸|child 孩子|
house 房子|door 门|window 窗户|table 桌子|chair 椅子|car 汽车|train 火车|airplane 飞机|bicycle 自行车|
ship 船|road 路|city 城市|country 国家|China 中国|Japan 日本|France 法国|England 英国|America 美国|
today 今天|tomorrow 明天|yesterday 昨天|morning 早上|evening 晚上|night 夜|year 年|month 月|day 日|
time 时间|money 钱|work 工作|music 音乐|computer 电脑|phone 电话|language 语言|world 世界|love 爱|
happy 高兴|beautiful 美丽|big 大|small 小|red 红色|blue 蓝色|green 绿色|white 白色|black 黑色|
yellow 黄色|spring 春天|summer 夏天|autumn 秋天|winter 冬天|one 一|two 二|three 三|four 四|five 五|
six 六|seven 七|eight 八|nine 九|ten 十|hundred 百|doctor 医生|hospital 医院|weather 天气|food 食物|
clothes 衣服|hat 帽子|shoes 鞋子|garden 花园|sea 海|island 岛|bridge 桥|cloud 云|light 光|story 故事|
dream 梦|peace 和平
"""
FR = """
hello bonjour|thank you merci|goodbye au_revoir|water l'eau|bread le_pain|cheese le_fromage|
apple la_pomme|cat le_chat|dog le_chien|bird l'oiseau|house la_maison|school l'école|summer l'été|
winter l'hiver|mother la_mère|father le_père|brother le_frère|student l'élève|coffee le_café|tea le_thé|
forest la_forêt|island l'île|castle le_château|christmas Noël|boy le_garçon|lesson la_leçon|
star l'étoile|church l'église|hotel l'hôtel|party la_fête|strawberry la_fraise|heart le_cœur|egg l'œuf|
sister la_sœur|red rouge|blue bleu|green vert|book le_livre|tree l'arbre|sun le_soleil|moon la_lune
"""
ES = """
hello hola|thank you gracias|goodbye adiós|water el_agua|bread el_pan|cheese el_queso|apple la_manzana|
cat el_gato|dog el_perro|bird el_pájaro|house la_casa|tree el_árbol|tomorrow mañana|child el_niño|
year el_año|coffee el_café|tea el_té|music la_música|sugar el_azúcar|heart el_corazón|song la_canción|
mountain la_montaña|dream el_sueño|lion el_león|train el_tren|plane el_avión|sun el_sol|moon la_luna|
pencil el_lápiz|number el_número|telephone el_teléfono|lemon el_limón|spring la_primavera|
autumn el_otoño|red rojo|blue azul|green verde
"""
DE = """
hello hallo|thank you danke|goodbye auf_Wiedersehen|water das_Wasser|bread das_Brot|cheese der_Käse|
apple der_Apfel|cat die_Katze|dog der_Hund|bird der_Vogel|house das_Haus|tree der_Baum|girl das_Mädchen|
street die_Straße|river der_Fluss|king der_König|door die_Tür|year das_Jahr|spring der_Frühling|
bear der_Bär|lion der_Löwe|key der_Schlüssel|shoes die_Schuhe|foot der_Fuß|beautiful schön|green grün|
five fünf|twelve zwölf|big groß|sweet süß|morning der_Morgen|sun die_Sonne|moon der_Mond|star der_Stern|
book das_Buch|school die_Schule
"""


def pairs(text):
    """(English, translation) pairs; an underscore stands for a space in the translation."""
    return [tuple(y.replace("_", " ") for y in x.strip().rsplit(" ", 1)) for x in text.split("|")]


TR = {"Chinese": pairs(ZH), "French": pairs(FR), "Spanish": pairs(ES), "German": pairs(DE)}


def emojis():
    """(emoji, its Unicode name in lower case), by the ranges that hold most pictures."""
    out = []
    for lo, hi in (
        (0x1F300, 0x1F321),
        (0x1F330, 0x1F394),
        (0x1F3A0, 0x1F3F0),
        (0x1F400, 0x1F440),
        (0x1F446, 0x1F4FD),
        (0x1F600, 0x1F650),
        (0x1F680, 0x1F6C6),
        (0x1F910, 0x1F9FF),
    ):
        for c in range(lo, hi):
            n = unicodedata.name(chr(c), "")
            if n and "MODIFIER" not in n and len(n) < 26:
                out.append((chr(c), n.lower()))
    return out


EMOJI = emojis()
