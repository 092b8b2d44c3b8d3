"""The environment: a class whose public methods are the model's tools."""

COINS = (1, 2, 5, 10, 20, 50)


class Till:
    """Pays an amount, coin by coin."""

    def reset(self, amount: int, **row) -> str:
        """Begins with a row of rows.jsonl; the text ends the prompt."""
        self.left, self.paid = amount, []
        return f"The coins are {', '.join(map(str, COINS))}."

    def pay(self, coin: int) -> str:
        """Pays one coin.

        Args:
            coin: its value.
        """
        if coin not in COINS:
            raise ValueError(f"There is no coin of {coin}.")
        if coin > self.left:
            raise ValueError(f"Only {self.left} is left to pay.")
        self.left -= coin
        self.paid.append(coin)
        return f"{self.left} is left to pay."

    def get_reward(self) -> float:
        """Up to 0.5 for a part of the amount; 0.5 to 1 if all is paid, 1 with as few coins as the largest ones make."""
        amount = sum(self.paid)
        if self.left:
            return 0.5 * amount / (amount + self.left)
        least = 0
        for coin in reversed(COINS):
            least, amount = least + amount // coin, amount % coin
        return 0.5 + 0.5 * least / len(self.paid)
