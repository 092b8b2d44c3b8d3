"""Three rows of each data set that people name, written by hand in its publisher's columns, and what they ask."""

from dataclasses import dataclass
from typing import Any

from tests.helpers.parquet import row

DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer:"
    " $Answer (without quotes) where $Answer is the answer to the problem.\n\n{}\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)
SEARCH_R1 = (
    "Answer the given question. You must conduct reasoning inside <think> and </think> first every time you get new"
    " information. After reasoning, if you find you lack some knowledge, you can call a search engine by <search> query"
    " </search>. If you find no further external knowledge needed, you can directly provide the answer inside <answer>"
    " and </answer>, without detailed illustrations. For example, <answer> Beijing </answer>. Question: {}\n"
)
GSM8K_INSTRUCTION = ' Let\'s think step by step and output the final answer after "####".'
MATH_INSTRUCTION = " Let's think step by step and output the final answer within \\boxed{}."


@dataclass(frozen=True)
class Published:
    """Rows, the questions and right answers that they stand for, and the name of their layout in `SPECS`.

    Attributes:
        ability: "math" or "qa".
        keys: of `env_config`, which they need beside `path`.
    """

    layout: str
    ability: str
    rows: list[dict[str, Any]]
    questions: list[str]
    answers: list[tuple[str, ...]]
    keys: tuple[tuple[str, Any], ...] = ()


def verl_gsm8k(question: str, solution: str, index: int, answer: str) -> dict[str, Any]:
    return {
        "data_source": "openai/gsm8k",
        "prompt": [{"content": question + GSM8K_INSTRUCTION, "role": "user"}],
        "ability": "math",
        "reward_model": {"ground_truth": answer, "style": "rule"},
        "extra_info": {"answer": solution, "index": index, "question": question, "split": "train"},
    }


def dapo(question: str, answer: str, index: str) -> dict[str, Any]:
    return {
        "data_source": "math_dapo",
        "prompt": [{"content": DAPO.format(question), "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": index},
    }


def search_r1(question: str, answers: list[str], index: int, **more: Any) -> dict[str, Any]:
    return {
        "id": f"train_{index}",
        "question": question,
        "golden_answers": answers,
        "data_source": "nq",
        "prompt": [{"content": SEARCH_R1.format(question), "role": "user"}],
        "ability": "fact-reasoning",
        "reward_model": {"ground_truth": {"target": answers}, "style": "rule"},
        "extra_info": {"index": index, "split": "train"},
        "metadata": None,
        **more,
    }


def trivia_qa(question: str, value: str, aliases: list[str], index: int) -> dict[str, Any]:
    return {
        "question": question,
        "question_id": f"tc_{index}",
        "question_source": "http://www.triviacountry.com/",
        "entity_pages": {"doc_source": [], "filename": [], "title": [], "wiki_context": []},
        "search_results": {"description": [], "filename": [], "rank": [], "title": [], "url": [], "search_context": []},
        "answer": {
            "aliases": aliases,
            "matched_wiki_entity_name": "",
            "normalized_aliases": [alias.lower() for alias in aliases],
            "normalized_matched_wiki_entity_name": "",
            "normalized_value": value.lower(),
            "type": "WikipediaEntity",
            "value": value,
        },
    }


LOOK_UP = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Looks something up.",
        "parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]},
    },
}


def openai_log(question: str, query: str, found: str, said: str) -> dict[str, Any]:
    call = {"id": "call_1", "type": "function", "function": {"name": "search", "arguments": f'{{"query": "{query}"}}'}}
    return {
        "messages": [
            {"role": "system", "content": "You are a shop's assistant."},
            {"role": "user", "content": question},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": found},
            {"role": "assistant", "content": said},
        ],
        "tools": [LOOK_UP],
    }


def hotpot_qa(question: str, answer: str, index: str, kind: str) -> dict[str, Any]:
    return {
        "id": index,
        "question": question,
        "answer": answer,
        "type": kind,
        "level": "medium",
        "supporting_facts": {"title": ["A", "B"], "sent_id": [0, 1]},
        "context": {"title": ["A", "B"], "sentences": [["One."], ["Two."]]},
    }


TWO, HALF, ROOT = "What is 1 + 1?", "What is 1 divided by 2?", "Solve x^2 = 3 for x > 0."
MOON, CITY, BOOK = "who was the first person on the moon", "Which city hosts the UN?", "Who wrote Emma?"
MOON_ANSWERS, CITY_ANSWERS, BOOK_ANSWERS = (("Neil Armstrong", "Armstrong"), ("New York City", "NYC"), ("Jane Austen",))
MATHEMATICS = {"questions": [TWO, HALF, ROOT], "answers": [("2",), ("\\frac{1}{2}",), ("\\sqrt{3}",)]}
KNOWLEDGE = {"questions": [MOON, CITY, BOOK], "answers": [MOON_ANSWERS, CITY_ANSWERS, BOOK_ANSWERS]}
FIRST = {"questions": [MOON, CITY, BOOK], "answers": [("Neil Armstrong",), ("New York City",), ("Jane Austen",)]}
ASKED = list(zip(MATHEMATICS["questions"], [answers[0] for answers in MATHEMATICS["answers"]], strict=True))
KNOWN = list(zip(KNOWLEDGE["questions"], map(list, KNOWLEDGE["answers"]), strict=True))
APPLES, TRAIN, EGGS = "Tom has 3 apples and buys 2.", "A train goes 60 miles an hour.", "A hen lays 2 eggs a day."
SOLVED = ["3 + 2 = <<3+2=5>>5.\n#### 5", "60 * 20 = <<60*20=1200>>1,200.\n#### 1,200", "It is 2 - 4.\n#### -2"]
SUMS = {"questions": [APPLES, TRAIN, EGGS], "answers": [("5",), ("1,200",), ("-2",)]}
LAMP, CHAIR, CUP = "What does the lamp cost?", "What does the chair cost?", "What does the cup cost?"
PRICES = {"questions": [LAMP, CHAIR, CUP], "answers": [("12 euros",), ("80 euros",), ("3 euros",)]}


def olympiad(question: str, answer: str) -> dict[str, str]:
    """The columns that NuminaMath-1.5 and OpenR1-Math share."""
    return {
        "problem": question,
        "solution": "Long.",
        "answer": answer,
        "problem_type": "Algebra",
        "question_type": "math-word-problem",
        "source": "olympiads",
    }


PUBLISHED = {
    "verl's GSM8K": Published(
        "parquet",
        "math",
        [
            verl_gsm8k(q, s, i, a)
            for i, (q, s, a) in enumerate(zip(SUMS["questions"], SOLVED, ["5", "1200", "-2"], strict=True))
        ],
        SUMS["questions"],
        [("5",), ("1200",), ("-2",)],
    ),
    "verl's MATH": Published(
        "parquet",
        "math",
        [
            {**row(q + MATH_INSTRUCTION, a), "data_source": "DigitalLearningGmbH/MATH-lighteval", "metadata": None}
            for q, a in ASKED
        ],
        **MATHEMATICS,
    ),
    "verl's Search-R1": Published(
        "parquet",
        "qa",
        [
            {
                "data_source": "searchR1_nq",
                "prompt": [{"role": "system", "content": "Be harmless."}, search_r1(q, a, i)["prompt"][0]],
                "ability": "fact-reasoning",
                "reward_model": {"ground_truth": {"target": a}, "style": "rule"},
                "extra_info": {"index": i, "need_tools_kwargs": True, "question": q, "split": "train"},
                "metadata": None,
            }
            for i, (q, a) in enumerate(KNOWN)
        ],
        **KNOWLEDGE,
    ),
    "Search-R1's NQ": Published("search_r1", "qa", [search_r1(q, a, i) for i, (q, a) in enumerate(KNOWN)], **KNOWLEDGE),
    "Search-R1's HotpotQA": Published(
        "search_r1",
        "qa",
        [
            search_r1(q, a, i, data_source="hotpotqa", metadata={"type": "bridge", "level": "hard"})
            for i, (q, a) in enumerate(KNOWN)
        ],
        **KNOWLEDGE,
    ),
    "DAPO-Math-17k": Published(
        "parquet", "math", [dapo(q, a, f"9a9b6eb4-{i}") for i, (q, a) in enumerate(ASKED)], **MATHEMATICS
    ),
    "DAPO-Math-17k, processed": Published(
        "parquet",
        "math",
        [
            {**dapo(q, a, "9a"), "prompt": q, "solution": a, "source_prompt": dapo(q, a, "9a")["prompt"]}
            for q, a in ASKED
        ],
        **MATHEMATICS,
    ),
    "SQuAD": Published(
        "squad",
        "qa",
        [
            {
                "id": f"5733be28{i}",
                "title": "A_page",
                "context": "A page that is not shown.",
                "question": q,
                "answers": {"text": [*a, a[0]], "answer_start": [3] * (len(a) + 1)},
            }
            for i, (q, a) in enumerate(KNOWN)
        ],
        **KNOWLEDGE,
    ),
    "TriviaQA": Published("triviaqa", "qa", [trivia_qa(q, a[0], a, i) for i, (q, a) in enumerate(KNOWN)], **KNOWLEDGE),
    "HotpotQA": Published(
        "hotpotqa", "qa", [hotpot_qa(q, a[0], f"5a7a{i}", "bridge") for i, (q, a) in enumerate(KNOWN)], **FIRST
    ),
    "MuSiQue": Published(
        "musique",
        "qa",
        [
            {
                "id": f"2hop__{i}",
                "paragraphs": [{"idx": 0, "title": "A", "paragraph_text": "One.", "is_supporting": True}],
                "question": q,
                "question_decomposition": [{"id": 1, "question": "A >> b", "answer": "c"}],
                "answer": a[0],
                "answer_aliases": a[1:],
                "answerable": True,
            }
            for i, (q, a) in enumerate(KNOWN)
        ],
        **KNOWLEDGE,
    ),
    "WebQuestions": Published("qa", "qa", [{"url": "u", "question": q, "answers": a} for q, a in KNOWN], **KNOWLEDGE),
    "SimpleQA": Published(
        "simpleqa",
        "qa",
        [{"metadata": "{'topic': 'Art', 'answer_type': 'Person'}", "problem": q, "answer": a[0]} for q, a in KNOWN],
        **FIRST,
    ),
    "NuminaMath-CoT": Published(
        "math",
        "math",
        [
            {
                "source": "synthetic_math",
                "problem": q,
                "solution": f"We find $\\boxed{{7}}$, no, $\\boxed{{{a}}}$.",
                "messages": [{"content": q, "role": "user"}, {"content": "Long.", "role": "assistant"}],
            }
            for q, a in ASKED
        ],
        **MATHEMATICS,
    ),
    "NuminaMath-1.5": Published(
        "math",
        "math",
        [
            olympiad(q, a) | {"problem_is_valid": "Yes", "solution_is_valid": "Yes", "synthetic": False}
            for q, a in ASKED
        ],
        **MATHEMATICS,
    ),
    "OpenR1-Math-220k": Published(
        "math",
        "math",
        [
            olympiad(q, a)
            | {
                "uuid": f"586fd646-{i}",
                "is_reasoning_complete": [True, True],
                "generations": ["<think>One</think>", "<think>Two</think>"],
                "correctness_math_verify": [True, False],
                "correctness_llama": None,
                "finish_reasons": None,
                "correctness_count": 1,
                "messages": [{"content": q, "role": "user"}, {"content": "Long.", "role": "assistant"}],
            }
            for i, (q, a) in enumerate(ASKED)
        ],
        **MATHEMATICS,
    ),
    "MATH": Published(
        "math",
        "math",
        [{"problem": q, "level": "Level 1", "type": "Algebra", "solution": f"So \\boxed{{{a}}}."} for q, a in ASKED],
        **MATHEMATICS,
    ),
    "MATH-500": Published(
        "math",
        "math",
        [
            {
                "problem": q,
                "solution": "Long.",
                "answer": a,
                "subject": "Algebra",
                "level": 1,
                "unique_id": f"test/algebra/{i}.json",
            }
            for i, (q, a) in enumerate(ASKED)
        ],
        **MATHEMATICS,
    ),
    "GSM8K": Published(
        "gsm8k",
        "math",
        [{"question": q, "answer": s} for q, s in zip(SUMS["questions"], SOLVED, strict=True)],
        **SUMS,
    ),
    "DeepMath-103K": Published(
        "parquet",
        "math",
        [
            {"question": q, "final_answer": a, "difficulty": 4.5, "topic": "Algebra", "r1_solution_1": "L"}
            for q, a in ASKED
        ],
        **MATHEMATICS,
        keys=(("ability", "math"),),
    ),
    "TRL's prompts": Published(
        "parquet",
        "math",
        [{"prompt": [{"content": q, "role": "user"}], "solution": a} for q, a in ASKED],
        **MATHEMATICS,
        keys=(("ability", "math"),),
    ),
    "a fine-tuning log of OpenAI's": Published(
        "messages",
        "qa",
        [
            openai_log(q, q.split()[3], f"{a[0]} a piece", f"It costs \\boxed{{{a[0]}}}.")
            for q, a in zip(PRICES["questions"], PRICES["answers"], strict=True)
        ],
        **PRICES,
        keys=(("ability", "qa"),),
    ),
    "questions and answers": Published(
        "parquet",
        "qa",
        [{"question": q, "answer": a[0]} for q, a in KNOWN],
        **FIRST,
        keys=(("ability", "qa"),),
    ),
    "questions and answers with their ability": Published(
        "parquet", "math", [{"question": q, "answer": a, "ability": "math"} for q, a in ASKED], **MATHEMATICS
    ),
}
