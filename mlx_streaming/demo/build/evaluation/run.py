"""Task accuracy of a checkpoint, greedy.

    python -m mlx_streaming.demo.build.evaluation.run CHECKPOINT -o results.json [--count 30]

By default with the PyTorch model on the exported weights; `--mlx` answers through stock mlx-lm instead.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

from ..corpus.render import render
from . import newcomer, skills
from .task import Task

BATCH = 20
ENDS = {8183, 8185}


def torch_engine(path: Path, threads: int) -> Callable:
    import torch

    from ..batches import read_tokenizer
    from .checkpoint import read_checkpoint
    from .generate import Answer, complete

    torch.set_num_threads(threads)
    model, tokenizer = read_checkpoint(path), read_tokenizer(path)

    def ids(text):
        return tokenizer.encode(text, add_special_tokens=False).ids

    def generate(conversations, max_tokens):
        answers = []
        for messages, tools, draft in conversations:
            prompt = "".join(text for text, _ in render(messages, tools)) + "<|im_start|>assistant\n"
            expected = [*ids(draft), 8185] if draft else []
            answers.append(Answer(ids(prompt), expected, max_tokens))
        complete(model, answers, ENDS)
        return [tokenizer.decode(a.ids, skip_special_tokens=False) for a in answers]

    return generate


def mlx_engine(path: Path) -> Callable:
    from mlx_lm import load
    from mlx_lm.generate import batch_generate

    model, tokenizer = load(str(path))

    def generate(conversations, max_tokens):
        prompts = [
            tokenizer.apply_chat_template(skills.as_template(m), tools=t, add_generation_prompt=True)
            for m, t, _ in conversations
        ]
        answers = [""] * len(prompts)
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        for at in range(0, len(order), BATCH):
            chosen = order[at : at + BATCH]
            texts = batch_generate(
                model,
                tokenizer,
                [prompts[i] for i in chosen],
                max_tokens=max_tokens,
                completion_batch_size=BATCH,
                prefill_batch_size=BATCH,
            ).texts
            for i, text in zip(chosen, texts, strict=True):
                answers[i] = text
        return answers

    return generate


def answers_to(task: Task, generate: Callable) -> list[str]:
    """The last answer of each case; user messages in a row are asked one by one."""
    done = [[] for _ in task.cases]
    waiting = [list(case.messages) for case in task.cases]
    answers = [""] * len(task.cases)
    while any(waiting):
        asked = [i for i, messages in enumerate(waiting) if messages]
        for i in asked:
            done[i].append(waiting[i].pop(0))
            while waiting[i] and not (done[i][-1]["role"] == "user" == waiting[i][0]["role"]):
                done[i].append(waiting[i].pop(0))
        conversations = [
            (done[i], task.cases[i].tools, "" if waiting[i] else task.cases[i].draft) for i in asked
        ]
        for i, text in zip(asked, generate(conversations, task.max_tokens), strict=True):
            answers[i] = text
            done[i].append({"role": "assistant", "content": text})
    return answers


def measure(task: Task, generate: Callable) -> dict:
    answers = answers_to(task, generate)
    scores = [bool(task.score(a, c.expected)) for a, c in zip(answers, task.cases, strict=True)]
    shown = [
        {"asked": case.messages[-1]["content"], "expected": case.expected, "answer": text, "right": right}
        for case, text, right in zip(task.cases, answers, scores, strict=True)
    ]
    return {"right": sum(scores), "n": len(scores), "cases": shown}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=30, help="cases of each skill task")
    parser.add_argument("--only", choices=["newcomer", "skills"])
    parser.add_argument("--mlx", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    generate = mlx_engine(args.checkpoint) if args.mlx else torch_engine(args.checkpoint, args.threads)
    tasks = [] if args.only == "skills" else newcomer.tasks(args.count)
    tasks += [] if args.only == "newcomer" else skills.tasks(args.count)
    results = {}
    for task in tasks:
        started = time.time()
        result = results[task.name] = measure(task, generate)
        wrong = [[c["asked"], c["answer"]] for c in result["cases"] if not c["right"]]
        took = time.time() - started
        print(f"{task.name}: {result['right']} of {result['n']} ({took:.0f} s) {wrong[:3]}", flush=True)
        args.out.write_text(json.dumps(results, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
