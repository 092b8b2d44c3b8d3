"""A class as TRL's `environment_factory` takes it."""


class Safe:
    def reset(self, code: str, **row) -> str:
        self.code, self.tries, self.opened = code, 0, False
        return f" It has {len(code)} digits."

    def turn(self, digits: str) -> str:
        """Tries a code.

        Args:
            digits: The whole code.
        """
        self.tries += 1
        self.opened = self.opened or digits == self.code
        return f"{sum(map(str.__eq__, digits, self.code))} of {len(self.code)} are right."

    def get_reward(self) -> float:
        return float(self.opened)
