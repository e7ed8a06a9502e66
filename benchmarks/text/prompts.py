"""The conversations that are compared and timed, made from a fixed seed; must give the same ones on every machine."""

import random
from collections.abc import Sequence

Message = dict[str, str]
Conversation = tuple[Message, ...]

_SUBJECTS = (
    "bridges", "lighthouses", "bread", "snow", "compilers", "bees", "glass", "tides", "violins", "maps", "salt",
    "trains", "mountains", "paper", "clocks", "rivers", "cheese", "volcanoes", "bicycles", "windmills", "whales", "ink",
    "tea", "comets", "wool", "harbours", "mirrors", "forests", "coins", "kites",
)  # fmt: skip
_QUESTIONS = (
    "What are {0} good for, and what are {1} good for? Compare the two in a short paragraph.",
    "Write a list of five facts about {0}. Number them.",
    "Explain {0} to a child of six who already knows about {1}.",
    "I have to give a talk about {0} tomorrow. How should I begin, and which mistakes should I avoid?",
    "Tell a short story in which {0} and {1} both matter.",
    "Is it true that {0} were known before {1}? Say how sure you are.",
    "Write a polite letter to a museum that asks for an exhibition about {0}.",
    "Give me three questions for a quiz about {0}, with their answers.",
)
_CODE = (
    "Write a Python function that counts how often the word '{0}' occurs in a text, ignoring case.",
    "What does this code print?\n\n```python\nwords = ['{0}', '{1}', '{0}']\nprint(sorted(set(words)))\n```",
    'Turn this into JSON: the name is {0}, the price is 12.50, the tags are {1} and "new".',
    "Write an SQL query that lists all rows of the table `{0}` whose column `{1}` is null.",
    "Explain the regular expression ^{0}(-[0-9]{{2}})?$ in one sentence.",
    "Here is a shell command: `grep -rn {0} . | sort | uniq -c`. What does it do, step by step?",
)
_OTHER_LANGUAGES = (
    "Was ist der Unterschied zwischen {0} und {1}? Antworte bitte auf Deutsch.",
    "Raconte une petite histoire à propos de « {0} », s'il te plaît.",
    "¿Qué sabes sobre {0}? Escribe tres frases cortas.",
    "{0} とは何ですか。{1} との違いも説明してください。",
    "请用两句话介绍 {0}，再用一句话介绍 {1}。",
    "Что такое {0}? Ответь коротко.",
    "Cosa sono {0}? E perché la gente ama {1}? 🙂",
    "Τι είναι {0};",
)
_SYSTEMS = (
    "You are a patient teacher. Answer in plain words.",
    "You answer as briefly as you can.",
    "You are an old sailor who loves to talk.",
    "Answer with a list whenever that is possible, and never use more than eighty words.",
)
_ANSWERS = (
    "That is a good question. There is more to it than one would think, so let us look at it step by step.",
    "1. They are old.\n2. They are useful.\n3. People like them.",
    "I am not sure, but I believe so.",
)
_FOLLOW_UPS = (
    "And {0}?",
    "Why is that? Give one reason.",
    "Say the same in fewer words, and mention {0}.",
    "Thank you. Now do it again for {0} and {1}, please.",
)
_FILLER = (
    "The {0} of the valley were counted every spring, and nobody could say why there were fewer {1} each year.",
    "An old book in the library has a whole chapter about {0}, but only one page about {1}.",
    "When the council met, the first speaker praised {0} and the second one complained about {1} for an hour.",
    "Those who collect {0} know that {1} are harder to find, and that neither keeps well in the rain.",
)


def conversations(count: int) -> list[Conversation]:
    """Return `count` different conversations that end with a question; about a quarter have several turns."""
    draw = random.Random(20)
    made: dict[str, Conversation] = {}
    while len(made) < count:
        conversation = _conversation(draw)
        made.setdefault(repr(conversation), conversation)
    return list(made.values())


def follow_up(conversation: Conversation, answer: str, number: int) -> Conversation:
    """The conversation with its answer and one more question, chosen by `number`."""
    draw = random.Random(number)
    question = _filled(draw, _FOLLOW_UPS)
    return (*conversation, {"role": "assistant", "content": answer}, {"role": "user", "content": question})


def long_question(number: int, words: int) -> Conversation:
    """One question after a text of about `words` words that no other number shares a beginning with."""
    draw = random.Random(1_000_000 + number)
    text = f"Report {draw.randrange(10**9)}."
    while text.count(" ") < words:
        text += " " + _filled(draw, _FILLER)
    return ({"role": "user", "content": f"{text}\n\nTell a long story that continues this report."},)


def _conversation(draw: random.Random) -> Conversation:
    turns: list[Message] = []
    if draw.random() < 0.4:
        turns.append({"role": "system", "content": draw.choice(_SYSTEMS)})
    turns.append({"role": "user", "content": _question(draw)})
    while draw.random() < 0.25:
        turns.append({"role": "assistant", "content": draw.choice(_ANSWERS)})
        turns.append({"role": "user", "content": _filled(draw, _FOLLOW_UPS)})
    return tuple(turns)


def _question(draw: random.Random) -> str:
    return _filled(draw, draw.choices((_QUESTIONS, _CODE, _OTHER_LANGUAGES), (5, 3, 3))[0])


def _filled(draw: random.Random, texts: Sequence[str]) -> str:
    return draw.choice(texts).format(*draw.sample(_SUBJECTS, 2))
