"""Worked examples for models that have never called a tool: by ability, for `few_shot`."""

from __future__ import annotations

from rllib_arpo.envs.question import MATH, QA, Shot, ShotCall

#: Ability -> examples. None of them is a question of a data set.
SHOTS: dict[str, tuple[Shot, ...]] = {
    MATH: (
        Shot(
            "A crate holds 24 bottles. A shop sells 17 crates and 9 single bottles. How many bottles does it sell?",
            (ShotCall("python", "print(24 * 17 + 9)", "417", "I compute the bottles in 17 crates and add 9."),),
            "417",
            thought="17 crates hold 24 * 17 = 408 bottles, and 408 + 9 = 417.",
        ),
        Shot(
            "What is the sum of the positive divisors of 84?",
            (
                ShotCall(
                    "python",
                    "print(sum(d for d in range(1, 85) if 84 % d == 0))",
                    "224",
                    "I try all numbers from 1 to 84.",
                ),
            ),
            "224",
            thought="84 = 4 * 3 * 7, so the sum is (1 + 2 + 4)(1 + 3)(1 + 7) = 7 * 4 * 8 = 224.",
        ),
    ),
    QA: (
        Shot(
            "Who wrote the novel on which the film Blade Runner is based?",
            (
                ShotCall(
                    "search",
                    "Blade Runner film based on novel",
                    "Blade Runner: Blade Runner is a 1982 film directed by Ridley Scott. It is based on the novel Do"
                    " Androids Dream of Electric Sheep? by Philip K. Dick.",
                    "I look up the film.",
                ),
            ),
            "Philip K. Dick",
            thought="Blade Runner is based on Do Androids Dream of Electric Sheep? by Philip K. Dick.",
        ),
        Shot(
            "In which city was the founder of the Red Cross born?",
            (
                ShotCall(
                    "search",
                    "founder of the Red Cross",
                    "Red Cross: The Red Cross was founded in 1863 on the initiative of Henry Dunant.",
                    "First I need the founder.",
                ),
                ShotCall(
                    "search",
                    "Henry Dunant birthplace",
                    "Henry Dunant: Henry Dunant (1828-1910) was a humanitarian, born in Geneva, Switzerland.",
                    "It is Henry Dunant. Now I need the city where he was born.",
                ),
            ),
            "Geneva",
            thought="The founder of the Red Cross is Henry Dunant, who was born in Geneva.",
        ),
    ),
}
MAX_SHOTS = min(len(shots) for shots in SHOTS.values())
